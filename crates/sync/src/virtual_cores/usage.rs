//! The usage of a window: every lock and every line that several cores used.
//!
//! A lock or a line is one object from its first use until its memory is freed, not an address:
//! objects of many tasks that have the same memory one after another share nothing.

use std::time::Duration;

use super::lines::{Label, LineCounts};
use super::machine::Machine;
use super::work::WorkUsage;
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
    /// The part of it in which the holder waited for other locks, or for lines that were on their
    /// way to others. For the lock's own lines it waits as a part of its work.
    pub elsewhere: Duration,
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
    /// Every lock that was used, but those whose memory was freed and for which no core waited.
    pub locks: Vec<LockUsage>,
    /// Every line that was transferred between cores, but those in `freed_lines`.
    pub lines: Vec<LineUsage>,
    /// The lines whose memory was freed and for which no core waited: one sum, of no cores, for
    /// each class and source location.
    pub freed_lines: Vec<LineUsage>,
    /// How long all cores together waited at each source location for something that is no lock,
    /// asleep or spinning; the longest first.
    pub other_waits: Vec<(String, Duration)>,
    /// How long all cores together waited for locks of each class and for the lines of the locks
    /// themselves, by the source location of the call; the longest first.
    pub lock_waits: Vec<(Class, String, Duration)>,
    /// The stretches of code in which cores worked; the longest first.
    pub work: Vec<WorkUsage>,
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
            locks: locks(machine),
            lines: lines(machine),
            freed_lines: freed_lines(machine),
            other_waits,
            lock_waits,
            work: machine.work.usage(),
            steps: spent.steps,
            unknown_steps: spent.unknown_steps,
            stretches: duration(spent.stretches),
            unknown_stretches: duration(spent.unknown_stretches),
        }
    }
}

fn locks(machine: &Machine) -> Vec<LockUsage> {
    let there = machine.locks.values();
    let there = there.map(|lock| (lock.class, lock.counts));
    let mut locks: Vec<LockUsage> = there
        .chain(machine.freed_locks.iter().copied())
        .filter(|(_, counts)| counts.is_used())
        .map(|(class, counts)| LockUsage {
            class,
            acquisitions: counts.acquisitions,
            contended: counts.contended,
            failures: counts.failures,
            waited: duration(counts.waited),
            held: duration(counts.held),
            elsewhere: duration(counts.elsewhere),
            lead: duration(counts.lead),
            read: duration(counts.read),
            hand_over: duration(counts.hand_over),
            cores: counts.cores.len(),
        })
        .collect();
    locks.sort_by_key(|lock| (std::cmp::Reverse(lock.held), lock.class, lock.acquisitions));
    locks
}

fn lines(machine: &Machine) -> Vec<LineUsage> {
    let there = machine.lines.iter();
    let there = there.map(|(_, line)| (line.label, line.usage));
    sorted(there.chain(machine.lines.freed.iter().copied()))
}

fn freed_lines(machine: &Machine) -> Vec<LineUsage> {
    let sums = machine.lines.freed_sums.iter();
    sorted(sums.map(|(&label, &counts)| (label, counts)))
}

/// The lines that were transferred; the longest transfers first.
fn sorted(lines: impl Iterator<Item = (Label, LineCounts)>) -> Vec<LineUsage> {
    let used = lines.filter(|(_, counts)| counts.transfers > 0);
    let mut lines: Vec<LineUsage> = used
        .map(|(label, counts)| {
            let (class, site) = match label {
                Label::Lock(class) => (Some(class), String::new()),
                Label::At(site) => (None, format!("{}:{}", site.file(), site.line())),
            };
            LineUsage {
                class,
                site,
                transfers: counts.transfers,
                served: duration(counts.served),
                awaited: duration(counts.awaited),
                waited: duration(counts.waited),
                cores: counts.cores.len(),
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
