//! Spinning for a moment before falling asleep.
//!
//! To fall asleep and be woken takes a thread 10 to 30 us, and its waker some 10. Where what it waits
//! for comes sooner than that as a rule, it is better to spin. That must be the exception: who spins
//! keeps its core from others, and the line it looks at from who is to write it. So it is for places
//! where few wait at a time, such as a gate of each core's own.

#[cfg(feature = "virtual")]
use std::panic::Location;
#[cfg(not(loom))]
use std::time::Duration;

#[cfg(not(loom))]
use crate::time;
#[cfg(feature = "virtual")]
use crate::watch;

/// About what falling asleep and being woken takes.
#[cfg(not(loom))]
const LONGEST: Duration = Duration::from_micros(30);
/// Between two looks; a pause takes a processor 10 to 50 ns.
#[cfg(not(loom))]
pub(crate) const PAUSES: u32 = 16;

/// Looks whether something `has_come`, for as long as it takes to fall asleep and be woken; false if
/// it has not by then. In a model it looks once.
#[cfg_attr(feature = "virtual", track_caller)]
pub fn until(has_come: impl Fn() -> bool) -> bool {
    if has_come() {
        return true;
    }
    #[cfg(loom)]
    return false;
    #[cfg(feature = "virtual")]
    return watch::spinning(Location::caller(), |pause| look(has_come, pause));
    #[cfg(not(any(loom, feature = "virtual")))]
    look(has_come, pause)
}

/// Looks again and again whether something `has_come`, at most for [`LONGEST`], with a `pause` before each look.
#[cfg(not(loom))]
pub(crate) fn look(has_come: impl Fn() -> bool, pause: impl Fn()) -> bool {
    let end = time::now() + LONGEST;
    while time::now() < end {
        pause();
        if has_come() {
            return true;
        }
    }
    false
}

/// The pauses of a processor between two looks.
#[cfg(not(loom))]
pub(crate) fn pause() {
    (0..PAUSES).for_each(|_| std::hint::spin_loop());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::until;
    use crate::atomic::{AtomicBool, Ordering};
    use crate::thread;

    #[test]
    fn what_comes_is_seen_and_what_does_not_is_not_waited_for() {
        assert!(until(|| true));
        assert!(!until(|| false));
        let has_come = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| has_come.store(true, Ordering::Release));
            while !until(|| has_come.load(Ordering::Acquire)) {}
        });
    }
}
