//! Clocks: one that only goes forward, and the one on the wall.
//!
//! A thread may [`hold`] the clock on the wall: work that must give the same bytes each time is
//! then stamped with a time of its choice. Other threads' clocks go on.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[cfg(all(feature = "virtual", not(loom)))]
use crate::virtual_cores;

/// When virtual machines are switched on: always at the same moment, so that a run repeats.
#[cfg(all(feature = "virtual", not(loom)))]
const VIRTUAL_EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How far the clock that stamps files moves at once on virtual machines: as with 250 Hz.
#[cfg(all(feature = "virtual", not(loom)))]
const VIRTUAL_TICK: Duration = Duration::from_millis(4);

/// Time since a fixed moment in the life of this process; never goes back.
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
    static HELD: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Stops the clock on the wall for this thread at a time since 1970-01-01 00:00 UTC, until the
/// guard is dropped. Holds nest.
pub fn hold(at: Duration) -> HoldGuard {
    HoldGuard {
        before: HELD.replace(Some(at)),
        stays: PhantomData,
    }
}

/// Keeps a thread's clock; see [`hold`].
#[must_use]
pub struct HoldGuard {
    before: Option<Duration>,
    /// A hold belongs to its thread.
    stays: PhantomData<*const ()>,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

/// Time since 1970-01-01 00:00 UTC by the system's clock, zero for a clock set before that; or the
/// time at which this thread [`hold`]s it.
///
/// It moves with the system's tick, a few milliseconds long, as the clock does by which Linux
/// stamps files. The kernel stamps some changes of a mounted file itself: by a finer clock here a
/// later change of its could look older than an earlier one of ours.
#[must_use]
pub fn since_epoch() -> Duration {
    if let Some(held) = HELD.get() {
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
    use super::{ClockId, Duration, clock_gettime, hold, now, since_epoch};

    #[test]
    fn a_held_clock_stands_still_for_its_thread_alone() {
        let (outer, inner) = (Duration::new(1000, 7), Duration::ZERO);
        let first = hold(outer);
        {
            let _second = hold(inner);
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
            // Equal unless a tick, or somebody who sets the clock, came between.
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
