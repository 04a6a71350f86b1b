//! A server that shares its caller's core lets the caller go first.
//!
//! When the reply wakes the caller, the server still runs on the core that they share, so the
//! scheduler puts the caller on an idle one, which must be woken; and the server is left behind. If
//! the server gives way to everybody ([`scheduling`]), its core counts as free: the caller goes on
//! there at once, and the server finishes when the caller waits for its next call. No core is woken
//! for a call any more.
//!
//! The price: a third process that is busy on that core comes first as well. So a server that gives
//! way looks every now and then how long it had to wait for the core, beyond what the caller itself
//! ran there. If that was most of the time at [`PATIENCE`] looks in a row, no server of this process
//! gives way for [`REST_MS`].
//!
//! It takes a right (see [`scheduling`]) and `/proc/PID/schedstat`; without them nobody gives way.

use std::fs;
use std::time::{Duration, Instant};

use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::scheduling;

use super::callers::milliseconds;

/// Looks in a row that may find that the time went to a third process: some milliseconds each.
const PATIENCE: u32 = 8;
/// For how long no server gives way after one waited too long.
const REST_MS: u32 = 1000;

/// When a server waited too long, in milliseconds; zero: never.
static WAITED_AT: AtomicU32 = AtomicU32::new(0);

/// Whether the calling thread gives way, and what it costs.
#[derive(Default)]
pub(super) struct GivingWay {
    is_on: bool,
    last: Option<Waits>,
    /// Looks in a row that found that the wait was too long.
    too_long: u32,
}

impl GivingWay {
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Begins or ends to give way: it is `wanted` where the thread shares a core with `caller`.
    pub(super) fn look(&mut self, caller: u32, wanted: bool) {
        let waits = if wanted {
            Waits::until_now(caller)
        } else {
            None
        };
        let is_too_long = match (&self.last, &waits) {
            (Some(last), Some(waits)) => self.is_on && waits.are_too_long_since(last),
            _ => false,
        };
        self.too_long = if is_too_long { self.too_long + 1 } else { 0 };
        if self.too_long >= PATIENCE {
            WAITED_AT.store(milliseconds().max(1), Ordering::Relaxed);
        }
        let is_on = waits.is_some() && !rests();
        self.last = waits;
        if is_on != self.is_on && scheduling::set_idle_class(is_on).is_ok() {
            self.is_on = is_on;
        }
    }
}

fn rests() -> bool {
    let waited_at = WAITED_AT.load(Ordering::Relaxed);
    waited_at != 0 && milliseconds().wrapping_sub(waited_at) < REST_MS
}

/// What was waited for until a moment.
#[derive(Clone, Copy)]
struct Waits {
    at: Instant,
    caller: u32,
    /// How long this thread had something to do and no core.
    waited: Duration,
    /// How long the caller ran.
    caller_ran: Duration,
}

impl Waits {
    fn until_now(caller: u32) -> Option<Self> {
        let [_, waited] = times("/proc/thread-self/schedstat")?;
        let [caller_ran, _] = times(&format!("/proc/{caller}/schedstat"))?;
        Some(Self {
            at: Instant::now(),
            caller,
            waited,
            caller_ran,
        })
    }

    /// Whether most of the time since `last` was spent waiting for somebody other than the caller.
    fn are_too_long_since(&self, last: &Self) -> bool {
        let waited = self.waited.saturating_sub(last.waited);
        let for_caller = self.caller_ran.saturating_sub(last.caller_ran);
        let for_third = waited.saturating_sub(for_caller);
        self.caller == last.caller && for_third > (self.at - last.at) / 2
    }
}

/// The first two numbers of a `schedstat`, in nanoseconds: on a core, and waiting for one.
fn times(path: &str) -> Option<[Duration; 2]> {
    let text = fs::read_to_string(path).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let mut next = || Some(Duration::from_nanos(numbers.next()?.ok()?));
    Some([next()?, next()?])
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Waits, times};

    fn waits(at: Instant, after: [u64; 3]) -> Waits {
        let [passed, waited, caller_ran] = after.map(Duration::from_millis);
        Waits {
            at: at + passed,
            caller: 7,
            waited,
            caller_ran,
        }
    }

    #[test]
    fn only_waiting_for_a_third_one_is_too_long() {
        let start = Instant::now();
        let last = waits(start, [0, 100, 500]);
        let caller_computes = waits(start, [10, 109, 509]);
        assert!(!caller_computes.are_too_long_since(&last));
        let a_third_one_computes = waits(start, [10, 109, 501]);
        assert!(a_third_one_computes.are_too_long_since(&last));
        let another_caller = Waits {
            caller: 8,
            ..a_third_one_computes
        };
        assert!(!another_caller.are_too_long_since(&last));
    }

    #[test]
    fn times_are_read_where_there_are_any() {
        // Until it has left its core once, a thread may have run for no time that is known.
        pext4_sync::thread::sleep(std::time::Duration::from_millis(1));
        assert!(times("/proc/thread-self/schedstat").is_none_or(|[ran, _]| !ran.is_zero()));
        assert!(times("/proc/4294967295/schedstat").is_none());
    }
}
