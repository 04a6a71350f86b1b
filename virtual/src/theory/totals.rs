//! The sums over the locks and lines of a window, of which the analysis makes stations.

use std::collections::BTreeMap;

use pext4_sync::Class;
use pext4_sync::virtual_cores::{LineUsage, LockUsage, Usage};

use super::Station;

/// The source of the lab's barrier, below `virtual/`.
const BARRIER: &str = "src/barrier.rs:";

/// The sums over the locks and lines of a window.
pub(super) struct Totals {
    operations: f64,
    /// Nanoseconds of the window.
    elapsed: f64,
    pub(super) stations: Vec<Station>,
    /// Nanoseconds that cores waited for locks and lines.
    pub(super) waited: f64,
    /// Nanoseconds of them in which a lock was handed over.
    pub(super) handed_over: f64,
    /// Nanoseconds an operation waits for locks, by class, and for lines, by source location.
    pub(super) waits: BTreeMap<String, f64>,
    /// Nanoseconds an operation of transfers, by source location.
    pub(super) transfers: BTreeMap<String, f64>,
}

impl Totals {
    pub(super) fn new(usage: &Usage, operations: f64) -> Self {
        Self {
            operations,
            elapsed: usage.elapsed.as_nanos() as f64,
            stations: Vec::new(),
            waited: 0.0,
            handed_over: 0.0,
            waits: BTreeMap::new(),
            transfers: BTreeMap::new(),
        }
    }

    /// Adds a station that was busy, that was occupied, and that cores waited for, for so many
    /// nanoseconds.
    fn add_station(
        &mut self,
        name: String,
        lock: Option<Class>,
        [busy, occupied, waited]: [f64; 3],
    ) {
        self.stations.push(Station {
            name,
            lock,
            demand: busy / self.operations,
            utilisation: busy / self.elapsed,
            occupied: occupied / self.elapsed,
            waited: waited / self.operations,
        });
    }

    pub(super) fn add_lock(&mut self, lock: &LockUsage) {
        let held = lock.held.as_nanos() as f64;
        let waited = lock.waited.as_nanos() as f64;
        if held > 0.0 && is_shared(lock) {
            let taken = lock.acquisitions as f64 / self.operations;
            let name = format!(
                "a {:?} lock of {} cores, taken {taken:.3} times an operation",
                lock.class, lock.cores
            );
            let hand_over = lock.hand_over.as_nanos() as f64;
            self.handed_over += hand_over;
            let occupied = held + hand_over;
            let busy = occupied - lock.elsewhere.as_nanos() as f64;
            self.add_station(name, Some(lock.class), [busy, occupied, waited]);
        }
        self.add_wait(format!("{:?} locks", lock.class), waited);
    }

    fn add_wait(&mut self, what: String, waited: f64) {
        *self.waits.entry(what).or_default() += waited / self.operations;
        self.waited += waited;
    }

    pub(super) fn add_line(&mut self, line: &LineUsage, tasks: u32) {
        let served = line.served.as_nanos() as f64;
        let waited = line.waited.as_nanos() as f64;
        self.add_wait(kind(line), waited);
        self.add_transfers(line);
        let name = match line.class {
            Some(class) => format!("a line of a {class:?} lock, {} cores", line.cores),
            None => format!("the line at {}, {} cores", place(&line.site), line.cores),
        };
        if is_between_tasks(line, tasks) && !is_of_the_lab(line) {
            self.add_station(name, None, [served, served, waited]);
        }
    }

    pub(super) fn add_transfers(&mut self, line: &LineUsage) {
        let awaited = line.awaited.as_nanos() as f64;
        *self.transfers.entry(kind(line)).or_default() += awaited / self.operations;
    }
}

/// The name of the lines that are counted together with this one.
fn kind(line: &LineUsage) -> String {
    match line.class {
        Some(class) => format!("lines of {class:?} locks"),
        None => format!("lines at {}", place(&line.site)),
    }
}

/// Whether no core holds the lock for nine tenths of the held time (its lead over the others is
/// then eight tenths).
fn is_shared(lock: &LockUsage) -> bool {
    lock.lead.as_secs_f64() < 0.8 * lock.held.as_secs_f64()
}

/// Whether a line moves between tasks, not only between one task and the committer.
fn is_between_tasks(line: &LineUsage, tasks: u32) -> bool {
    line.cores > 2 || tasks == 2
}

/// Whether it is the barrier at which the tasks wait between the parts of a workload.
fn is_of_the_lab(line: &LineUsage) -> bool {
    line.class.is_none() && place(&line.site).starts_with(BARRIER)
}

pub(super) fn most_first(times: BTreeMap<String, f64>) -> Vec<(String, f64)> {
    let mut times: Vec<_> = times.into_iter().filter(|(_, time)| *time > 0.0).collect();
    times.sort_by(|one, other| other.1.total_cmp(&one.1));
    times
}

/// A source location without the path of the workspace, which differs between machines.
pub(super) fn place(site: &str) -> &str {
    site.find("crates/").map_or(site, |start| &site[start..])
}
