//! Whom a serving thread serves.
//!
//! One process has a thread for itself as long as it calls again and again ([`RUN`]), though others call before and
//! after: processes that make names in one directory hold it by turns, for milliseconds each. Two processes that change
//! from call to call are told as two. A crowd ([`CROWD`]) is told as such.

use pext4_sync::time;

/// Calls in a row that make a caller the only one for now.
const RUN: u32 = 8;
/// So many callers within [`CROWD_MS`] are a crowd.
const CROWD: usize = 9;
const CROWD_MS: u32 = 100;

/// The callers of one serving thread.
pub(super) struct Callers {
    current: u32,
    /// Who called last before the current one did; 0 is nobody.
    other: u32,
    /// Calls in a row.
    run: u32,
    /// Callers and when each began to call last, in milliseconds; the newest first.
    recent: [(u32, u32); CROWD],
}

impl Callers {
    pub(super) fn new() -> Self {
        Self {
            current: 0,
            other: 0,
            run: 0,
            recent: [(0, 0); CROWD],
        }
    }

    /// Notes a call; whether the other threads are to hear of it: each change, and each so many calls.
    pub(super) fn note(&mut self, caller: u32) -> bool {
        if caller == self.current {
            self.run = self.run.saturating_add(1);
            return self.run.is_multiple_of(RUN);
        }
        self.other = self.current;
        self.current = caller;
        self.run = 1;
        let known = self.recent.iter().position(|&(other, _)| other == caller);
        let end = known.unwrap_or(CROWD - 1);
        self.recent[..=end].rotate_right(1);
        self.recent[0] = (caller, milliseconds());
        true
    }

    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// Who called before the current one.
    pub(super) fn other(&self) -> u32 {
        self.other
    }

    /// Whether this call made the current caller the only one for now.
    pub(super) fn is_alone_since_now(&self) -> bool {
        self.run == RUN
    }

    /// Whether the current caller has called so often in a row that it is the only one for now.
    pub(super) fn is_alone(&self) -> bool {
        self.run >= RUN
    }

    pub(super) fn are_a_crowd(&self) -> bool {
        let (oldest, when) = self.recent[CROWD - 1];
        oldest != 0 && milliseconds().wrapping_sub(when) <= CROWD_MS
    }
}

/// The time, good enough for differences of days.
pub(super) fn milliseconds() -> u32 {
    u32::try_from(time::now().as_millis() & u128::from(u32::MAX)).expect("masked")
}

#[cfg(test)]
mod tests {
    use super::{CROWD, CROWD_MS, Callers};

    #[test]
    fn a_run_of_calls_makes_a_caller_the_only_one() {
        let mut callers = Callers::new();
        for round in 0..3 {
            for caller in [7, 8] {
                assert!(callers.note(caller), "another one calls");
                for call in 2..=20 {
                    assert_eq!(callers.is_alone(), call > 8, "{round}, {call}");
                    callers.note(caller);
                    assert_eq!(callers.is_alone_since_now(), call == 8);
                }
                assert_eq!(callers.current(), caller);
            }
            assert_eq!(callers.other(), 7);
        }
        assert!(!callers.are_a_crowd());
    }

    #[test]
    fn many_callers_are_a_crowd_for_a_while() {
        let mut callers = Callers::new();
        for caller in (1..=8).chain(1..=8) {
            callers.note(caller);
        }
        assert!(!callers.are_a_crowd(), "eight");
        callers.note(9);
        assert!(callers.are_a_crowd());
        callers.recent[CROWD - 1].1 = callers.recent[0].1.wrapping_sub(CROWD_MS + 1);
        assert!(!callers.are_a_crowd(), "one of them is gone");
    }
}
