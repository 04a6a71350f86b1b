//! A mutex with a class in the order of locks.
//!
//! Where nothing observes it, it takes one byte beside the value. A panic while it is held does not
//! poison it.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::backend;
use crate::held::{Held, Tag};
use crate::order::Class;

/// Protects a `T`; its [`Class`] determines when it may be taken.
pub struct Mutex<T> {
    tag: Tag,
    inner: backend::Mutex<T>,
}

#[cfg(not(any(feature = "lock-order", feature = "meter", loom)))]
const _: () = assert!(size_of::<Mutex<u8>>() == 2, "the class costs nothing");

/// Access to the value; unlocks when dropped.
#[must_use]
pub struct MutexGuard<'a, T> {
    pub(crate) inner: backend::MutexGuard<'a, T>,
    _held: Held,
}

impl<T> Mutex<T> {
    /// A lock of this class around `value`.
    pub fn new(class: Class, value: T) -> Self {
        Self {
            tag: Tag::new(class),
            inner: backend::mutex(class, value),
        }
    }

    /// Waits for the lock.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.tag.take(None);
        MutexGuard {
            inner: self.inner.lock(),
            _held: held,
        }
    }

    /// As [`Mutex::lock`], but spins for longer before it sleeps: for a lock that is held for about
    /// a microsecond and that few threads want at a time.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn lock_spinning(&self) -> MutexGuard<'_, T> {
        let held = self.tag.take(None);
        MutexGuard {
            inner: backend::lock_spinning(&self.inner),
            _held: held,
        }
    }

    /// Waits for the lock. The thread may hold locks of its class with smaller keys.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn lock_keyed(&self, key: u64) -> MutexGuard<'_, T> {
        let held = self.tag.take(Some(key));
        MutexGuard {
            inner: self.inner.lock(),
            _held: held,
        }
    }

    /// Takes the lock if it is free. The order is not checked.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard {
            inner,
            _held: self.tag.note(None),
        })
    }

    /// As [`Mutex::try_lock`]; the thread may wait for locks of its class with larger keys
    /// afterwards.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn try_lock_keyed(&self, key: u64) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        Some(MutexGuard {
            inner,
            _held: self.tag.note(Some(key)),
        })
    }

    /// Whether the lock is held at the moment. Writes nothing.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn is_locked(&self) -> bool {
        self.inner.is_locked()
    }

    /// The value, without locking, which `&mut self` makes unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    /// The value, taken out of the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mutex").finish_non_exhaustive()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, formatter)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Mutex;
    use crate::order::Class;
    use crate::thread;

    #[test]
    fn excludes() {
        let lock = Mutex::new(Class::Leaf, 0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut guard = lock.lock();
                        let seen = *guard;
                        thread::yield_now();
                        *guard = seen + 1;
                    }
                });
            }
        });
        assert_eq!(lock.into_inner(), 4000);
    }

    #[test]
    fn trying_a_held_lock_fails() {
        let lock = Mutex::new(Class::Leaf, ());
        let guard = lock.lock();
        assert!(lock.is_locked() && lock.try_lock().is_none());
        drop(guard);
        assert!(!lock.is_locked());
        assert!(lock.try_lock().is_some());
    }
}
