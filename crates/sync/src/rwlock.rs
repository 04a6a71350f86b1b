//! A lock with many readers or one writer, with a place in the order.
//!
//! A read lock still writes the line the lock lies on, so many readers of one lock do share
//! something: on the hottest paths prefer what takes no lock at all. A thread never holds the same
//! lock for reading twice (a writer waiting in between would stop it); the order check refuses it.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::backend;
use crate::held::{Held, Tag};
use crate::order::Class;

/// Protects a `T`; its [`Class`] says when it may be taken.
pub struct RwLock<T> {
    tag: Tag,
    inner: backend::RwLock<T>,
}

/// The right to look at the value, given back when dropped.
#[must_use]
pub struct RwLockReadGuard<'a, T> {
    inner: backend::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// The right to change the value, given back when dropped.
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

    /// Waits until no writer has it.
    #[inline]
    #[cfg_attr(any(debug_assertions, feature = "meter"), track_caller)]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Waits until no writer has it; others of its class with smaller keys may be held.
    #[inline]
    #[cfg_attr(any(debug_assertions, feature = "meter"), track_caller)]
    pub fn read_keyed(&self, key: u64) -> RwLockReadGuard<'_, T> {
        let held = self.tag.take(Some(key));
        RwLockReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Waits until nobody has it.
    #[inline]
    #[cfg_attr(any(debug_assertions, feature = "meter"), track_caller)]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// Waits until nobody has it; others of its class with smaller keys may be held.
    #[inline]
    #[cfg_attr(any(debug_assertions, feature = "meter"), track_caller)]
    pub fn write_keyed(&self, key: u64) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.take(Some(key));
        RwLockWriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }

    /// As [`RwLock::read`], for one that is held for about a microsecond and that few want at a time: who finds a
    /// writer in it spins for longer before it sleeps.
    #[inline]
    #[cfg_attr(any(debug_assertions, feature = "meter"), track_caller)]
    pub fn read_spinning(&self) -> RwLockReadGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockReadGuard {
            inner: backend::read_spinning(&self.inner),
            _held: held,
        }
    }

    /// As [`RwLock::write`], for one that is held for about a microsecond and that few want at a time: who finds
    /// somebody in it spins for longer before it sleeps.
    #[inline]
    #[cfg_attr(any(debug_assertions, feature = "meter"), track_caller)]
    pub fn write_spinning(&self) -> RwLockWriteGuard<'_, T> {
        let held = self.tag.take(None);
        RwLockWriteGuard {
            inner: backend::write_spinning(&self.inner),
            _held: held,
        }
    }

    /// Takes it for reading if no writer has it, whatever else this thread holds.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let inner = self.inner.try_read()?;
        Some(RwLockReadGuard {
            inner,
            _held: self.tag.note(None),
        })
    }

    /// Takes it for writing if nobody has it, whatever else this thread holds.
    #[inline]
    #[cfg_attr(feature = "meter", track_caller)]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let inner = self.inner.try_write()?;
        Some(RwLockWriteGuard {
            inner,
            _held: self.tag.note(None),
        })
    }

    /// Notes this lock as held by one who has another way in, after checking that it may be
    /// waited for.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn note(&self) -> Held {
        self.tag.take(None)
    }

    /// As [`RwLock::note`], with a key.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn note_keyed(&self, key: u64) -> Held {
        self.tag.take(Some(key))
    }

    /// As [`RwLock::note`], for what was got without waiting.
    #[inline]
    pub(crate) fn note_tried(&self) -> Held {
        self.tag.note(None)
    }

    /// The value, without locking: nobody else can have it.
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
