//! The locks that each thread holds: the checker for [`crate::order`].
//!
//! A lock has a [`Tag`] (its class), a guard has a [`Held`] (its entry on the thread's stack).
//! Without the feature `lock-order`, under loom and on virtual cores (whose threads share one
//! thread of the system), both are empty and every function here does nothing.

#[cfg(all(feature = "lock-order", not(any(loom, feature = "virtual"))))]
pub(crate) use checked::{Held, Tag, check, start, stop};
#[cfg(not(all(feature = "lock-order", not(any(loom, feature = "virtual")))))]
pub(crate) use unchecked::{Held, Tag, check, start, stop};

#[cfg(all(feature = "lock-order", not(any(loom, feature = "virtual"))))]
mod checked {
    use std::cell::RefCell;
    use std::fmt;

    use crate::order::Class;

    thread_local! {
        static STACK: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
    }

    /// One held lock, or an open handle.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Entry {
        class: Class,
        key: Option<u64>,
    }

    impl Entry {
        /// Whether a thread that holds `self` may wait for `next`.
        fn allows(self, next: Self) -> bool {
            let ascending = matches!((self.key, next.key), (Some(own), Some(other)) if own < other);
            self.class < next.class || (self.class == next.class && ascending)
        }
    }

    impl fmt::Display for Entry {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.key {
                Some(key) => write!(formatter, "{:?} {key}", self.class),
                None => write!(formatter, "{:?}", self.class),
            }
        }
    }

    /// The class of a lock.
    pub(crate) struct Tag(Class);

    impl Tag {
        pub(crate) fn new(class: Class) -> Self {
            Self(class)
        }

        /// Checks that the thread may wait for the lock, and notes it as held.
        #[track_caller]
        pub(crate) fn take(&self, key: Option<u64>) -> Held {
            let entry = Entry { class: self.0, key };
            verify(entry);
            Held::push(entry)
        }

        /// Notes a lock that was taken without waiting.
        pub(crate) fn note(&self, key: Option<u64>) -> Held {
            Held::push(Entry { class: self.0, key })
        }
    }

    /// The entry of one guard; dropping it removes the entry from the stack, at whatever position.
    pub(crate) struct Held(Entry);

    impl Held {
        fn push(entry: Entry) -> Self {
            STACK.with_borrow_mut(|stack| stack.push(entry));
            Self(entry)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            remove(self.0);
        }
    }

    fn remove(entry: Entry) {
        // When a thread ends, a guard in a thread-local may be dropped after the stack.
        let _ = STACK.try_with(|stack| {
            let mut stack = stack.borrow_mut();
            if let Some(position) = stack.iter().rposition(|held| *held == entry) {
                stack.remove(position);
            }
        });
    }

    #[track_caller]
    fn verify(next: Entry) {
        let offender =
            STACK.with_borrow(|stack| stack.iter().copied().find(|held| !held.allows(next)));
        // While unwinding, a second panic would abort the process and hide the first.
        if let (Some(held), false) = (offender, std::thread::panicking()) {
            panic!("lock order: {next} is taken while {held} is held");
        }
    }

    #[track_caller]
    pub(crate) fn check(class: Class) {
        verify(Entry { class, key: None });
    }

    #[track_caller]
    pub(crate) fn start(class: Class) {
        check(class);
        STACK.with_borrow_mut(|stack| stack.push(Entry { class, key: None }));
    }

    pub(crate) fn stop(class: Class) {
        remove(Entry { class, key: None });
    }
}

#[cfg(not(all(feature = "lock-order", not(any(loom, feature = "virtual")))))]
mod unchecked {
    use crate::order::Class;

    pub(crate) struct Tag;

    impl Tag {
        #[inline]
        pub(crate) fn new(_class: Class) -> Self {
            Self
        }

        #[inline]
        pub(crate) fn take(&self, _key: Option<u64>) -> Held {
            Held
        }

        #[inline]
        pub(crate) fn note(&self, _key: Option<u64>) -> Held {
            Held
        }
    }

    pub(crate) struct Held;

    #[inline]
    pub(crate) fn check(_class: Class) {}

    #[inline]
    pub(crate) fn start(_class: Class) {}

    #[inline]
    pub(crate) fn stop(_class: Class) {}
}
