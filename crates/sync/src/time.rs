//! Clocks: one that only goes forward, and the one on the wall.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

/// Time since a fixed moment in the life of this process; never goes back.
#[must_use]
pub fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// Time since 1970-01-01 00:00 UTC by the system's clock, zero for a clock set before that.
#[must_use]
pub fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{now, since_epoch};

    #[test]
    fn time_does_not_go_back() {
        let first = now();
        assert!(now() >= first);
        assert!(since_epoch().as_secs() > 1_600_000_000);
    }
}
