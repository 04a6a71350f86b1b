//! The clocks of the measurements. They are the system's own even where the engine's time is
//! virtual, and the same in every process of a run, so that all tasks can be given one moment.

use std::time::Duration;

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// `/proc/stat` counts in hundredths of a second on every Linux that we know.
const TICK: Duration = Duration::from_millis(10);

/// Nanoseconds of the monotonic clock.
#[must_use]
pub fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// CPU time of this thread in nanoseconds, user and system.
#[must_use]
pub fn thread_cpu() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of this process in nanoseconds, user and system.
#[must_use]
pub fn process_cpu() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// Times of all processors of this machine together, in nanoseconds since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTimes {
    /// Working for anybody.
    pub busy: u64,
    /// Ready to work, while the hypervisor ran another machine.
    pub stolen: u64,
    /// All time, idle time included.
    pub all: u64,
}

/// The times of this machine's processors, if the system reports them.
#[must_use]
pub fn machine_times() -> Option<MachineTimes> {
    let told = std::fs::read_to_string("/proc/stat").ok()?;
    times(&told)
}

/// CPU time of everything on this machine in nanoseconds, if the system reports it.
#[must_use]
pub fn machine_cpu() -> Option<u64> {
    machine_times().map(|times| times.busy)
}

/// The times in the first line: user, nice, system, idle, iowait, irq, softirq, steal. The two that
/// follow, of guests, are parts of the first two.
fn times(stat: &str) -> Option<MachineTimes> {
    let numbers: Option<Vec<u64>> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    let numbers = numbers?;
    let sum = |places: &[usize]| -> Option<u64> {
        let ticks: Option<u64> = places.iter().map(|&at| numbers.get(at)).sum();
        ticks.map(|ticks| ticks * as_nanoseconds(TICK))
    };
    Some(MachineTimes {
        busy: sum(&[0, 1, 2, 5, 6])?,
        stolen: sum(&[7])?,
        all: sum(&[0, 1, 2, 3, 4, 5, 6, 7])?,
    })
}

/// Sleeps until [`now`] reaches `moment`.
pub fn wait_until(moment: u64) {
    let request = Timespec {
        tv_sec: i64::try_from(moment / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(moment % 1_000_000_000).unwrap_or(0),
    };
    while now() < moment {
        // A signal may interrupt the sleep; the loop tries again.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
    }
}

/// A duration in nanoseconds.
#[must_use]
pub fn as_nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn nanoseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{MachineTimes, now, times, wait_until};

    #[test]
    fn busy_is_all_but_idle_waiting_and_stolen() {
        let stat = "cpu  1 20 300 4000 50000 600000 6000000 7000000 9 9\ncpu0 1 1 1 1 1 1 1\n";
        let tick = 10_000_000;
        let expected = MachineTimes {
            busy: 6_600_321 * tick,
            stolen: 7_000_000 * tick,
            all: 13_654_321 * tick,
        };
        assert_eq!(times(stat), Some(expected));
        assert_eq!(times("cpu  1 2"), None);
        assert_eq!(times(""), None);
    }

    #[test]
    fn waiting_is_never_too_short() {
        let moment = now() + 1_000_000;
        wait_until(moment);
        assert!(now() >= moment);
    }
}
