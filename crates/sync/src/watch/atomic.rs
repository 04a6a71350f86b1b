//! The standard library's atomics, with a call to [`crate::watch`] at every access.

use std::fmt;
use std::panic::Location;
use std::sync::atomic as real;

use crate::watch::{Action, access};

pub use real::{Ordering, fence};

/// The methods that all atomics have.
macro_rules! watched {
    ($name:ident, $inner:ty, $value:ty $(, $parameter:ident)?) => {
        /// As the standard library's type; every access is observed.
        #[repr(transparent)]
        pub struct $name$(<$parameter>)? {
            inner: $inner,
        }

        impl$(<$parameter>)? $name$(<$parameter>)? {
            /// An atomic with this value.
            pub const fn new(value: $value) -> Self {
                Self { inner: <$inner>::new(value) }
            }

            fn address(&self) -> usize {
                std::ptr::from_ref(self).addr()
            }

            /// Reads.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                let site = Location::caller();
                access(self.address(), Action::Load, site, || self.inner.load(order))
            }

            /// Writes.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                let site = Location::caller();
                access(self.address(), Action::Write, site, || self.inner.store(value, order));
            }

            /// Writes and returns the previous value.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                let site = Location::caller();
                access(self.address(), Action::Write, site, || self.inner.swap(value, order))
            }

            /// Writes `new` if the value is `current`.
            ///
            /// # Errors
            ///
            /// The value, if it is another one.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let site = Location::caller();
                access(self.address(), Action::Write, site, || {
                    self.inner.compare_exchange(current, new, success, failure)
                })
            }

            /// As `compare_exchange`; this implementation never fails spuriously.
            ///
            /// # Errors
            ///
            /// The value, if it is another one.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                // A run on virtual cores must repeat exactly, so there are no spurious failures.
                let site = Location::caller();
                access(self.address(), Action::Write, site, || {
                    self.inner.compare_exchange(current, new, success, failure)
                })
            }

            /// Replaces the value by the result of `update` on it, retrying after concurrent
            /// changes.
            ///
            /// # Errors
            ///
            /// The value, if `update` returned `None` for it.
            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(next) = update(seen) {
                    match self.compare_exchange_weak(seen, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(other) => seen = other,
                    }
                }
                Err(seen)
            }

            /// The value, without an atomic access, which `&mut self` makes unnecessary.
            pub fn get_mut(&mut self) -> &mut $value {
                self.inner.get_mut()
            }

            /// The value.
            pub fn into_inner(self) -> $value {
                self.inner.into_inner()
            }
        }

        impl$(<$parameter>)? fmt::Debug for $name$(<$parameter>)? {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(formatter)
            }
        }
    };
}

/// Read-modify-writes of numbers and booleans.
macro_rules! updates {
    ($name:ident, $value:ty, $($method:ident),+) => {
        impl $name {
            $(
                /// As its namesake of the standard library.
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    let site = Location::caller();
                    access(self.address(), Action::Write, site, || self.inner.$method(value, order))
                }
            )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$value>::default())
            }
        }
    };
}

watched!(AtomicBool, real::AtomicBool, bool);
updates!(AtomicBool, bool, fetch_and, fetch_or, fetch_xor);
watched!(AtomicI32, real::AtomicI32, i32);
updates!(
    AtomicI32, i32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min
);
watched!(AtomicI64, real::AtomicI64, i64);
updates!(
    AtomicI64, i64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min
);
watched!(AtomicU8, real::AtomicU8, u8);
updates!(
    AtomicU8, u8, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min
);
watched!(AtomicU16, real::AtomicU16, u16);
updates!(
    AtomicU16, u16, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min
);
watched!(AtomicU32, real::AtomicU32, u32);
updates!(
    AtomicU32, u32, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min
);
watched!(AtomicU64, real::AtomicU64, u64);
updates!(
    AtomicU64, u64, fetch_add, fetch_sub, fetch_and, fetch_or, fetch_max, fetch_min
);
watched!(AtomicUsize, real::AtomicUsize, usize);
updates!(
    AtomicUsize,
    usize,
    fetch_add,
    fetch_sub,
    fetch_and,
    fetch_or,
    fetch_max,
    fetch_min
);
watched!(AtomicPtr, real::AtomicPtr<T>, *mut T, T);
