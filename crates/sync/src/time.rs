//! Clocks: one that only goes forward, and the one on the wall.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[cfg(all(feature = "virtual", not(loom)))]
use crate::virtual_cores;

/// When virtual machines are switched on: always at the same moment, so that a run repeats.
#[cfg(all(feature = "virtual", not(loom)))]
const VIRTUAL_EPOCH: Duration = Duration::from_secs(1_700_000_000);

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

/// Time since 1970-01-01 00:00 UTC by the system's clock, zero for a clock set before that.
///
/// It moves with the system's tick, a few milliseconds long, as the clock does by which Linux
/// stamps files. The kernel stamps some changes of a mounted file itself: by a finer clock here a
/// later change of its could look older than an earlier one of ours.
#[must_use]
pub fn since_epoch() -> Duration {
    #[cfg(all(feature = "virtual", not(loom)))]
    if virtual_cores::is_inside() {
        return VIRTUAL_EPOCH + virtual_cores::now();
    }
    let now = clock_gettime(ClockId::RealtimeCoarse);
    match (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::{ClockId, clock_gettime, now, since_epoch};

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
