//! Which stretches of code the cores worked in since the window was opened: how often, how long,
//! and between which source locations.

use std::collections::HashMap;
use std::time::Duration;

use crate::hash::NumberHash;
use crate::stretches::Step;
use crate::watch::Site;

/// The work of all cores between two steps, in all parts of the workload together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkUsage {
    /// The source location of the step that it begins at; none at the beginning of a thread.
    pub from: Option<String>,
    /// The source location of the step that it ends at.
    pub to: String,
    /// How often cores did it.
    pub times: u64,
    /// How long it took them all together.
    pub time: Duration,
}

#[derive(Clone, Copy)]
struct Stretch {
    from: Option<Site>,
    to: Site,
    times: u64,
    /// Picoseconds.
    time: u64,
}

/// The stretches of a window.
#[derive(Default)]
pub(super) struct Work {
    stretches: HashMap<(Step, Step), Stretch, NumberHash>,
}

impl Work {
    pub(super) fn open_window(&mut self) {
        self.stretches.clear();
    }

    /// A core went from one step to another in so many picoseconds.
    pub(super) fn add(&mut self, steps: (Step, Step), from: Option<Site>, to: Site, time: u64) {
        let stretch = self.stretches.entry(steps).or_insert(Stretch {
            from,
            to,
            times: 0,
            time: 0,
        });
        stretch.times += 1;
        stretch.time += time;
    }

    /// The work, the longest first. Steps with one source location, such as the taking of a lock
    /// and its release, are one.
    pub(super) fn usage(&self) -> Vec<WorkUsage> {
        let named = |site: Site| format!("{}:{}", site.file(), site.line());
        let mut sums: HashMap<(Option<String>, String), (u64, u64)> = HashMap::new();
        for stretch in self.stretches.values() {
            let sum = sums.entry((stretch.from.map(named), named(stretch.to)));
            let (times, time) = sum.or_default();
            *times += stretch.times;
            *time += stretch.time;
        }
        let work = sums
            .into_iter()
            .map(|((from, to), (times, time))| WorkUsage {
                from,
                to,
                times,
                time: Duration::from_nanos(time / 1000),
            });
        let mut work: Vec<WorkUsage> = work.collect();
        work.sort_by(|one, other| {
            let place = |work: &WorkUsage| (work.from.clone(), work.to.clone());
            other
                .time
                .cmp(&one.time)
                .then_with(|| place(one).cmp(&place(other)))
        });
        work
    }
}
