//! The implementations of the locks: `parking_lot`; the same with observers, in builds with the
//! feature `meter`; or `loom` in a model.
//!
//! All offer the same few calls; a condition variable waits on a borrowed guard. Only the watched
//! implementation needs a lock's class.

#[cfg(any(loom, not(feature = "meter")))]
use crate::order::Class;
#[cfg(any(loom, not(feature = "meter")))]
use crate::spin;

#[cfg(not(any(loom, feature = "meter")))]
pub(crate) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

#[cfg(all(feature = "meter", not(loom)))]
mod watched;
#[cfg(all(feature = "meter", not(loom)))]
pub(crate) use watched::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, lock_spinning, mutex,
    read_spinning, rwlock, write_spinning,
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

/// Takes a mutex, spinning before it sleeps.
#[cfg(any(loom, not(feature = "meter")))]
#[inline]
pub(crate) fn lock_spinning<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| {
        spin::until(|| !mutex.is_locked());
        mutex.lock()
    })
}

/// Takes a lock for reading, spinning before it sleeps.
#[cfg(any(loom, not(feature = "meter")))]
#[inline]
pub(crate) fn read_spinning<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.try_read().unwrap_or_else(|| {
        spin::until(|| !lock.is_locked_exclusive());
        lock.read()
    })
}

/// Takes a lock for writing, spinning before it sleeps.
#[cfg(any(loom, not(feature = "meter")))]
#[inline]
pub(crate) fn write_spinning<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.try_write().unwrap_or_else(|| {
        spin::until(|| !lock.is_locked());
        lock.write()
    })
}
