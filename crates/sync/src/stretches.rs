//! What stretches of code cost: the price list of virtual cores.
//!
//! A stretch is known by the two steps that it lies between, and by the part of its work that a thread is in. It
//! costs what it cost real threads in the mean, and now more and now less than that, as it did there: virtual
//! cores on which everything always takes the same fall into step, and meet at each lock each time or never.

use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::NumberHash;
use crate::watch::{Action, Site};

/// A place in the source and what is done there, in one number: sites lie eight bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step(pub(crate) u64);

impl Step {
    /// Where a thread begins.
    pub(crate) const START: Self = Self(0);

    pub(crate) fn new(site: Site, action: Action) -> Self {
        Self(((std::ptr::from_ref(site).addr() as u64) << 3) | action as u64)
    }
}

/// The part of a thread's work: a workload's parts are numbered from zero, and whoever has none is in the first.
pub(crate) type Part = u8;

/// Two steps that follow one another in a part.
pub(crate) type Pair = (Part, Step, Step);

type Costs<Key> = HashMap<Key, Cost, NumberHash>;

/// How many ways a stretch goes, equally often.
const WAYS: usize = 8;
/// What the mean is in a [`Cost`]'s ways.
const WHOLE: u64 = 1 << 16;

/// What a stretch costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    /// Picoseconds, in the mean.
    pub(crate) mean: u64,
    /// What each of the ways takes, as parts of the mean.
    ways: [u32; WAYS],
}

impl Cost {
    /// One that is always the same.
    pub(crate) const fn constant(mean: u64) -> Self {
        Self {
            mean,
            ways: [WHOLE as u32; WAYS],
        }
    }

    /// One with this mean that differs as the samples do; they are sorted, and their mean may be another.
    pub(crate) fn new(mean: u64, samples: &[u32]) -> Self {
        let mut cost = Self::constant(mean);
        let sum: u64 = samples.iter().copied().map(u64::from).sum();
        if samples.len() < WAYS || sum == 0 {
            return cost;
        }
        let average = sum as f64 / samples.len() as f64;
        for (way, part) in cost.ways.iter_mut().enumerate() {
            let of_way = samples.len() * way / WAYS..samples.len() * (way + 1) / WAYS;
            let own = &samples[of_way];
            let mean = own.iter().copied().map(f64::from).sum::<f64>() / own.len() as f64;
            *part = (mean / average * WHOLE as f64) as u32;
        }
        cost
    }

    /// Picoseconds by a number, any number as likely as any other.
    pub(crate) fn draw(&self, number: u64) -> u64 {
        let way = self.ways[number as usize % WAYS];
        (u128::from(self.mean) * u128::from(way) / u128::from(WHOLE)) as u64
    }
}

/// What every pair of steps costs.
#[derive(Clone, Debug, Default)]
pub struct Stretches {
    pub(crate) pairs: Costs<Pair>,
    /// For pairs that were never seen in their part: the median of the others.
    elsewhere: Costs<(Step, Step)>,
    /// For pairs that were never seen: the median of what ends at a step.
    ends: Costs<Step>,
    /// For steps that were never seen.
    any: Option<Cost>,
}

impl Stretches {
    /// One in which every stretch takes so many picoseconds, for tests of the machine itself.
    #[must_use]
    pub fn constant(picoseconds: u64) -> Self {
        Self {
            any: Some(Cost::constant(picoseconds)),
            ..Self::default()
        }
    }

    /// How many pairs of steps are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// One in which a pair costs the median of what it costs in those that know it.
    #[must_use]
    pub fn middle_of(lists: &[Self]) -> Self {
        let all = lists.iter().flat_map(|list| &list.pairs);
        Self::from_costs(middles(all, |pair| pair))
    }

    /// The cost from one step to another, and whether just this pair was seen, if in another part.
    pub(crate) fn cost(&self, part: Part, from: Step, to: Step) -> (Cost, bool) {
        let seen = self.pairs.get(&(part, from, to));
        match seen.or_else(|| self.elsewhere.get(&(from, to))) {
            Some(&cost) => (cost, true),
            None => (
                self.ends
                    .get(&to)
                    .copied()
                    .or(self.any)
                    .unwrap_or(Cost::constant(0)),
                false,
            ),
        }
    }

    pub(crate) fn from_costs(pairs: Costs<Pair>) -> Self {
        let mut all: Vec<Cost> = pairs.values().copied().collect();
        Self {
            any: middle(&mut all),
            elsewhere: middles(&pairs, |(_, from, to)| (from, to)),
            ends: middles(&pairs, |(_, _, to)| to),
            pairs,
        }
    }
}

/// The median of the costs that have a key in common.
fn middles<'a, Key: Eq + Hash>(
    pairs: impl IntoIterator<Item = (&'a Pair, &'a Cost)>,
    key: impl Fn(Pair) -> Key,
) -> Costs<Key> {
    let mut groups: HashMap<Key, Vec<Cost>, NumberHash> = HashMap::default();
    for (&pair, &cost) in pairs {
        groups.entry(key(pair)).or_default().push(cost);
    }
    let groups = groups.into_iter();
    groups
        .filter_map(|(key, mut costs)| Some((key, middle(&mut costs)?)))
        .collect()
}

fn middle(costs: &mut [Cost]) -> Option<Cost> {
    costs.sort_unstable();
    costs.get(costs.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::{Cost, WAYS};

    #[test]
    fn what_is_drawn_differs_as_the_samples_do_and_has_the_mean() {
        let samples: Vec<u32> = (0..800)
            .map(|number| if number < 700 { 10 } else { 90 })
            .collect();
        let cost = Cost::new(1000, &samples);
        let drawn: Vec<u64> = (0..WAYS as u64).map(|number| cost.draw(number)).collect();
        assert!(
            drawn[..7].iter().all(|drawn| (499..=501).contains(drawn)),
            "{drawn:?}"
        );
        assert!((4490..=4510).contains(&drawn[7]), "{drawn:?}");
        let mean = drawn.iter().sum::<u64>() / WAYS as u64;
        assert!((995..=1005).contains(&mean), "{mean}");
    }

    #[test]
    fn of_too_few_samples_all_ways_are_the_mean() {
        let cost = Cost::new(1000, &[1, 2, 3]);
        assert!((0..20).all(|number| cost.draw(number) == 1000));
        assert_eq!(Cost::new(1000, &[0; 50]), Cost::constant(1000));
    }
}
