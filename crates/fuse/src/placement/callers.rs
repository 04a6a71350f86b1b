//! The callers that one thread serves.
//!
//! A process counts as the sole caller after [`SOLE_CALLER_RUN`] calls in a row, and as alone if
//! they have lasted for [`ALONE_MS`]. Processes that make names in one directory hold it in turn,
//! for up to a few milliseconds each, and are never alone.

use pext4_sync::time;

/// Calls in a row that make a process the sole caller.
const SOLE_CALLER_RUN: u32 = 8;
/// For how long, in milliseconds, a process that is alone has been the sole caller.
pub(super) const ALONE_MS: u32 = 20;

/// The callers of one serving thread.
pub(super) struct Callers {
    current: u32,
    /// Calls of the current caller in a row.
    run: u32,
    /// When they began, by [`milliseconds`].
    since: u32,
}

impl Callers {
    pub(super) fn new() -> Self {
        Self {
            current: 0,
            run: 0,
            since: milliseconds(),
        }
    }

    /// Notes a call. Returns whether to publish the caller to the other threads: when it changes,
    /// and after every [`SOLE_CALLER_RUN`] calls.
    pub(super) fn note(&mut self, caller: u32) -> bool {
        if caller == self.current {
            self.run = self.run.saturating_add(1);
            return self.run.is_multiple_of(SOLE_CALLER_RUN);
        }
        *self = Self {
            current: caller,
            run: 1,
            since: milliseconds(),
        };
        true
    }

    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// Whether this process has made the last calls.
    pub(super) fn is_sole(&self, caller: u32) -> bool {
        self.current == caller && self.run >= SOLE_CALLER_RUN
    }

    /// Whether the current caller has been the sole one for a while.
    pub(super) fn is_alone(&self) -> bool {
        self.is_sole(self.current) && milliseconds().wrapping_sub(self.since) >= ALONE_MS
    }
}

/// The time in milliseconds; it wraps around after 49 days.
pub(super) fn milliseconds() -> u32 {
    u32::try_from(time::now().as_millis() & u128::from(u32::MAX)).expect("masked")
}

#[cfg(test)]
mod tests {
    use super::{ALONE_MS, Callers};

    #[test]
    fn a_run_of_calls_makes_a_caller_the_sole_one() {
        let mut callers = Callers::new();
        for round in 0..3 {
            for (caller, other) in [(7, 8), (8, 7)] {
                assert!(callers.note(caller), "another one calls");
                for call in 2..=20 {
                    assert_eq!(callers.is_sole(caller), call > 8, "{round}, {call}");
                    assert!(!callers.is_sole(other));
                    callers.note(caller);
                }
                assert_eq!(callers.current(), caller);
            }
        }
    }

    #[test]
    fn a_caller_is_alone_after_a_while() {
        let mut callers = Callers::new();
        for _ in 0..20 {
            callers.note(7);
        }
        callers.since = callers.since.wrapping_sub(ALONE_MS);
        assert!(callers.is_alone());
        callers.note(8);
        callers.note(7);
        assert!(!callers.is_alone(), "it shares the thread");
    }
}
