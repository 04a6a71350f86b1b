//! Clocks: a monotonic one, and the wall clock.
//!
//! A thread may [`freeze`] its wall clock at a time of its choice, for work that must produce the
//! same bytes each time. The clocks of other threads are not affected.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[cfg(all(feature = "virtual", not(loom)))]
use crate::virtual_cores;

/// The start time of virtual machines: always the same, so that a run repeats.
#[cfg(all(feature = "virtual", not(loom)))]
const VIRTUAL_EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// The tick of the clock that stamps files on virtual machines, as with 250 Hz.
#[cfg(all(feature = "virtual", not(loom)))]
const VIRTUAL_TICK: Duration = Duration::from_millis(4);

/// Time since a fixed moment in the life of this process; never decreases.
#[must_use]
pub fn now() -> Duration {
    #[cfg(all(feature = "virtual", not(loom)))]
    if virtual_cores::is_inside() {
        return virtual_cores::now();
    }
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

thread_local! {
    static FROZEN: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Stops this thread's wall clock at `at`, a time since 1970-01-01 00:00 UTC, until the guard is
/// dropped. They nest.
pub fn freeze(at: Duration) -> FrozenClock {
    FrozenClock {
        before: FROZEN.replace(Some(at)),
        stays: PhantomData,
    }
}

/// Whether this thread's clock is [frozen](freeze).
#[must_use]
pub fn is_frozen() -> bool {
    FROZEN.get().is_some()
}

/// Keeps a thread's clock stopped; see [`freeze`].
#[must_use]
#[derive(Debug)]
pub struct FrozenClock {
    before: Option<Duration>,
    /// It belongs to its thread.
    stays: PhantomData<*const ()>,
}

impl Drop for FrozenClock {
    fn drop(&mut self) {
        FROZEN.set(self.before);
    }
}

/// Time since 1970-01-01 00:00 UTC by the system's clock, zero for a clock set before that; or the
/// time at which this thread has [frozen](freeze) it.
///
/// It advances with the system's tick of a few milliseconds, as does the clock with which Linux
/// stamps files. The kernel stamps some changes of a mounted file itself: if this clock were finer,
/// a later change by the kernel could look older than an earlier one by us.
#[must_use]
pub fn since_epoch() -> Duration {
    if let Some(held) = FROZEN.get() {
        return held;
    }
    #[cfg(all(feature = "virtual", not(loom)))]
    if virtual_cores::is_inside() {
        let ticks = virtual_cores::now().as_micros() / VIRTUAL_TICK.as_micros();
        let ticks = u32::try_from(ticks).unwrap_or(u32::MAX);
        return VIRTUAL_EPOCH + VIRTUAL_TICK * ticks;
    }
    let now = clock_gettime(ClockId::RealtimeCoarse);
    match (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::{ClockId, Duration, clock_gettime, freeze, now, since_epoch};

    #[test]
    fn a_held_clock_is_stopped_for_its_thread_only() {
        let (outer, inner) = (Duration::new(1000, 7), Duration::ZERO);
        let first = freeze(outer);
        {
            let _second = freeze(inner);
            assert_eq!(since_epoch(), inner);
        }
        assert_eq!(since_epoch(), outer);
        let other = std::thread::spawn(since_epoch).join();
        assert!(other.expect("it does not panic").as_secs() > 1_600_000_000);
        drop(first);
        assert!(since_epoch().as_secs() > 1_600_000_000);
    }

    #[test]
    fn time_does_not_go_back() {
        let first = now();
        assert!(now() >= first);
        assert!(since_epoch().as_secs() > 1_600_000_000);
    }

    #[test]
    fn files_are_stamped_by_the_clock_that_ticks() {
        let ticks = || clock_gettime(ClockId::RealtimeCoarse);
        for _ in 0..1000 {
            let (before, ours, after) = (ticks(), since_epoch(), ticks());
            // Equal unless there was a tick, or the clock was set, in between.
            if before == after {
                let ticked = (
                    u64::try_from(before.tv_sec).unwrap(),
                    u32::try_from(before.tv_nsec).unwrap(),
                );
                assert_eq!((ours.as_secs(), ours.subsec_nanos()), ticked);
            }
        }
    }
}
