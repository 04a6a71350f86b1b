//! The operations and weights of AIM7's loads, as far as they concern a file system.

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// One operation of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Read a random block.
    Read,
    /// Overwrite a random block.
    Write,
    /// Make the file durable (`fsync`).
    Sync,
    /// Truncate the file to 0 and write it again.
    Truncate,
    /// Look up a name.
    Lookup,
    /// Create a file with a label, close and remove it.
    Create,
}

/// The weights of a load, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    /// A little of everything.
    Alltests,
    /// Like `Disk`, with more operations on names.
    Custom,
    /// Reading, writing and copying.
    Disk,
    /// A file server.
    Fserver,
    /// Like `Fserver`, with more durable writes.
    NewFserver,
    /// A database.
    NewDbase,
    /// Many users of one computer.
    Shared,
}

/// Weights of Read, Write, Sync, Truncate, Lookup, Create.
type Weights = [u32; 6];

const JOBS: [Job; 6] = [
    Job::Read,
    Job::Write,
    Job::Sync,
    Job::Truncate,
    Job::Lookup,
    Job::Create,
];

impl Mix {
    /// All mixes, with their names.
    pub const ALL: [(&'static str, Self); 7] = [
        ("alltests", Self::Alltests),
        ("custom", Self::Custom),
        ("disk", Self::Disk),
        ("fserver", Self::Fserver),
        ("new_fserver", Self::NewFserver),
        ("new_dbase", Self::NewDbase),
        ("shared", Self::Shared),
    ];

    /// The mix with a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(other, _)| *other == name);
        found.map(|(_, mix)| *mix)
    }

    fn weights(self) -> Weights {
        match self {
            Self::Alltests => [20, 20, 2, 8, 20, 30],
            Self::Custom => [10, 15, 1, 14, 10, 50],
            Self::Disk => [25, 25, 1, 14, 5, 30],
            Self::Fserver => [30, 15, 2, 8, 20, 25],
            Self::NewFserver => [30, 15, 5, 5, 20, 25],
            Self::NewDbase => [50, 35, 5, 0, 5, 5],
            Self::Shared => [25, 15, 1, 4, 35, 20],
        }
    }

    /// Draws the next operation.
    pub fn draw(self, random: &mut Random) -> Job {
        let weights = self.weights();
        let mut rest = random.below(weights.iter().sum());
        for (weight, job) in weights.into_iter().zip(JOBS) {
            if rest < weight {
                return job;
            }
            rest -= weight;
        }
        Job::Lookup
    }
}

#[cfg(test)]
mod tests {
    use super::{Job, Mix};
    use crate::random::Random;

    #[test]
    fn jobs_come_as_often_as_their_weights() {
        for (name, mix) in Mix::ALL {
            assert_eq!(Mix::from_name(name), Some(mix));
            assert_eq!(mix.weights().iter().sum::<u32>(), 100, "{name}");
            let mut random = Random::new(1, 0);
            let reads = (0..10_000)
                .filter(|_| mix.draw(&mut random) == Job::Read)
                .count();
            let expected = mix.weights()[0] as usize * 100;
            assert!(
                reads.abs_diff(expected) < 300,
                "{name}: {reads}, not {expected}"
            );
        }
    }
}
