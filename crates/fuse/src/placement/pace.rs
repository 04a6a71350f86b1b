//! The pace of the calls of a caller that is followed.
//!
//! A caller that the scheduler has moved to another core than the thread that serves it calls at
//! half the rate or less. So a slower pace is a reason to query the caller's core at once, and
//! while the pace is kept, queries may be rare.

use std::time::{Duration, Instant};

/// Calls in one measurement.
const WINDOW: u32 = 8;

/// The time that [`WINDOW`] calls take.
pub(super) struct Pace {
    /// Calls in the current window.
    calls: u32,
    /// When it began.
    began: Instant,
    /// The shortest window since the pace slackened.
    shortest: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            calls: 0,
            began: now,
            shortest: Duration::MAX,
        }
    }

    /// Begins a new window: calls of the current one were delayed by the thread itself.
    pub(super) fn restart(&mut self, now: Instant) {
        self.calls = 0;
        self.began = now;
    }

    /// Notes a call. Returns whether the pace has slackened with it: a window took one and a half
    /// times as long as the shortest so far. This pace is then the one to compare with.
    pub(super) fn note(&mut self, now: Instant) -> bool {
        self.calls += 1;
        if self.calls < WINDOW {
            return false;
        }
        let took = now.saturating_duration_since(self.began);
        let has_slackened = took / 3 > self.shortest / 2;
        if has_slackened || took < self.shortest {
            self.shortest = took;
        }
        self.restart(now);
        has_slackened
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Pace, WINDOW};

    #[test]
    fn a_slower_pace_is_told_once() {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut window = |each: u64| {
            (0..WINDOW).fold(false, |told, _| {
                now += Duration::from_micros(each);
                told | pace.note(now)
            })
        };
        assert!(!window(10), "there is nothing to compare with");
        assert!(!window(14));
        assert!(window(16));
        assert!(!window(16), "the pace is known");
        assert!(!window(10));
        assert!(window(16), "it was faster again");
        assert!(!window(10));
        let sampled = now + Duration::from_micros(500);
        pace.restart(sampled);
        assert!(!(1..=WINDOW).any(|call| pace.note(sampled + Duration::from_micros(10) * call)));
    }
}
