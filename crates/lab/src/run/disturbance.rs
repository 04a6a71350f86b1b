//! What else had the processors during a measurement: other programs, and other guests of the host.
//!
//! Both slow tasks down by an unknown factor. A measurement that either disturbed is named in the
//! notes, so that nobody takes its numbers for those of a quiet machine.

use crate::clock::{self, MachineTimes};
use crate::show;

/// The share of all processors' time from which a measurement counts as disturbed.
const DISTURBING: f64 = 0.05;
/// The kernel counts in ticks of 10 ms. In less time than this, in nanoseconds of all processors, a
/// single one could exceed [`DISTURBING`].
const SHORTEST: u64 = 200_000_000;

/// The times at one end of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    machine: Option<MachineTimes>,
    /// CPU time of everything that belongs to the measurement, where it can be told apart.
    own: Option<u64>,
}

/// The shares of all processors' time that were lost to others in one measurement, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Other programs; 0 where they cannot be told from servers and kernel threads that work for
    /// the tasks.
    pub foreign: f64,
    /// The hypervisor.
    pub stolen: f64,
}

impl Reading {
    /// The times now; `own` is the CPU time of everything that belongs to the measurement.
    #[must_use]
    pub fn now(own: Option<u64>) -> Self {
        let machine = clock::machine_times();
        Self { machine, own }
    }

    /// What others had from here to `end`.
    #[must_use]
    pub fn until(&self, end: &Self) -> Disturbance {
        let Some((before, after)) = self.machine.zip(end.machine) else {
            return Disturbance::default();
        };
        let all = after.all.saturating_sub(before.all);
        if all < SHORTEST {
            return Disturbance::default();
        }
        let share = |time: u64| real(time) / real(all);
        let busy = after.busy.saturating_sub(before.busy);
        let own = self.own.zip(end.own);
        let foreign = own.map(|(before, after)| busy.saturating_sub(after.saturating_sub(before)));
        Disturbance {
            foreign: foreign.map_or(0.0, share),
            stolen: share(after.stolen.saturating_sub(before.stolen)),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no 53 bits")]
fn real(number: u64) -> f64 {
    number as f64
}

/// The notes about measurements that were disturbed; each measurement has the name of its side and
/// its number of tasks.
#[must_use]
pub fn notes(measurements: &[(String, u32, Disturbance)]) -> Vec<String> {
    let foreign = points(measurements, |found| found.foreign);
    let stolen = points(measurements, |found| found.stolen);
    let kinds = [("other programs", foreign), ("the hypervisor", stolen)];
    let notes = kinds.into_iter().filter_map(|(who, points)| {
        let limit = show::share(DISTURBING);
        (!points.is_empty()).then(|| {
            format!(
                "disturbed: {who} took more than {limit} of the processors' time (the most) from \
                 {}",
                points.join("; ")
            )
        })
    });
    notes.collect()
}

/// Each disturbed point once: how many of its measurements were disturbed, and the worst.
fn points(
    measurements: &[(String, u32, Disturbance)],
    share: impl Fn(&Disturbance) -> f64,
) -> Vec<String> {
    let mut points: Vec<(&str, u32, Vec<f64>)> = Vec::new();
    for (side, tasks, found) in measurements {
        let point = points
            .iter_mut()
            .find(|(other, number, _)| *other == side && number == tasks);
        match point {
            Some((_, _, shares)) => shares.push(share(found)),
            None => points.push((side, *tasks, vec![share(found)])),
        }
    }
    let disturbed = points.into_iter().filter_map(|(side, tasks, shares)| {
        let count = shares.iter().filter(|share| **share > DISTURBING).count();
        let most = shares.iter().copied().fold(0.0, f64::max);
        (count > 0).then(|| {
            format!(
                "{side} with {}, {count} of {} ({})",
                show::tasks(tasks),
                shares.len(),
                show::share(most)
            )
        })
    });
    disturbed.collect()
}

#[cfg(test)]
mod tests {
    use super::{Disturbance, MachineTimes, Reading, notes};

    fn reading(busy: u64, stolen: u64, all: u64, own: Option<u64>) -> Reading {
        let [busy, stolen, all] = [busy, stolen, all].map(|time| time * 10_000_000);
        let machine = Some(MachineTimes { busy, stolen, all });
        let own = own.map(|time| time * 10_000_000);
        Reading { machine, own }
    }

    #[test]
    fn others_have_what_the_tasks_have_not() {
        let start = reading(100, 5, 1000, Some(50));
        let found = start.until(&reading(190, 10, 1100, Some(120)));
        assert!((found.foreign - 0.2).abs() < 1e-9 && (found.stolen - 0.05).abs() < 1e-9);
        // Servers of a mount work for the tasks: what is not the tasks' is not foreign.
        let start = reading(100, 5, 1000, None);
        let found = start.until(&reading(190, 5, 1100, None));
        assert_eq!(found, Disturbance::default());
        // Ticks say nothing about a time of a few ticks.
        let found = start.until(&reading(109, 9, 1019, None));
        assert_eq!(found, Disturbance::default());
    }

    #[test]
    fn disturbed_points_are_named() {
        let of = |side: &str, tasks, foreign, stolen| {
            (side.to_owned(), tasks, Disturbance { foreign, stolen })
        };
        let all = [
            of("base", 1, 0.01, 0.0),
            of("full", 1, 0.12, 0.0),
            of("base", 1, 0.06, 0.0),
            of("full", 1, 0.3, 0.0),
            of("full", 2, 0.0, 0.07),
        ];
        let start = "took more than 5.0 % of the processors' time (the most) from";
        let expected = [
            format!(
                "disturbed: other programs {start} base with 1 task, 1 of 2 (6.0 %); full with 1 \
                 task, 2 of 2 (30 %)"
            ),
            format!("disturbed: the hypervisor {start} full with 2 tasks, 1 of 1 (7.0 %)"),
        ];
        assert_eq!(notes(&all), expected);
        assert!(notes(&all[..1]).is_empty());
    }
}
