//! What a window used: every lock and every line that more than one core had to do with.

use std::time::Duration;

use super::lines::Label;
use super::machine::Machine;
use crate::order::Class;

/// One lock in a window.
#[derive(Clone, Debug)]
pub struct LockUsage {
    /// Its class.
    pub class: Class,
    /// How often it was taken.
    pub acquisitions: u64,
    /// How many of those waited.
    pub contended: u64,
    /// How often trying failed.
    pub failures: u64,
    /// Time spent waiting, all cores together.
    pub waited: Duration,
    /// Time held for writing.
    pub held: Duration,
    /// By how much longer than all others together one core held it for writing, at the least.
    pub lead: Duration,
    /// Time held for reading, all readers together.
    pub read: Duration,
    /// Cores that took it.
    pub cores: usize,
}

/// One cache line in a window.
#[derive(Clone, Debug)]
pub struct LineUsage {
    /// The class of the lock it belongs to.
    pub class: Option<Class>,
    /// The place that touched it last, for an atomic.
    pub site: String,
    /// How often it went to another core.
    pub transfers: u64,
    /// Time in which it was on its way.
    pub served: Duration,
    /// Time that cores waited for their turn.
    pub waited: Duration,
    /// Cores it went to.
    pub cores: usize,
}

/// What a window used.
#[derive(Clone, Debug)]
pub struct Usage {
    /// From the opening of the window to its end, by the clock of whoever asked.
    pub elapsed: Duration,
    /// Every lock that was used.
    pub locks: Vec<LockUsage>,
    /// Every line that went from core to core.
    pub lines: Vec<LineUsage>,
    /// How long cores, all together, waited at each place for what is no lock, asleep or spinning; the longest
    /// first.
    pub other_waits: Vec<(String, Duration)>,
    /// Steps, and how many of them ended a stretch that no real thread was seen to take.
    pub steps: u64,
    /// See [`Usage::steps`].
    pub unknown_steps: u64,
    /// Time of all stretches, and of those that were never seen.
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
                cores: lock.counts.cores.len(),
            })
            .collect();
        locks.sort_by_key(|lock| (std::cmp::Reverse(lock.held), lock.class, lock.acquisitions));
        let other_waits = machine.waits.iter();
        let mut other_waits: Vec<_> = other_waits
            .map(|((file, line), &time)| (format!("{file}:{line}"), duration(time)))
            .collect();
        other_waits.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let spent = machine.spent;
        Self {
            elapsed: duration(clock.saturating_sub(machine.window)),
            locks,
            lines: lines(machine),
            other_waits,
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
