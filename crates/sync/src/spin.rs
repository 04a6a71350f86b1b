//! Spinning briefly before sleeping.
//!
//! Sleeping and being woken takes a thread 10 to 30 us, and its waker about 10 us. If the awaited
//! event usually happens sooner than that, it is better to spin. But a spinning thread occupies its
//! core, and delays the writer of the cache line that it polls. So spin only where few threads wait
//! at a time, such as at a gate of each core.

#[cfg(feature = "virtual")]
use std::panic::Location;
#[cfg(not(loom))]
use std::time::Duration;

#[cfg(not(loom))]
use crate::time;
#[cfg(feature = "virtual")]
use crate::watch;

/// For how long to spin: about as long as sleeping and being woken takes.
#[cfg(not(loom))]
const LONGEST: Duration = Duration::from_micros(30);
/// Pauses between two polls; a pause takes a processor 10 to 50 ns.
#[cfg(not(loom))]
pub(crate) const PAUSES: u32 = 16;

/// Polls `has_come` for as long as sleeping and being woken takes; false if it did not return true
/// in that time. In a model it polls once.
#[cfg_attr(feature = "virtual", track_caller)]
pub fn until(has_come: impl Fn() -> bool) -> bool {
    if has_come() {
        return true;
    }
    #[cfg(loom)]
    return false;
    #[cfg(feature = "virtual")]
    return watch::spinning(Location::caller(), |pause| poll(has_come, pause));
    #[cfg(not(any(loom, feature = "virtual")))]
    poll(has_come, pause)
}

/// Polls `has_come` for at most [`LONGEST`], with a `pause` before each poll.
#[cfg(not(loom))]
pub(crate) fn poll(has_come: impl Fn() -> bool, pause: impl Fn()) -> bool {
    let end = time::now() + LONGEST;
    while time::now() < end {
        pause();
        if has_come() {
            return true;
        }
    }
    false
}

/// Pauses the processor between two polls.
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
    fn an_event_is_seen_and_the_wait_for_it_is_bounded() {
        assert!(until(|| true));
        assert!(!until(|| false));
        let has_come = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| has_come.store(true, Ordering::Release));
            while !until(|| has_come.load(Ordering::Acquire)) {}
        });
    }
}
