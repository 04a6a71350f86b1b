//! Looking on for a moment before falling asleep.
//!
//! To fall asleep and be woken takes a thread some 10 to 30 us, and its waker some 10. Where what it
//! waits for comes sooner than that as a rule, it is better to look on. That must be the exception:
//! who looks on keeps its core from others and the line it looks at from who is to write it. So one
//! thread at a time does where few are, such as at a gate that is each core's own.

#[cfg(not(loom))]
use std::time::Duration;

#[cfg(not(loom))]
use crate::time;

/// About what falling asleep and being woken takes.
#[cfg(not(loom))]
const PATIENCE: Duration = Duration::from_micros(30);
/// Between two looks; a pause takes a processor 10 to 50 ns.
#[cfg(not(loom))]
const PAUSES: u32 = 16;

/// Looks whether something `has_come`, for as long as it takes to fall asleep and be woken; false if
/// it has not by then. In a model it looks once.
#[cfg(not(loom))]
pub fn look_on(has_come: impl Fn() -> bool) -> bool {
    let end = time::now() + PATIENCE;
    loop {
        if has_come() {
            return true;
        }
        if time::now() >= end {
            return false;
        }
        pause();
    }
}

/// Looks whether something `has_come`.
#[cfg(loom)]
pub fn look_on(has_come: impl Fn() -> bool) -> bool {
    has_come()
}

#[cfg(not(loom))]
fn pause() {
    #[cfg(feature = "virtual")]
    if crate::virtual_cores::is_inside() {
        return crate::virtual_cores::pause(PAUSES);
    }
    (0..PAUSES).for_each(|_| std::hint::spin_loop());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::look_on;
    use crate::atomic::{AtomicBool, Ordering};
    use crate::thread;

    #[test]
    fn what_comes_is_seen_and_what_does_not_is_not_waited_for() {
        assert!(look_on(|| true));
        assert!(!look_on(|| false));
        let has_come = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| has_come.store(true, Ordering::Release));
            while !look_on(|| has_come.load(Ordering::Acquire)) {}
        });
    }
}
