//! The callers that one thread serves.
//!
//! A process counts as the sole caller after [`SOLE_CALLER_RUN`] calls in a row, even if others
//! call before and after: processes that make names in one directory hold it in turn, for
//! milliseconds each. If two processes call alternately, neither is the sole caller.
//! [`CROWD_CALLERS`] callers in a short time are a crowd.

use pext4_sync::time;

/// Calls in a row that make a process the sole caller.
const SOLE_CALLER_RUN: u32 = 8;
/// So many different callers within [`CROWD_MS`] are a crowd.
const CROWD_CALLERS: usize = 9;
const CROWD_MS: u32 = 100;

/// The callers of one serving thread.
pub(super) struct Callers {
    current: u32,
    /// The caller before the current one; 0 if there was none.
    previous: u32,
    /// Calls of the current caller in a row.
    run: u32,
    /// The last callers, the newest first, each with the start of its last run in milliseconds.
    recent: [(u32, u32); CROWD_CALLERS],
}

impl Callers {
    pub(super) fn new() -> Self {
        Self {
            current: 0,
            previous: 0,
            run: 0,
            recent: [(0, 0); CROWD_CALLERS],
        }
    }

    /// Notes a call. Returns whether to publish the caller to the other threads: when it changes,
    /// and after every [`SOLE_CALLER_RUN`] calls.
    pub(super) fn note(&mut self, caller: u32) -> bool {
        if caller == self.current {
            self.run = self.run.saturating_add(1);
            return self.run.is_multiple_of(SOLE_CALLER_RUN);
        }
        self.previous = self.current;
        self.current = caller;
        self.run = 1;
        let known = self.recent.iter().position(|&(other, _)| other == caller);
        let end = known.unwrap_or(CROWD_CALLERS - 1);
        self.recent[..=end].rotate_right(1);
        self.recent[0] = (caller, milliseconds());
        true
    }

    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// The caller before the current one; 0 if there was none.
    pub(super) fn previous(&self) -> u32 {
        self.previous
    }

    /// Whether the last call made the current caller the sole one.
    pub(super) fn just_became_sole(&self) -> bool {
        self.run == SOLE_CALLER_RUN
    }

    /// Whether the current caller is the sole one.
    pub(super) fn is_sole_caller(&self) -> bool {
        self.run >= SOLE_CALLER_RUN
    }

    pub(super) fn is_crowd(&self) -> bool {
        let (oldest, when) = self.recent[CROWD_CALLERS - 1];
        oldest != 0 && milliseconds().wrapping_sub(when) <= CROWD_MS
    }
}

/// The time in milliseconds; it wraps around after 49 days.
pub(super) fn milliseconds() -> u32 {
    u32::try_from(time::now().as_millis() & u128::from(u32::MAX)).expect("masked")
}

#[cfg(test)]
mod tests {
    use super::{CROWD_CALLERS, CROWD_MS, Callers};

    #[test]
    fn a_run_of_calls_makes_a_caller_the_only_one() {
        let mut callers = Callers::new();
        for round in 0..3 {
            for caller in [7, 8] {
                assert!(callers.note(caller), "another one calls");
                for call in 2..=20 {
                    assert_eq!(callers.is_sole_caller(), call > 8, "{round}, {call}");
                    callers.note(caller);
                    assert_eq!(callers.just_became_sole(), call == 8);
                }
                assert_eq!(callers.current(), caller);
            }
            assert_eq!(callers.previous(), 7);
        }
        assert!(!callers.is_crowd());
    }

    #[test]
    fn many_callers_are_a_crowd_for_a_while() {
        let mut callers = Callers::new();
        for caller in (1..=8).chain(1..=8) {
            callers.note(caller);
        }
        assert!(!callers.is_crowd(), "eight");
        callers.note(9);
        assert!(callers.is_crowd());
        callers.recent[CROWD_CALLERS - 1].1 = callers.recent[0].1.wrapping_sub(CROWD_MS + 1);
        assert!(!callers.is_crowd(), "one of them is gone");
    }
}
