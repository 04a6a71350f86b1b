//! The usage of a window: every lock and every line that several cores used.

use std::time::Duration;

use super::lines::Label;
use super::machine::Machine;
use crate::order::Class;

/// The use of one lock in a window.
#[derive(Clone, Debug)]
pub struct LockUsage {
    /// Its class.
    pub class: Class,
    /// How often it was taken.
    pub acquisitions: u64,
    /// How many of those acquisitions had to wait.
    pub contended: u64,
    /// How many try-locks failed.
    pub failures: u64,
    /// Time spent waiting, all cores together.
    pub waited: Duration,
    /// Time held for writing.
    pub held: Duration,
    /// What is left of one core's time for writing after the time of all others is set off against
    /// it: at least its lead over all others together, at most its own time.
    pub lead: Duration,
    /// Time held for reading, all readers together.
    pub read: Duration,
    /// Time in which it was free although cores waited for it: the next one had not yet seen the
    /// release, or not yet woken up.
    pub hand_over: Duration,
    /// Cores that took it.
    pub cores: usize,
}

/// The use of one cache line in a window.
#[derive(Clone, Debug)]
pub struct LineUsage {
    /// The class of the lock it belongs to.
    pub class: Option<Class>,
    /// For an atomic, the source location that wrote it last.
    pub site: String,
    /// How often it was transferred to another core.
    pub transfers: u64,
    /// Time during which a transfer was in progress.
    pub served: Duration,
    /// The part of it that a core waited for: less than all, if it requested the line ahead.
    pub awaited: Duration,
    /// Time that cores waited until the line was free for their transfer.
    pub waited: Duration,
    /// Cores that it was transferred to.
    pub cores: usize,
}

/// The usage of a window.
#[derive(Clone, Debug)]
pub struct Usage {
    /// Length of the window by the clock of the core that closed it.
    pub elapsed: Duration,
    /// Every lock that was used.
    pub locks: Vec<LockUsage>,
    /// Every line that was transferred between cores.
    pub lines: Vec<LineUsage>,
    /// How long all cores together waited at each source location for something that is no lock,
    /// asleep or spinning; the longest first.
    pub other_waits: Vec<(String, Duration)>,
    /// How long all cores together waited for locks of each class and for the lines of the locks
    /// themselves, by the source location of the call; the longest first.
    pub lock_waits: Vec<(Class, String, Duration)>,
    /// Steps, of which `unknown_steps` ended a stretch that no real thread took in the calibration.
    pub steps: u64,
    /// See [`Usage::steps`].
    pub unknown_steps: u64,
    /// Time of all stretches, of which `unknown_stretches` have no measured cost.
    pub stretches: Duration,
    /// See [`Usage::stretches`].
    pub unknown_stretches: Duration,
}

fn duration(picoseconds: u64) -> Duration {
    Duration::from_nanos(picoseconds / 1000)
}

impl Usage {
    pub(super) fn of(machine: &Machine) -> Self {
        let clock = machine.cores[machine.current].clock;
        let mut locks: Vec<LockUsage> = machine
            .locks
            .values()
            .filter(|lock| lock.counts.acquisitions + lock.counts.failures > 0)
            .map(|lock| LockUsage {
                class: lock.class,
                acquisitions: lock.counts.acquisitions,
                contended: lock.counts.contended,
                failures: lock.counts.failures,
                waited: duration(lock.counts.waited),
                held: duration(lock.counts.held),
                lead: duration(lock.counts.lead),
                read: duration(lock.counts.read),
                hand_over: duration(lock.counts.hand_over),
                cores: lock.counts.cores.len(),
            })
            .collect();
        locks.sort_by_key(|lock| (std::cmp::Reverse(lock.held), lock.class, lock.acquisitions));
        let other_waits = machine.waits.iter();
        let mut other_waits: Vec<_> = other_waits
            .map(|((file, line), &time)| (format!("{file}:{line}"), duration(time)))
            .collect();
        other_waits.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let lock_waits = machine.lock_waits.iter();
        let mut lock_waits: Vec<_> = lock_waits
            .map(|((class, file, line), &time)| (*class, format!("{file}:{line}"), duration(time)))
            .collect();
        lock_waits.sort_by_key(|(_, _, time)| std::cmp::Reverse(*time));
        let spent = machine.spent;
        Self {
            elapsed: duration(clock.saturating_sub(machine.window)),
            locks,
            lines: lines(machine),
            other_waits,
            lock_waits,
            steps: spent.steps,
            unknown_steps: spent.unknown_steps,
            stretches: duration(spent.stretches),
            unknown_stretches: duration(spent.unknown_stretches),
        }
    }
}

fn lines(machine: &Machine) -> Vec<LineUsage> {
    let used = machine
        .lines
        .iter()
        .filter(|(_, line)| line.usage.transfers > 0);
    let mut lines: Vec<LineUsage> = used
        .map(|(_, line)| {
            let (class, site) = match line.label {
                Label::Lock(class) => (Some(class), String::new()),
                Label::At(site) => (None, format!("{}:{}", site.file(), site.line())),
            };
            LineUsage {
                class,
                site,
                transfers: line.usage.transfers,
                served: duration(line.usage.served),
                awaited: duration(line.usage.awaited),
                waited: duration(line.usage.waited),
                cores: line.usage.cores.len(),
            }
        })
        .collect();
    lines.sort_by(|one, other| {
        let key = |line: &LineUsage| (std::cmp::Reverse(line.served), line.transfers);
        key(one)
            .cmp(&key(other))
            .then_with(|| one.site.cmp(&other.site))
    });
    lines
}
