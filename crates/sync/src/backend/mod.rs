//! What stands behind the locks: `parking_lot`; the same, watched, where meters are built in; or
//! `loom` in a model.
//!
//! All sides offer the same few calls; a condition variable waits on a borrowed guard. Only the
//! watched side wants to know a lock's class.

#[cfg(any(loom, not(feature = "meter")))]
use crate::order::Class;

#[cfg(not(any(loom, feature = "meter")))]
pub(crate) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

#[cfg(all(feature = "meter", not(loom)))]
mod watched;
#[cfg(all(feature = "meter", not(loom)))]
pub(crate) use watched::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, mutex, rwlock,
};

#[cfg(loom)]
mod modelled;
#[cfg(loom)]
pub(crate) use modelled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A mutex of this class.
#[cfg(any(loom, not(feature = "meter")))]
#[inline]
pub(crate) fn mutex<T>(_class: Class, value: T) -> Mutex<T> {
    Mutex::new(value)
}

/// A reader-writer lock of this class.
#[cfg(any(loom, not(feature = "meter")))]
#[inline]
pub(crate) fn rwlock<T>(_class: Class, value: T) -> RwLock<T> {
    RwLock::new(value)
}
