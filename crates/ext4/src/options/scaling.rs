//! The mechanisms that keep cores apart, each with a switch.
//!
//! A setting of all of them is written as one of three names, followed by what differs from it:
//!
//! ```text
//! full                              all mechanisms as wide as they go (the default)
//! base                              as ext4 was before each of them
//! seeds                             as ext4 is today, with the published mechanisms
//! full,-try-lock,orphan=list        full, but for two
//! base,+frees,stream-goals=8        base, with one at full width and one at a width of its own
//! ```
//!
//! `-NAME` gives a mechanism its `base` value, `+NAME` its `full` value, `NAME=VALUE` any of its
//! values or that of a named setting. A colon does where a comma has another meaning already. What
//! [`Scaling`] prints, [`Scaling::parse`] reads. [`SWITCHES`] lists them all.

mod value;

use std::fmt;

use thiserror::Error;

use value::Value;
pub use value::{
    AttributeCache, BusyGroups, DirectoryLocks, Frees, GroupIndex, InodeBits, LeafSearch,
    OrphanSlots, StreamGoals, Width,
};

/// The setting of every mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// What a search does with held groups.
    pub busy_groups: BusyGroups,
    /// Goals of large files.
    pub stream_goals: StreamGoals,
    /// How groups are found by free space.
    pub group_index: GroupIndex,
    /// Whether they are found by that index at all, or one after another.
    pub optimize_scan: bool,
    /// How freed blocks wait.
    pub frees: Frees,
    /// How orphans are remembered.
    pub orphan: OrphanSlots,
    /// How inode numbers are claimed.
    pub inode_bits: InodeBits,
    /// What of a directory is locked.
    pub directory: DirectoryLocks,
    /// How a name is found in a leaf.
    pub leaf_search: LeafSearch,
    /// How attribute blocks are shared.
    pub attribute_cache: AttributeCache,
    /// Words on which handles are counted.
    pub handle_shards: Width,
    /// Threads that make the bytes of a large commit.
    pub commit_threads: Width,
}

/// One mechanism's switch.
pub struct Switch {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// The values it takes.
    pub values: &'static str,
    show: fn(&Scaling) -> String,
    set: fn(&mut Scaling, &str) -> Option<()>,
}

macro_rules! switch {
    ($field:ident, $name:literal, $values:literal, $about:literal) => {
        Switch {
            name: $name,
            about: $about,
            values: $values,
            show: |scaling| scaling.$field.show(),
            set: |scaling, text| Value::read(text).map(|value| scaling.$field = value),
        }
    };
}

/// All switches, in the order in which they are printed.
pub static SWITCHES: [Switch; 12] = [
    switch!(
        busy_groups,
        "try-lock",
        "wait|skip",
        "a search for blocks passes by groups that somebody holds"
    ),
    switch!(
        stream_goals,
        "stream-goals",
        "locked|auto|NUMBER|inode|spread",
        "where large files are put behind each other, by how many goals"
    ),
    switch!(
        group_index,
        "group-index",
        "lists|ordered|bitmaps",
        "groups by free space: locked lists, lock-free reads, or no locks"
    ),
    switch!(
        optimize_scan,
        "mb_optimize_scan",
        "0|1",
        "groups are found by the index, not one after another"
    ),
    switch!(
        frees,
        "frees",
        "listed|merged|deferred",
        "freed blocks go on a global list, are merged first, or never wait"
    ),
    switch!(
        orphan,
        "orphan",
        "list|locked|lockless|remembered",
        "orphans in one chain, in locked slots, in slots by compare-and-swap"
    ),
    switch!(
        inode_bits,
        "inode-bits",
        "test-then-lock|find-under-lock|atomic",
        "how an inode number is claimed"
    ),
    switch!(
        directory,
        "directory",
        "whole|leaves",
        "what creates and removals lock of an indexed directory"
    ),
    switch!(
        leaf_search,
        "leaf-search",
        "scan|fingerprints",
        "how a name is found in a leaf: record after record, or by a byte of each"
    ),
    switch!(
        attribute_cache,
        "attribute-cache",
        "off|global|split|buckets|sharded",
        "how equal attribute blocks are found"
    ),
    switch!(
        handle_shards,
        "handle-shards",
        "auto|NUMBER",
        "words on which the journal's handles are counted"
    ),
    switch!(
        commit_threads,
        "commit-threads",
        "auto|NUMBER",
        "threads that make the bytes of a large commit"
    ),
];

/// The numbers that a switch takes, if it takes some.
fn range(values: &str) -> &'static str {
    match values.contains("NUMBER") {
        true => "; a number is 1 to 4096",
        false => "",
    }
}

/// A setting that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScalingError {
    /// There is no such switch.
    #[error(
        "there is no switch `{name}`; there are base, seeds, full, {}",
        names()
    )]
    Unknown {
        /// The word as given.
        name: String,
    },
    /// The switch has no such value.
    #[error("the switch {name} takes {values}, not `{value}`{range}", range = range(values))]
    Value {
        /// The switch.
        name: &'static str,
        /// What it takes.
        values: &'static str,
        /// What was given.
        value: String,
    },
}

fn names() -> String {
    SWITCHES.each_ref().map(|switch| switch.name).join(", ")
}

impl Default for Scaling {
    fn default() -> Self {
        Self::FULL
    }
}

impl Scaling {
    /// As ext4 was before each mechanism.
    pub const BASE: Self = Self {
        busy_groups: BusyGroups::Wait,
        stream_goals: StreamGoals::Locked,
        group_index: GroupIndex::Lists,
        optimize_scan: true,
        frees: Frees::Listed,
        orphan: OrphanSlots::List,
        inode_bits: InodeBits::TestThenLock,
        directory: DirectoryLocks::Whole,
        leaf_search: LeafSearch::Scan,
        attribute_cache: AttributeCache::Global,
        handle_shards: Width::Fixed(1),
        commit_threads: Width::Fixed(1),
    };

    /// As ext4 is in Linux today. What no patch has changed there is as in [`Scaling::BASE`].
    pub const SEEDS: Self = Self {
        busy_groups: BusyGroups::Skip,
        stream_goals: StreamGoals::Slots(Width::Auto),
        group_index: GroupIndex::Ordered,
        frees: Frees::Merged,
        orphan: OrphanSlots::Lockless,
        inode_bits: InodeBits::FindUnderLock,
        attribute_cache: AttributeCache::Buckets,
        ..Self::BASE
    };

    /// Everything as wide as it goes.
    pub const FULL: Self = Self {
        busy_groups: BusyGroups::Skip,
        stream_goals: StreamGoals::Spread,
        group_index: GroupIndex::Bitmaps,
        optimize_scan: true,
        frees: Frees::Deferred,
        orphan: OrphanSlots::Remembered,
        inode_bits: InodeBits::Atomic,
        directory: DirectoryLocks::Leaves,
        leaf_search: LeafSearch::Fingerprints,
        attribute_cache: AttributeCache::Sharded,
        handle_shards: Width::Auto,
        commit_threads: Width::Auto,
    };

    /// The named settings, in the order from the oldest design to the widest.
    pub const NAMED: [(&'static str, Self); 3] = [
        ("base", Self::BASE),
        ("seeds", Self::SEEDS),
        ("full", Self::FULL),
    ];

    /// Reads a setting, as the head of this module shows it. What is not said is as in `full`.
    ///
    /// # Errors
    ///
    /// The first word that is not understood, with those that would be.
    pub fn parse(text: &str) -> Result<Self, ScalingError> {
        let mut scaling = Self::FULL;
        for word in text.split([',', ':']).map(str::trim) {
            scaling.apply_word(word)?;
        }
        Ok(scaling)
    }

    /// The setting with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::NAMED.iter().find(|(other, _)| *other == name);
        found.map(|(_, scaling)| *scaling)
    }

    fn apply_word(&mut self, word: &str) -> Result<(), ScalingError> {
        if word.is_empty() {
            return Ok(());
        }
        if let Some(named) = Self::named(word) {
            *self = named;
            return Ok(());
        }
        let (name, value) = if let Some(name) = word.strip_prefix('-') {
            (name, "base")
        } else if let Some(name) = word.strip_prefix('+') {
            (name, "full")
        } else {
            word.split_once('=').unwrap_or((word, "full"))
        };
        let switch = SWITCHES.iter().find(|switch| switch.name == name);
        let switch = switch.ok_or_else(|| ScalingError::Unknown {
            name: name.to_owned(),
        })?;
        let named = Self::named(value).map(|named| (switch.show)(&named));
        let value = named.unwrap_or_else(|| value.to_owned());
        (switch.set)(self, &value).ok_or(ScalingError::Value {
            name: switch.name,
            values: switch.values,
            value,
        })
    }

    /// Every switch with the value that it has here.
    pub fn values(&self) -> impl Iterator<Item = (&'static Switch, String)> + '_ {
        SWITCHES.iter().map(|switch| (switch, (switch.show)(self)))
    }

    /// What differs from another setting.
    fn differences(&self, other: &Self) -> Vec<String> {
        let pairs = self.values().zip(other.values());
        let different = pairs.filter(|((_, own), (_, others))| own != others);
        different
            .map(|((switch, value), _)| format!("{}={value}", switch.name))
            .collect()
    }
}

impl fmt::Display for Scaling {
    /// The named setting that is nearest, and what differs from it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let near = Self::NAMED
            .iter()
            .rev()
            .map(|(name, named)| (name, self.differences(named)))
            .min_by_key(|(_, differences)| differences.len());
        let (name, differences) = near.expect("there are named settings");
        formatter.write_str(name)?;
        differences
            .iter()
            .try_for_each(|difference| write!(formatter, ",{difference}"))
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_settings_and_differences_are_read_and_printed() {
        let scaling = Scaling::parse("full,-try-lock,orphan=list,stream-goals=8").unwrap();
        assert_eq!(scaling.busy_groups, BusyGroups::Wait);
        assert_eq!(scaling.orphan, OrphanSlots::List);
        assert_eq!(scaling.stream_goals, StreamGoals::Slots(Width::Fixed(8)));
        assert_eq!(scaling.frees, Frees::Deferred);
        assert_eq!(
            scaling.to_string(),
            "full,try-lock=wait,stream-goals=8,orphan=list"
        );
        assert_eq!(Scaling::parse("").unwrap(), Scaling::FULL);
        for (name, named) in Scaling::NAMED {
            assert_eq!(Scaling::parse(name).unwrap(), named);
            assert_eq!(named.to_string(), name);
        }
    }

    #[test]
    fn every_value_of_every_switch_comes_back() {
        for (_, named) in Scaling::NAMED {
            for switch in &SWITCHES {
                for value in switch.values.split('|') {
                    let value = value.replace("NUMBER", "5");
                    let text = format!("{named}:{}={value}", switch.name);
                    let scaling = Scaling::parse(&text).unwrap();
                    assert_eq!((switch.show)(&scaling), value);
                    assert_eq!(Scaling::parse(&scaling.to_string()).unwrap(), scaling);
                }
            }
        }
    }

    #[test]
    fn signs_give_the_ends_and_later_words_win() {
        let scaling = Scaling::parse("base,+frees,-frees,frees=seeds,orphan").unwrap();
        assert_eq!(scaling.frees, Frees::Merged);
        assert_eq!(scaling.orphan, OrphanSlots::Remembered);
        assert_eq!(scaling.to_string(), "base,frees=merged,orphan=remembered");
        assert_eq!(Scaling::parse("-frees,seeds").unwrap(), Scaling::SEEDS);
    }

    #[test]
    fn what_is_not_understood_is_answered_with_what_there_is() {
        let text = Scaling::parse("full,-tryst").unwrap_err().to_string();
        assert!(
            text.starts_with("there is no switch `tryst`; there are base, seeds, full, try-lock, "),
            "{text}"
        );
        let text = Scaling::parse("orphan=none").unwrap_err().to_string();
        assert_eq!(
            text,
            "the switch orphan takes list|locked|lockless|remembered, not `none`"
        );
        for wrong in ["stream-goals=0", "stream-goals=-1", "mb_optimize_scan=2"] {
            assert!(Scaling::parse(wrong).is_err(), "{wrong}");
        }
    }
}
