//! Locks of one class that are busy in turn, as one station.
//!
//! Mean value analysis assumes that tasks choose their stations independently. Tasks that follow
//! one goal do not: all of them queue at the lock of the group where the goal is, and then move on
//! together. If they always did, the locks would serve one task at a time, as one station whose
//! demand is the sum of theirs. While some still free blocks in the group before, two locks are
//! busy: the rate then lies between that of one station and that of independent ones.

use pext4_sync::Class;

use super::{Analysis, Station, mean_value};

/// From this share of mean value analysis on, a rate needs no explanation.
const AS_EXPECTED: f64 = 0.9;

/// The locks of a class, taken as one station.
#[derive(Clone, Debug)]
pub struct InTurn {
    class: Class,
    locks: usize,
    /// Nanoseconds an operation, of all of them.
    demand: f64,
    /// Share of the window in which they were busy, added up.
    utilisation: f64,
    /// The simulated rate over that of mean value analysis with this station.
    of_mean_value: f64,
}

impl InTurn {
    /// What the report says of it.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{:.3} of mean value analysis if the {} {:?} locks that are waited for were one station \
             ({:.1} ns an operation, busy {:.2} in all)",
            self.of_mean_value, self.locks, self.class, self.demand, self.utilisation
        )
    }
}

impl Analysis {
    /// The locks of the class that is waited for longest as one station, where that explains a rate
    /// below mean value analysis.
    #[must_use]
    pub fn in_turn(&self) -> Option<InTurn> {
        if self.rate / self.mean_value() >= AS_EXPECTED {
            return None;
        }
        let longest = |one: &&Station, other: &&Station| one.waited.total_cmp(&other.waited);
        let class = self.stations.iter().max_by(longest)?.lock?;
        let is_one = |station: &Station| station.lock == Some(class) && station.waited > 0.0;
        let (merged, others): (Vec<_>, Vec<_>) = self.stations.iter().partition(|one| is_one(one));
        let demand = merged.iter().map(|station| station.demand).sum();
        let utilisation = merged.iter().map(|station| station.utilisation).sum();
        let mut demands: Vec<f64> = others.iter().map(|station| station.demand).collect();
        demands.push(demand);
        let think = (self.alone - demands.iter().sum::<f64>()).max(0.0);
        let of_mean_value = self.rate / (mean_value(self.tasks, think, &demands) * 1e9);
        (merged.len() > 1 && of_mean_value >= AS_EXPECTED).then_some(InTurn {
            class,
            locks: merged.len(),
            demand,
            utilisation,
            of_mean_value,
        })
    }
}
