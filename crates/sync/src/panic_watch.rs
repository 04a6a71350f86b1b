//! Whether a thread has begun to panic since a certain moment.
//!
//! What a guard's destructor does after a panic is for panics of what it guards. A destructor of
//! the caller, which runs because the caller panics, may use a guard as well; then the thread is
//! panicking already when the guard is made, and nothing of what it guards has failed.

use std::thread::panicking;

/// Watches the thread that makes it.
#[derive(Debug)]
pub struct PanicWatch {
    began_in_panic: bool,
}

impl PanicWatch {
    /// Watches from now on.
    #[must_use]
    pub fn new() -> Self {
        Self {
            began_in_panic: panicking(),
        }
    }

    /// Whether this thread, the one that made it, is panicking and was not then.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        panicking() && !self.began_in_panic
    }
}

impl Default for PanicWatch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::PanicWatch;

    /// Notes what its watch sees when it is dropped.
    struct Guard<'a>(PanicWatch, &'a mut Vec<bool>);

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.1.push(self.0.has_panicked());
        }
    }

    /// Makes a guard when it is dropped.
    struct Late<'a>(&'a mut Vec<bool>);

    impl Drop for Late<'_> {
        fn drop(&mut self) {
            drop(Guard(PanicWatch::new(), self.0));
        }
    }

    #[test]
    fn only_a_panic_that_begins_later_counts() {
        let (mut during, mut late) = (Vec::new(), Vec::new());
        drop(Guard(PanicWatch::new(), &mut during));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _during = Guard(PanicWatch::new(), &mut during);
            let _late = Late(&mut late);
            panic!("of the caller");
        }));
        assert!(panicked.is_err());
        assert_eq!((during, late), (vec![false, true], vec![false]));
    }
}
