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
//!
//! Mean value analysis assumes that tasks choose their stations independently; where they move
//! together from one lock to the next, [`Analysis::in_turn`] takes these locks as one station.

mod in_turn;
mod totals;

use pext4_sync::Class;
use pext4_sync::virtual_cores::Usage;

use totals::{Totals, most_first, place};

pub use in_turn::InTurn;

/// A resource that serves one core at a time.
#[derive(Clone, Debug)]
pub struct Station {
    /// Its name in the report.
    pub name: String,
    /// Its class, if it is a lock.
    pub lock: Option<Class>,
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

fn busiest(mut stations: Vec<Station>) -> Vec<Station> {
    stations.sort_by(|one, other| other.demand.total_cmp(&one.demand));
    stations.truncate(STATIONS);
    stations
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

#[cfg(test)]
mod tests;
