//! A clock that is cheap to read: the processor's counter, on architectures where it is used.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// The counter now; never zero.
#[inline]
pub(crate) fn now() -> u64 {
    counter().max(1)
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Picoseconds per tick, measured once against the system's clock for some milliseconds.
#[allow(clippy::cast_precision_loss, reason = "53 bits are plenty for a rate")]
pub(crate) fn picoseconds_per_tick() -> f64 {
    static RATE: LazyLock<f64> = LazyLock::new(|| {
        let (start, first) = (Instant::now(), counter());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let ticks = counter().wrapping_sub(first).max(1);
        start.elapsed().as_nanos() as f64 * 1000.0 / ticks as f64
    });
    *RATE
}

/// Converts ticks to picoseconds.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a span of hours has 63 bits of picoseconds; its last digits mean nothing"
)]
pub(crate) fn to_picoseconds(ticks: u64) -> u64 {
    (ticks as f64 * picoseconds_per_tick()) as u64
}

/// Converts ticks to a duration.
pub(crate) fn to_duration(ticks: u64) -> Duration {
    Duration::from_nanos(to_picoseconds(ticks) / 1000)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{now, to_duration};

    #[test]
    fn ticks_and_the_clock_agree() {
        let (start, first) = (Instant::now(), now());
        std::thread::sleep(Duration::from_millis(30));
        let ours = to_duration(now() - first);
        let theirs = start.elapsed();
        // The thread may be preempted between the two reads, but not by a factor of three.
        assert!(ours <= theirs * 3 && theirs <= ours * 3 + Duration::from_millis(1));
        assert!(ours >= Duration::from_millis(20));
    }
}
