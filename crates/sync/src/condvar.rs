//! A condition variable for [`Mutex`](crate::Mutex).
//!
//! Wakeups may be spurious: wait in a loop that tests the condition.

use std::fmt;
use std::time::Duration;

use crate::backend;
use crate::lock::MutexGuard;

/// Threads wait on it for a change of the value that a mutex protects.
pub struct Condvar(backend::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self(backend::Condvar::new())
    }

    /// Releases the lock, waits to be woken, and takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.inner);
    }

    /// As [`Condvar::wait`], for at most `timeout`; returns whether the time ran out.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        self.0.wait_for(&mut guard.inner, timeout).timed_out()
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Condvar").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Condvar;
    use crate::lock::Mutex;
    use crate::order::Class;
    use crate::thread;

    #[test]
    fn the_waiter_sees_what_the_waker_wrote() {
        let turn = Mutex::new(Class::Leaf, 0);
        let changed = Condvar::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                for expected in (1..100).step_by(2) {
                    let mut guard = turn.lock();
                    while *guard != expected {
                        changed.wait(&mut guard);
                    }
                    *guard += 1;
                    changed.notify_all();
                }
            });
            for expected in (0..100).step_by(2) {
                let mut guard = turn.lock();
                while *guard != expected {
                    changed.wait(&mut guard);
                }
                *guard += 1;
                changed.notify_all();
            }
        });
        assert_eq!(*turn.lock(), 100);
    }
}
