//! Analyses the demands that a run measured, by operational analysis and mean value analysis.
//!
//! Every lock that cores share and every line that is transferred between them is a station that
//! serves one core at a time; its *demand* is its busy time an operation. A lock that one core has
//! nearly to itself is no station: a task's own file has a lock that the committer also takes, and
//! since every task has one, none saturates however many tasks there are. The lab's own barrier,
//! which no operation passes, is none either. A lock is also busy while it is free although cores
//! wait for it, because the next one has not yet seen the release or not yet woken up: it serves
//! nobody then.
//!
//! Who holds a lock may wait for another one. Whatever is served there is a part of both demands:
//! both are busy then, and no more operations can pass than either allows. The waiting before it is
//! none of the outer lock's demand. It is as long as the queue at the inner lock, which is another
//! station's; if that were work, each lock under which all wait for one busy lock would seem to be
//! the limit, and a bound would depend on the load at which it was measured. So a lock may be held
//! all the time and still be far from its limit; the report tells both shares. Waiting for a
//! condition, a device or a time is no queue at a station: it stays in the demand of the locks that
//! are held meanwhile. A station that nobody waited for in the window bounds throughput as well,
//! but is not said to be the limit: locks that many tasks might share and locks that each has for
//! itself look alike until somebody waits.
//!
//! The rest of an operation without waiting is the think time. Two laws hold for any distribution:
//! throughput is at most N over the time of an operation without waiting, and at most one over the
//! largest demand. Mean value analysis gives the throughput of such a closed network with
//! exponentially distributed service times. Ours vary less, so the simulated value lies between
//! that and the bounds; where it does not, one of the two is wrong.

use std::collections::BTreeMap;

use pext4_sync::virtual_cores::{LineUsage, LockUsage, Usage};

/// A resource that serves one core at a time.
#[derive(Clone, Debug)]
pub struct Station {
    /// Its name in the report.
    pub name: String,
    /// Nanoseconds an operation, averaged over all operations of all tasks.
    pub demand: f64,
    /// Share of the window in which it was busy, 0 to 1.
    pub utilisation: f64,
    /// Share of the window in which it was busy, or its holder waited for another station, 0 to 1.
    pub occupied: f64,
    /// Nanoseconds an operation that cores waited for it.
    pub waited: f64,
}

impl Station {
    /// What the list of stations says of it.
    #[must_use]
    pub fn describe(&self) -> String {
        let waited = if self.waited > 0.0 {
            format!("waited for {:.1} ns", self.waited)
        } else {
            "nobody waited for it".to_owned()
        };
        format!("{}: {}; {waited}", self.name, self.demands())
    }

    /// Its demand, and how much of the window it was busy, or held.
    fn demands(&self) -> String {
        let mut text = format!(
            "{:.1} ns an operation, busy {:.2}",
            self.demand, self.utilisation
        );
        if self.occupied - self.utilisation >= 0.005 {
            text += &format!(", held {:.2} with waiting for others", self.occupied);
        }
        text
    }
}

/// A run in the terms of queueing theory.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Number of tasks.
    pub tasks: u32,
    /// Operations a second in the simulation.
    pub rate: f64,
    /// Nanoseconds of an operation without waiting.
    pub alone: f64,
    /// Nanoseconds an operation waits for locks and for lines.
    pub waiting: f64,
    /// The stations, by falling demand.
    pub stations: Vec<Station>,
    /// Nanoseconds an operation that cores waited for transfers, by source location, most first.
    pub transfers: Vec<(String, f64)>,
    /// Nanoseconds an operation waits for locks, by class, and for lines that others are being
    /// sent, by source location; most first.
    pub waits: Vec<(String, f64)>,
    /// Nanoseconds an operation that cores, also the journal's, waited at each source location, for
    /// a lock and its own lines or for something that is no lock; most first.
    pub waits_by_place: Vec<(String, f64)>,
    /// The stretches of code: how often an operation works there, and for how many nanoseconds of
    /// it; most first.
    pub work: Vec<(String, f64, f64)>,
    /// Nanoseconds an operation that cores, also the journal's, worked.
    pub working: f64,
    /// Nanoseconds an operation that cores waited for transfers, all together.
    pub transferring: f64,
    /// Share of the time of all stretches for which no cost was measured, 0 to 1.
    pub unknown: f64,
}

/// The source of the lab's barrier, below `virtual/`.
const BARRIER: &str = "src/barrier.rs:";

/// The number of busiest stations to keep; the others are part of the think time.
const STATIONS: usize = 400;

impl Analysis {
    /// Analyses the usage of a window in which `tasks` tasks made `operations` operations.
    #[must_use]
    pub fn of(usage: &Usage, operations: u64, tasks: u32) -> Self {
        let operations = operations.max(1) as f64;
        let rate = operations / usage.elapsed.as_secs_f64();
        let mut totals = Totals::new(usage, operations);
        for lock in usage.locks.iter().filter(|lock| lock.cores > 1) {
            totals.add_lock(lock);
        }
        for line in &usage.lines {
            totals.add_line(line, tasks);
        }
        for lines in &usage.freed_lines {
            totals.add_transfers(lines);
        }
        let for_locks = usage.lock_waits.iter().map(|(class, site, time)| {
            let site = format!("{} for a {class:?} lock", place(site));
            (site, time.as_nanos() as f64 / operations)
        });
        let for_others = usage.other_waits.iter().map(|(site, time)| {
            let site = place(site).to_owned();
            (site, time.as_nanos() as f64 / operations)
        });
        let work = usage.work.iter().map(|work| {
            let from = work.from.as_deref().map_or("the beginning", place);
            let times = work.times as f64 / operations;
            let time = work.time.as_nanos() as f64 / operations;
            (format!("{from} to {}", place(&work.to)), times, time)
        });
        let transfers = most_first(totals.transfers);
        let waiting = totals.waited / operations;
        let response = f64::from(tasks) * 1e9 / rate;
        let stretches = usage.stretches.as_nanos().max(1) as f64;
        Self {
            tasks,
            rate,
            // While a lock is handed over, the core that gets it is being served.
            alone: (response - waiting + totals.handed_over / operations).max(1.0),
            waiting,
            stations: busiest(totals.stations),
            work: work.collect(),
            working: usage.stretches.as_nanos() as f64 / operations,
            transferring: transfers.iter().map(|(_, time)| time).sum(),
            transfers,
            waits: most_first(totals.waits),
            waits_by_place: most_first(for_locks.chain(for_others).collect()),
            unknown: usage.unknown_stretches.as_nanos() as f64 / stretches,
        }
    }

    /// The busiest station's demand, in nanoseconds.
    #[must_use]
    pub fn largest_demand(&self) -> f64 {
        self.stations.first().map_or(0.0, |station| station.demand)
    }

    /// Nanoseconds of an operation with all its waiting.
    #[must_use]
    pub fn response(&self) -> f64 {
        f64::from(self.tasks) * 1e9 / self.rate
    }

    /// What the busiest station that cores waited for means for the number of tasks, in words.
    #[must_use]
    pub fn limit(&self) -> Option<String> {
        let station = self.stations.iter().find(|station| station.waited > 0.0)?;
        // The number of tasks at which it is busy all the time.
        let tasks = self.alone / station.demand.max(1e-9);
        let limit = if station.utilisation > 0.95 {
            format!("is saturated from {tasks:.0} tasks on")
        } else if tasks.round() <= f64::from(self.tasks) {
            // It would be busy all the time if the tasks always came at the right moment.
            format!("limits from {tasks:.0} tasks on")
        } else {
            format!("would be at {tasks:.0} tasks")
        };
        Some(format!("{} ({}) {limit}", station.name, station.demands()))
    }

    /// The upper bound of throughput, in operations a second.
    #[must_use]
    pub fn bound(&self) -> f64 {
        let tasks = f64::from(self.tasks) / self.alone;
        let station = 1.0 / self.largest_demand().max(1e-9);
        tasks.min(station) * 1e9
    }

    /// The throughput by mean value analysis, in operations a second.
    #[must_use]
    pub fn mean_value(&self) -> f64 {
        let demands: Vec<f64> = self.stations.iter().map(|station| station.demand).collect();
        let think = (self.alone - demands.iter().sum::<f64>()).max(0.0);
        mean_value(self.tasks, think, &demands) * 1e9
    }
}

/// The sums over the locks and lines of a window.
struct Totals {
    operations: f64,
    /// Nanoseconds of the window.
    elapsed: f64,
    stations: Vec<Station>,
    /// Nanoseconds that cores waited for locks and lines.
    waited: f64,
    /// Nanoseconds of them in which a lock was handed over.
    handed_over: f64,
    /// Nanoseconds an operation waits for locks, by class, and for lines, by source location.
    waits: BTreeMap<String, f64>,
    /// Nanoseconds an operation of transfers, by source location.
    transfers: BTreeMap<String, f64>,
}

impl Totals {
    fn new(usage: &Usage, operations: f64) -> Self {
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
    fn add_station(&mut self, name: String, [busy, occupied, waited]: [f64; 3]) {
        self.stations.push(Station {
            name,
            demand: busy / self.operations,
            utilisation: busy / self.elapsed,
            occupied: occupied / self.elapsed,
            waited: waited / self.operations,
        });
    }

    fn add_lock(&mut self, lock: &LockUsage) {
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
            self.add_station(name, [busy, occupied, waited]);
        }
        self.add_wait(format!("{:?} locks", lock.class), waited);
    }

    fn add_wait(&mut self, what: String, waited: f64) {
        *self.waits.entry(what).or_default() += waited / self.operations;
        self.waited += waited;
    }

    fn add_line(&mut self, line: &LineUsage, tasks: u32) {
        let served = line.served.as_nanos() as f64;
        let waited = line.waited.as_nanos() as f64;
        self.add_wait(kind(line), waited);
        self.add_transfers(line);
        let name = match line.class {
            Some(class) => format!("a line of a {class:?} lock, {} cores", line.cores),
            None => format!("the line at {}, {} cores", place(&line.site), line.cores),
        };
        if is_between_tasks(line, tasks) && !is_of_the_lab(line) {
            self.add_station(name, [served, served, waited]);
        }
    }

    fn add_transfers(&mut self, line: &LineUsage) {
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

fn busiest(mut stations: Vec<Station>) -> Vec<Station> {
    stations.sort_by(|one, other| other.demand.total_cmp(&one.demand));
    stations.truncate(STATIONS);
    stations
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

/// Throughput of a closed network with `customers` customers, one think station and single-server
/// stations, in operations per unit of `think` and `demands`.
#[must_use]
pub fn mean_value(customers: u32, think: f64, demands: &[f64]) -> f64 {
    let mut queues = vec![0.0; demands.len()];
    let mut rate = 0.0;
    for customer in 1..=customers {
        let residence: Vec<f64> = demands
            .iter()
            .zip(&queues)
            .map(|(demand, queue)| demand * (1.0 + queue))
            .collect();
        rate = f64::from(customer) / (think + residence.iter().sum::<f64>()).max(1e-9);
        for (queue, time) in queues.iter_mut().zip(&residence) {
            *queue = rate * time;
        }
    }
    rate
}

fn most_first(times: BTreeMap<String, f64>) -> Vec<(String, f64)> {
    let mut times: Vec<_> = times.into_iter().filter(|(_, time)| *time > 0.0).collect();
    times.sort_by(|one, other| other.1.total_cmp(&one.1));
    times
}

/// A source location without the path of the workspace, which differs between machines.
fn place(site: &str) -> &str {
    site.find("crates/").map_or(site, |start| &site[start..])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pext4_sync::Class;
    use pext4_sync::virtual_cores::{LineUsage, LockUsage, Usage};

    use super::{Analysis, Station, mean_value};

    #[test]
    fn what_a_task_has_nearly_to_itself_is_no_station() {
        let lock = |lead, cores| LockUsage {
            class: Class::Leaf,
            acquisitions: 10,
            contended: 0,
            failures: 0,
            waited: Duration::ZERO,
            held: Duration::from_micros(100),
            elsewhere: Duration::ZERO,
            lead: Duration::from_micros(lead),
            read: Duration::ZERO,
            hand_over: Duration::ZERO,
            cores,
        };
        let line = |site: &str, cores| LineUsage {
            class: None,
            site: site.into(),
            transfers: 10,
            served: Duration::from_micros(10),
            awaited: Duration::from_micros(10),
            waited: Duration::ZERO,
            cores,
        };
        let usage = Usage {
            elapsed: Duration::from_millis(1),
            locks: vec![lock(90, 2), lock(10, 8), lock(100, 1)],
            lines: vec![
                line("crates/a.rs:1", 2),
                line("crates/a.rs:1", 3),
                line("src/barrier.rs:50", 9),
            ],
            freed_lines: Vec::new(),
            other_waits: Vec::new(),
            lock_waits: Vec::new(),
            steps: 1,
            work: Vec::new(),
            unknown_steps: 0,
            stretches: Duration::from_millis(1),
            unknown_stretches: Duration::ZERO,
        };
        let names = |tasks| {
            let analysis = Analysis::of(&usage, 10, tasks);
            let stations = analysis.stations.into_iter();
            stations.map(|station| station.name).collect::<Vec<_>>()
        };
        let shared = [
            "a Leaf lock of 8 cores, taken 1.000 times an operation",
            "the line at crates/a.rs:1, 3 cores",
        ];
        assert_eq!(names(8), shared);
        assert_eq!(names(2).len(), 3, "between two tasks two cores are all");
        assert_eq!(names(1), shared, "a task alone shares with nobody");
    }

    fn analysis(tasks: u32, alone: f64, utilisation: f64) -> Analysis {
        Analysis {
            tasks,
            rate: 1e6,
            alone,
            waiting: 0.0,
            stations: vec![Station {
                name: "a lock".to_owned(),
                demand: 100.0,
                utilisation,
                occupied: utilisation,
                waited: 1.0,
            }],
            transfers: Vec::new(),
            waits: Vec::new(),
            waits_by_place: Vec::new(),
            work: Vec::new(),
            working: 0.0,
            transferring: 0.0,
            unknown: 0.0,
        }
    }

    #[test]
    fn a_limit_is_ahead_or_behind_but_not_both() {
        for (tasks, busy, limit) in [
            (1, 0.10, "busy 0.10) would be at 30 tasks"),
            (96, 0.52, "busy 0.52) limits from 30 tasks on"),
            (96, 0.99, "busy 0.99) is saturated from 30 tasks on"),
        ] {
            let told = analysis(tasks, 3000.0, busy).limit().unwrap();
            assert_eq!(told, format!("a lock (100.0 ns an operation, {limit}"));
        }
    }

    #[test]
    fn a_station_that_nobody_waited_for_is_not_said_to_be_the_limit() {
        let mut both = analysis(96, 3000.0, 0.99);
        both.stations[0].waited = 0.0;
        assert_eq!(both.limit(), None);
        both.stations.push(Station {
            name: "another".to_owned(),
            demand: 30.0,
            utilisation: 0.30,
            occupied: 0.75,
            waited: 2.0,
        });
        let said = "another (30.0 ns an operation, busy 0.30, held 0.75 with waiting for others) \
                    would be at 100 tasks";
        assert_eq!(both.limit().unwrap(), said);
        let listed: Vec<_> = both.stations.iter().map(Station::describe).collect();
        assert_eq!(
            listed,
            [
                "a lock: 100.0 ns an operation, busy 0.99; nobody waited for it",
                "another: 30.0 ns an operation, busy 0.30, held 0.75 with waiting for others; \
                 waited for 2.0 ns",
            ]
        );
    }

    #[test]
    fn a_lock_that_is_handed_over_is_busy_and_not_while_its_holder_waits_elsewhere() {
        let lock = LockUsage {
            class: Class::Leaf,
            acquisitions: 10,
            contended: 10,
            failures: 0,
            waited: Duration::from_micros(500),
            held: Duration::from_micros(600),
            elsewhere: Duration::from_micros(200),
            lead: Duration::ZERO,
            read: Duration::ZERO,
            hand_over: Duration::from_micros(300),
            cores: 8,
        };
        let usage = Usage {
            elapsed: Duration::from_millis(1),
            locks: vec![lock],
            lines: Vec::new(),
            freed_lines: Vec::new(),
            other_waits: Vec::new(),
            lock_waits: Vec::new(),
            steps: 1,
            work: Vec::new(),
            unknown_steps: 0,
            stretches: Duration::from_millis(1),
            unknown_stretches: Duration::ZERO,
        };
        let analysis = Analysis::of(&usage, 10, 2);
        assert!((analysis.stations[0].demand - 70_000.0).abs() < 1e-6);
        assert!((analysis.stations[0].utilisation - 0.7).abs() < 1e-9);
        assert!((analysis.stations[0].occupied - 0.9).abs() < 1e-9);
        // 200 us an operation, 50 of them waiting, of which 30 are the lock's.
        assert!((analysis.alone - 180_000.0).abs() < 1e-6);
    }

    /// The machine repairman with exponential times, solved by its balance equations.
    fn repairman(customers: u32, think: f64, service: f64) -> f64 {
        let mut weights = vec![1.0];
        for waiting in 0..customers {
            let last = weights[waiting as usize];
            weights.push(last * f64::from(customers - waiting) * service / think);
        }
        let sum: f64 = weights.iter().sum();
        (1.0 - weights[0] / sum) / service
    }

    #[test]
    fn mean_value_analysis_is_exact_for_one_server() {
        for customers in [1, 2, 5, 20, 100] {
            let rate = mean_value(customers, 900.0, &[100.0]);
            let exact = repairman(customers, 900.0, 100.0);
            assert!(
                (rate / exact - 1.0).abs() < 1e-9,
                "{customers}: {rate} {exact}"
            );
        }
    }

    #[test]
    fn without_servers_everybody_thinks() {
        assert!((mean_value(7, 100.0, &[]) - 0.07).abs() < 1e-12);
    }
}
