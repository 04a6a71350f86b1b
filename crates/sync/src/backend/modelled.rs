//! The locks of the model checker, with the calls of `parking_lot`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(crate) use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

const UNPOISONED: &str = "a model ends with the first panic, so nothing is seen poisoned";

pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

/// `None` only while a condition variable waits with the guard.
pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect(UNPOISONED)))
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.try_lock().is_err()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect(UNPOISONED)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().expect(UNPOISONED)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
            .as_ref()
            .expect("the guard is back when the wait ends")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0
            .as_mut()
            .expect("the guard is back when the wait ends")
    }
}

pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(UNPOISONED)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(UNPOISONED)
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.0.try_write().ok()
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.try_write().is_err()
    }

    pub(crate) fn is_locked_exclusive(&self) -> bool {
        self.0.try_read().is_err()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect(UNPOISONED)
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().expect(UNPOISONED)
    }
}

pub(crate) struct Condvar(loom::sync::Condvar);

/// A model has no clock: a wait never times out.
pub(crate) struct WaitTimeoutResult;

impl WaitTimeoutResult {
    pub(crate) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.0.take().expect("a guard outside a wait is whole");
        guard.0 = Some(self.0.wait(inner).expect(UNPOISONED));
    }

    pub(crate) fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _timeout: Duration,
    ) -> WaitTimeoutResult {
        self.wait(guard);
        WaitTimeoutResult
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
