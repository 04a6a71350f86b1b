//! The costs of stretches of code on virtual cores.
//!
//! A stretch is identified by the two steps that it is between, and by the part of its work that
//! the thread is in. Its mean cost is that measured on real threads, and its costs vary around the
//! mean as they did there: virtual cores on which a stretch always takes the same time would
//! synchronise, and contend for each lock either every time or never.

use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::NumberHash;
use crate::watch::{Action, Site};

/// A source location and the action there, in one number: sites are eight bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step(pub(crate) u64);

impl Step {
    /// The beginning of a thread.
    pub(crate) const START: Self = Self(0);

    pub(crate) fn new(site: Site, action: Action) -> Self {
        Self(((std::ptr::from_ref(site).addr() as u64) << 3) | action as u64)
    }
}

/// The part of a thread's work: a workload's parts are numbered from zero; a thread without parts
/// is in part zero.
pub(crate) type Part = u8;

/// Two consecutive steps in a part.
pub(crate) type Pair = (Part, Step, Step);

type Costs<Key> = HashMap<Key, Cost, NumberHash>;

/// The number of equally likely costs of a stretch.
const WAYS: usize = 8;
/// The unit of a [`Cost`]'s ways: the mean.
const WHOLE: u64 = 1 << 16;

/// The cost of a stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    /// The mean, in picoseconds.
    pub(crate) mean: u64,
    /// The cost of each way, in units of mean / [`WHOLE`].
    ways: [u32; WAYS],
}

impl Cost {
    /// A cost that is always the same.
    pub(crate) const fn constant(mean: u64) -> Self {
        Self {
            mean,
            ways: [WHOLE as u32; WAYS],
        }
    }

    /// A cost with this mean that varies as the samples do. They must be sorted; their own mean may
    /// be different.
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

    /// One of the costs in picoseconds, chosen by a uniformly distributed number.
    pub(crate) fn draw(&self, number: u64) -> u64 {
        let way = self.ways[number as usize % WAYS];
        (u128::from(self.mean) * u128::from(way) / u128::from(WHOLE)) as u64
    }
}

/// The costs of all pairs of steps.
#[derive(Clone, Debug, Default)]
pub struct Stretches {
    pub(crate) pairs: Costs<Pair>,
    /// For pairs that were not seen in their part: the median over other parts.
    elsewhere: Costs<(Step, Step)>,
    /// For pairs that were not seen: the median of the pairs with the same end.
    ends: Costs<Step>,
    /// For steps that were not seen: the median of all pairs.
    any: Option<Cost>,
}

impl Stretches {
    /// Costs such that every stretch takes so many picoseconds, for tests of the machine itself.
    #[must_use]
    pub fn constant(picoseconds: u64) -> Self {
        Self {
            any: Some(Cost::constant(picoseconds)),
            ..Self::default()
        }
    }

    /// The number of known pairs of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether no pair is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// For each pair the median of its costs in those lists that know it.
    #[must_use]
    pub fn middle_of(lists: &[Self]) -> Self {
        let all = lists.iter().flat_map(|list| &list.pairs);
        Self::from_costs(middles(all, |pair| pair))
    }

    /// The same with the costs of part N times `factors[N]`; those of a part without a factor stay.
    #[must_use]
    pub fn scaled(&self, factors: &[f64]) -> Self {
        let costs = self.pairs.iter().map(|(&pair, &cost)| {
            let factor = factors.get(usize::from(pair.0)).copied().unwrap_or(1.0);
            let mean = (cost.mean as f64 * factor) as u64;
            (pair, Cost { mean, ..cost })
        });
        Self::from_costs(costs.collect())
    }

    /// The cost from one step to another, and whether this pair was seen, in this part or another
    /// one.
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

/// The medians of the costs with the same key.
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
