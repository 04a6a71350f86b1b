//! The locks of `parking_lot`, with a call to [`crate::watch`] whenever one is taken, tried,
//! released or waited with.

use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

use crate::order::Class;
use crate::watch::{self, Hold, LockUse};

pub(crate) struct Mutex<T> {
    class: Class,
    inner: parking_lot::Mutex<T>,
}

/// The order of the fields matters: the lock is released before `hold` reports it.
pub(crate) struct MutexGuard<'a, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    hold: Hold,
}

/// A mutex of this class.
pub(crate) fn mutex<T>(class: Class, value: T) -> Mutex<T> {
    let inner = parking_lot::Mutex::new(value);
    Mutex { class, inner }
}

impl<T> Mutex<T> {
    #[track_caller]
    fn lock_use(&self) -> LockUse {
        LockUse::new(self, self.class, true, Location::caller())
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let (inner, hold) = watch::take(
            self.lock_use(),
            || self.inner.try_lock(),
            || self.inner.lock(),
        );
        MutexGuard { inner, hold }
    }

    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let (inner, hold) = watch::try_take(self.lock_use(), || self.inner.try_lock())?;
        Some(MutexGuard { inner, hold })
    }

    #[track_caller]
    pub(crate) fn is_locked(&self) -> bool {
        watch::is_held(&self.lock_use(), || self.inner.is_locked())
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

pub(crate) struct RwLock<T> {
    class: Class,
    inner: parking_lot::RwLock<T>,
}

/// The order of the fields matters: the lock is released before `_hold` reports it.
pub(crate) struct RwLockReadGuard<'a, T> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _hold: Hold,
}

/// The order of the fields matters: the lock is released before `_hold` reports it.
pub(crate) struct RwLockWriteGuard<'a, T> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _hold: Hold,
}

/// A reader-writer lock of this class.
pub(crate) fn rwlock<T>(class: Class, value: T) -> RwLock<T> {
    let inner = parking_lot::RwLock::new(value);
    RwLock { class, inner }
}

impl<T> RwLock<T> {
    #[track_caller]
    fn lock_use(&self, exclusive: bool) -> LockUse {
        LockUse::new(self, self.class, exclusive, Location::caller())
    }

    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        let lock_use = self.lock_use(false);
        let (inner, _hold) = watch::take(lock_use, || self.inner.try_read(), || self.inner.read());
        RwLockReadGuard { inner, _hold }
    }

    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        let lock_use = self.lock_use(true);
        let (inner, _hold) =
            watch::take(lock_use, || self.inner.try_write(), || self.inner.write());
        RwLockWriteGuard { inner, _hold }
    }

    #[track_caller]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let (inner, _hold) = watch::try_take(self.lock_use(false), || self.inner.try_read())?;
        Some(RwLockReadGuard { inner, _hold })
    }

    #[track_caller]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let (inner, _hold) = watch::try_take(self.lock_use(true), || self.inner.try_write())?;
        Some(RwLockWriteGuard { inner, _hold })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    pub(crate) fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Takes a mutex, spinning before it sleeps.
#[track_caller]
pub(crate) fn lock_spinning<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let raw = &mutex.inner;
    let (is_taken, wait) = (|| raw.is_locked(), || raw.lock());
    let (inner, hold) = watch::take_spinning(mutex.lock_use(), || raw.try_lock(), is_taken, wait);
    MutexGuard { inner, hold }
}

/// Takes a lock for reading, spinning before it sleeps.
#[track_caller]
pub(crate) fn read_spinning<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    let (lock_use, raw) = (lock.lock_use(false), &lock.inner);
    let (is_taken, wait) = (|| raw.is_locked_exclusive(), || raw.read());
    let (inner, _hold) = watch::take_spinning(lock_use, || raw.try_read(), is_taken, wait);
    RwLockReadGuard { inner, _hold }
}

/// Takes a lock for writing, spinning before it sleeps.
#[track_caller]
pub(crate) fn write_spinning<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    let (lock_use, raw) = (lock.lock_use(true), &lock.inner);
    let (is_taken, wait) = (|| raw.is_locked(), || raw.write());
    let (inner, _hold) = watch::take_spinning(lock_use, || raw.try_write(), is_taken, wait);
    RwLockWriteGuard { inner, _hold }
}

pub(crate) struct Condvar {
    inner: parking_lot::Condvar,
}

/// Whether a wait ended because its time ran out.
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self {
            inner: parking_lot::Condvar::new(),
        }
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at_most(guard, None);
    }

    pub(crate) fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Duration,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(self.wait_at_most(guard, Some(timeout)))
    }

    fn wait_at_most<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Option<Duration>) -> bool {
        let MutexGuard { inner, hold } = guard;
        #[cfg(feature = "virtual")]
        if crate::virtual_cores::is_inside() {
            let key = std::ptr::from_ref(self).addr();
            return parking_lot::MutexGuard::unlocked(inner, || {
                crate::virtual_cores::wait(key, &hold.lock_use, timeout)
            });
        }
        hold.pause();
        let timed_out = match timeout {
            None => {
                self.inner.wait(inner);
                false
            }
            Some(timeout) => self.inner.wait_for(inner, timeout).timed_out(),
        };
        hold.resume();
        timed_out
    }

    pub(crate) fn notify_one(&self) {
        #[cfg(feature = "virtual")]
        if crate::virtual_cores::is_inside() {
            crate::virtual_cores::notify(std::ptr::from_ref(self).addr(), 1);
            return;
        }
        self.inner.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        #[cfg(feature = "virtual")]
        if crate::virtual_cores::is_inside() {
            crate::virtual_cores::notify(std::ptr::from_ref(self).addr(), usize::MAX);
            return;
        }
        self.inner.notify_all();
    }
}
