//! A reader-writer lock with a class in the order of locks.
//!
//! Locking for reading still writes the lock's cache line, so readers of one lock contend for it:
//! on the hottest paths avoid locks. A thread must not lock the same lock for reading twice,
//! because a writer that waits in between would block it; the order check rejects this.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::backend;
use crate::held::{Held, Tag};
use crate::order::Class;

/// Protects a `T`; its [`Class`] determines when it may be taken.
pub struct RwLock<T> {
    tag: Tag,
    inner: backend::RwLock<T>,
}

/// Read access to the value; unlocks when dropped.
#[must_use]
pub struct RwLockReadGuard<'a, T> {
    inner: backend::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Write access to the value; unlocks when dropped.
#[must_use]
pub struct RwLockWriteGuard<'a, T> {
    inner: backend::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    /// A lock of this class around `value`.
    pub fn new(class: Class, value: T) -> Self {
        Self {
            tag: Tag::new(class),
            inner: backend::rwlock(class, value),
        }
    }

    /// Locks for reading: waits for a writer.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// As [`RwLock::read`]; the thread may hold locks of its class with smaller keys.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn read_keyed(&self, key: u64) -> RwLockReadGuard<'_, T> {
        let held = self.tag.take(Some(key));
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Locks for writing: waits for readers and writers.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// As [`RwLock::write`]; the thread may hold locks of its class with smaller keys.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn write_keyed(&self, key: u64) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.take(Some(key));
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// As [`RwLock::read`], but spins for longer before it sleeps: for a lock that is held for
    /// about a microsecond and that few threads want at a time.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn read_spinning(&self) -> RwLockReadGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockReadGuard {
            inner: backend::read_spinning(&self.inner),
            _held: held,
        }
    }

    /// As [`RwLock::write`], spinning as [`RwLock::read_spinning`] does.
    #[inline]
    #[cfg_attr(any(feature = "lock-order", feature = "meter"), track_caller)]
    pub fn write_spinning(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockWriteGuard {
            inner: backend::write_spinning(&self.inner),
            _held: held,
        }
    }

    /// Locks for reading if no writer holds it. The order is not checked.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard {
            inner,
            _held: self.tag.note(None),
        })
    }

    /// Locks for writing if it is free. The order is not checked.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard {
            inner,
            _held: self.tag.note(None),
        })
    }

    /// Checks that the thread may wait for this lock, and notes it as held, without taking it: for
    /// a lock built on this one.
    #[inline]
    #[cfg_attr(feature = "lock-order", track_caller)]
    pub(crate) fn note(&self) -> Held {
        self.tag.take(None)
    }

    /// As [`RwLock::note`], with a key.
    #[inline]
    #[cfg_attr(feature = "lock-order", track_caller)]
    pub(crate) fn note_keyed(&self, key: u64) -> Held {
        self.tag.take(Some(key))
    }

    /// As [`RwLock::note`], without the check: for a lock that was taken without waiting.
    #[inline]
    pub(crate) fn note_tried(&self) -> Held {
        self.tag.note(None)
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

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RwLock").finish_non_exhaustive()
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, formatter)
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, formatter)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::RwLock;
    use crate::order::Class;
    use crate::thread;

    #[test]
    fn readers_share_and_writers_exclude() {
        let lock = RwLock::new(Class::Leaf, 1);
        let reader = lock.read();
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(lock.try_read().map(|guard| *guard), Some(1));
                assert!(lock.try_write().is_none());
            });
        });
        drop(reader);
        *lock.write() = 2;
        assert_eq!(*lock.read(), 2);
    }
}
