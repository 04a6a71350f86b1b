//! A serving thread on its caller's core runs in the scheduler's idle class.
//!
//! When the reply wakes the caller, the serving thread still runs on the core that they share, so
//! the scheduler puts the caller on an idle core, which must be woken; and the thread is left
//! behind. If the thread is in the idle class (`SCHED_IDLE`, [`scheduling`]), its core counts as
//! free: the caller continues there at once, and the thread finishes when the caller waits for its
//! next call. No core is woken for a call any more.
//!
//! The cost: a third process that is busy on that core goes first as well. So a thread in the idle
//! class samples how long it had to wait for the core, beyond the time that the caller itself ran.
//! If that was most of the time in [`LONG_WAITS_TO_SUSPEND`] samples in a row, all serving threads
//! of this process leave the idle class for [`SUSPEND_MS`].
//!
//! This needs a privilege (see [`scheduling`]) and `/proc/PID/schedstat`; without them no thread
//! enters the idle class.

use std::fs;
use std::time::{Duration, Instant};

use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::scheduling;

use super::callers::milliseconds;

/// Samples in a row, some milliseconds each, with most of the time spent waiting for a third
/// process.
const LONG_WAITS_TO_SUSPEND: u32 = 8;
/// For how long no thread enters the idle class after one waited too long.
const SUSPEND_MS: u32 = 1000;

/// When a thread last waited too long, by [`milliseconds`]; 0: never.
static SUSPENDED_AT_MS: AtomicU32 = AtomicU32::new(0);

/// Whether the calling thread is in the idle class, and how long it had to wait there.
#[derive(Default)]
pub(super) struct IdleClass {
    is_on: bool,
    /// Whether the system does not let the thread enter the class.
    is_refused: bool,
    last: Option<SchedSample>,
    /// Samples in a row in which the wait was too long.
    long_waits: u32,
}

impl IdleClass {
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether the thread is in the class, or would be if it wanted to.
    pub(super) fn is_possible(&self) -> bool {
        self.is_on || !(self.is_refused || is_suspended())
    }

    /// Enters or leaves the idle class: it is `wanted` while the thread shares a core with
    /// `callers`.
    pub(super) fn update(&mut self, callers: &[u32], wanted: bool) {
        let sample = if wanted {
            SchedSample::now(callers)
        } else {
            None
        };
        let waited_too_long = match (&self.last, &sample) {
            (Some(last), Some(sample)) => self.is_on && sample.waited_too_long_since(last),
            _ => false,
        };
        self.long_waits = if waited_too_long {
            self.long_waits + 1
        } else {
            0
        };
        if self.long_waits >= LONG_WAITS_TO_SUSPEND {
            SUSPENDED_AT_MS.store(milliseconds().max(1), Ordering::Relaxed);
        }
        let is_on = sample.is_some() && !is_suspended();
        self.last = sample;
        if is_on != self.is_on {
            match scheduling::set_idle_class(is_on) {
                Ok(()) => self.is_on = is_on,
                Err(_) => self.is_refused = is_on,
            }
        }
    }
}

fn is_suspended() -> bool {
    let suspended_at = SUSPENDED_AT_MS.load(Ordering::Relaxed);
    suspended_at != 0 && milliseconds().wrapping_sub(suspended_at) < SUSPEND_MS
}

/// Running and waiting times until a moment.
struct SchedSample {
    at: Instant,
    /// In the order of their numbers.
    callers: Vec<u32>,
    /// How long this thread was runnable and had no core.
    waited: Duration,
    /// How long the callers ran.
    callers_ran: Duration,
}

impl SchedSample {
    fn now(callers: &[u32]) -> Option<Self> {
        let [_, waited] = times("/proc/thread-self/schedstat")?;
        let mut sorted = callers.to_vec();
        sorted.sort_unstable();
        // Those that have ended need no core.
        let ran = |caller: &u32| Some((*caller, times(&format!("/proc/{caller}/schedstat"))?[0]));
        let (callers, ran): (Vec<u32>, Vec<Duration>) = sorted.iter().filter_map(ran).unzip();
        (!callers.is_empty()).then(|| Self {
            at: Instant::now(),
            callers,
            waited,
            callers_ran: ran.iter().sum(),
        })
    }

    /// Whether this thread spent most of the time since `last` waiting for a process other than the
    /// callers.
    fn waited_too_long_since(&self, last: &Self) -> bool {
        let waited = self.waited.saturating_sub(last.waited);
        let for_callers = self.callers_ran.saturating_sub(last.callers_ran);
        let for_third = waited.saturating_sub(for_callers);
        self.callers == last.callers && for_third > (self.at - last.at) / 2
    }
}

/// The first two numbers of a `schedstat`, in nanoseconds: running, and runnable without a core.
fn times(path: &str) -> Option<[Duration; 2]> {
    let text = fs::read_to_string(path).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let mut next = || Some(Duration::from_nanos(numbers.next()?.ok()?));
    Some([next()?, next()?])
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{SchedSample, times};

    fn sample(at: Instant, after: [u64; 3]) -> SchedSample {
        let [passed, waited, callers_ran] = after.map(Duration::from_millis);
        SchedSample {
            at: at + passed,
            callers: vec![7],
            waited,
            callers_ran,
        }
    }

    #[test]
    fn only_waiting_for_a_third_process_is_too_long() {
        let start = Instant::now();
        let last = sample(start, [0, 100, 500]);
        let caller_computes = sample(start, [10, 109, 509]);
        assert!(!caller_computes.waited_too_long_since(&last));
        let a_third_one_computes = sample(start, [10, 109, 501]);
        assert!(a_third_one_computes.waited_too_long_since(&last));
        let another_caller = SchedSample {
            callers: vec![7, 8],
            ..a_third_one_computes
        };
        assert!(!another_caller.waited_too_long_since(&last));
    }

    #[test]
    fn times_are_read_where_there_are_any() {
        // The time that a thread ran may be 0 until it has left its core once.
        pext4_sync::thread::sleep(std::time::Duration::from_millis(1));
        assert!(times("/proc/thread-self/schedstat").is_none_or(|[ran, _]| !ran.is_zero()));
        assert!(times("/proc/4294967295/schedstat").is_none());
    }
}
