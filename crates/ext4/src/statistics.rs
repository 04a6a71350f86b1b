//! Counters of events in the mechanisms.
//!
//! Counting writes a cache line that no other core writes. Each counter is an `Event` with a
//! section and a name. A [`Report`] has the values of all of them and other numbers of a volume,
//! for a person ([`Display`](fmt::Display)) or a program ([`Report::to_json`]). A sum that is read
//! while other threads count includes some of their events. A [`GroupReport`] is of one group.

mod groups;

use std::borrow::Cow;
use std::fmt;

use pext4_sync::Counters;

pub use groups::{FreeRuns, GroupBlocks, GroupReport};

macro_rules! events {
    ($($section:literal { $($(#[$about:meta])* $event:ident = $name:literal,)+ })+) => {
        /// An event that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Event { $($($(#[$about])* $event,)+)+ }

        /// Section and name of each event, in their order.
        const NAMES: &[(&str, &str)] = &[$($(($section, $name),)+)+];
    };
}

events! {
    "allocator" {
        /// Searches for blocks.
        Searches = "searches",
        /// Those that found some.
        Found = "found",
        /// Requests served from a file's preallocation.
        FromPreallocation = "from preallocations",
        /// Requests served from a shard's blocks for small files.
        FromLocality = "from blocks for small files",
        /// Found at the goal.
        GoalHits = "goal hits",
        /// Found in the group that the stream goal names.
        StreamGoalHits = "stream goal hits",
        /// Found as an aligned power of two.
        PowerHits = "2^n hits",
        /// Found by the criterion of average runs.
        AverageHits = "average run hits",
        /// Found after the request was trimmed.
        TrimmedHits = "trimmed hits",
        /// Found by looking at one group after another.
        LinearHits = "linear hits",
        /// Found by taking any free blocks.
        AnyHits = "anything hits",
        /// Groups that satisfied a criterion before they were locked.
        GroupsConsidered = "groups considered",
        /// Those skipped because another thread held them.
        GroupsBusy = "groups skipped busy",
        /// Those searched under their lock.
        GroupsScanned = "groups scanned",
        /// Block bitmaps read into memory, for searches, frees and discards.
        GroupsLoaded = "groups loaded",
        /// Preallocations discarded for lack of space.
        Discarded = "preallocations discarded",
        /// Searches that found nothing.
        Nothing = "nothing found",
    }
    "frees" {
        /// Extents freed; one that spans groups counts once per group.
        Freed = "extents freed",
        /// Groups visited because a transaction that freed blocks in them is durable.
        Visited = "groups visited after commits",
        /// Operations that waited for a commit because the disk was full.
        FullWaits = "waits of a full disk",
    }
    "inodes" {
        /// Inode numbers claimed.
        InodesClaimed = "claimed",
        /// Claims under a group's lock; without it in the setting *atomic*, except those that open
        /// the group.
        InodesLocked = "under the group's lock",
        /// Bits that another thread took first.
        InodeRaces = "lost races",
        /// Groups skipped because another thread held them.
        InodeGroupsBusy = "groups skipped busy",
        /// Inode numbers freed.
        InodesFreed = "freed",
    }
    "orphans" {
        /// Orphans recorded in slots.
        OrphanSlots = "in slots",
        /// Orphans recorded in the slot that they kept from the last truncate.
        OrphansRemembered = "in a remembered slot",
        /// Orphans on the chain.
        OrphansChained = "on the chain",
        /// Slots that another thread took first.
        OrphanRaces = "lost races",
        /// Truncates that needed no orphan entry.
        TruncatedAtOnce = "truncations in one transaction",
    }
    "directories" {
        /// Names added or removed under the lock of a leaf.
        NamesInLeaf = "changes under a leaf's lock",
        /// Those that had to restart with the whole directory.
        LeafRestarts = "restarts with the whole directory",
        /// Names added or removed under the lock of the directory.
        NamesInWhole = "changes under the directory's lock",
        /// Leaves whose names were given fingerprints.
        LeavesFingerprinted = "leaves given fingerprints",
    }
}

/// Number of events.
const EVENTS: usize = NAMES.len();

/// The counters of a volume.
#[derive(Default)]
pub(crate) struct Tally {
    counters: Counters<EVENTS>,
}

impl Tally {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one event.
    pub fn count(&self, event: Event) {
        self.counters.add(event as usize, 1);
    }

    /// Adds to several counters.
    pub fn add<const N: usize>(&self, events: [(Event, u64); N]) {
        for (event, times) in events {
            if times > 0 {
                self.counters.add(event as usize, times.cast_signed());
            }
        }
    }

    /// The number of times an event was counted.
    #[cfg(all(test, not(loom)))]
    pub fn sum(&self, event: Event) -> u64 {
        self.counters.sum(event as usize).cast_unsigned()
    }

    /// The sections of [`Report`] that are counted here.
    #[must_use]
    pub fn sections(&self) -> Vec<Section> {
        let mut sections: Vec<Section> = Vec::new();
        for (index, &(section, name)) in NAMES.iter().enumerate() {
            let sum = self.counters.sum(index).cast_unsigned();
            match sections.last_mut().filter(|last| last.name == section) {
                Some(last) => last.values.push((name.into(), sum)),
                None => sections.push(Section {
                    name: section,
                    values: vec![(name.into(), sum)],
                }),
            }
        }
        sections
    }
}

/// A group of related numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// The numbers with their names.
    pub values: Vec<(Cow<'static, str>, u64)>,
}

impl Section {
    /// A section with these numbers.
    #[must_use]
    pub fn new<const N: usize>(name: &'static str, values: [(&'static str, u64); N]) -> Self {
        let values = values.map(|(name, value)| (Cow::Borrowed(name), value));
        Self {
            name,
            values: values.into(),
        }
    }
}

/// The statistics of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The setting of the scaling mechanisms, in the syntax of the mount option.
    pub scaling: String,
    /// The numbers.
    pub sections: Vec<Section>,
}

impl Report {
    /// One number, by section and name.
    #[must_use]
    pub fn get(&self, section: &str, name: &str) -> Option<u64> {
        let section = self.sections.iter().find(|found| found.name == section)?;
        let value = section.values.iter().find(|(found, _)| found == name)?;
        Some(value.1)
    }

    /// As JSON: an object per section, with a number per name.
    #[must_use]
    pub fn to_json(&self) -> String {
        let sections = self.sections.iter().map(|section| {
            let values = section.values.iter();
            let values: Vec<_> = values
                .map(|(name, value)| format!("\"{name}\":{value}"))
                .collect();
            format!(",\"{}\":{{{}}}", section.name, values.join(","))
        });
        // Names and settings contain no characters that need escaping.
        format!(
            "{{\"scaling\":\"{}\"{}}}",
            self.scaling,
            sections.collect::<String>()
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.sections.iter().flat_map(|section| &section.values);
        let width = names.map(|(name, _)| name.len()).max().unwrap_or(0);
        writeln!(formatter, "scaling: {}", self.scaling)?;
        for section in &self.sections {
            writeln!(formatter, "\n{}", section.name)?;
            for (name, value) in &section.values {
                writeln!(formatter, "  {name:width$}  {value:>14}")?;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_sync::topology;

    use super::*;

    #[test]
    fn events_are_summed_over_the_shards() {
        let tally = Tally::new();
        for shard in 0..9 {
            let _pin = topology::pin(shard);
            tally.count(Event::Searches);
            tally.add([(Event::Found, 3), (Event::Nothing, 0)]);
        }
        assert_eq!(tally.sum(Event::Searches), 9);
        assert_eq!(tally.sum(Event::Found), 27);
        let sections = tally.sections();
        assert_eq!(sections[0].name, "allocator");
        let first = Section::new("allocator", [("searches", 9), ("found", 27)]);
        assert_eq!(sections[0].values[..2], first.values);
        let count: usize = sections.iter().map(|section| section.values.len()).sum();
        assert_eq!(count, EVENTS, "each section is in one piece");
    }

    #[test]
    fn a_program_and_a_person_can_read_them() {
        let statistics = Report {
            scaling: "full".to_owned(),
            sections: vec![Section::new("journal", [("commits", 2), ("blocks", 71)])],
        };
        assert_eq!(
            statistics.to_json(),
            r#"{"scaling":"full","journal":{"commits":2,"blocks":71}}"#
        );
        let text = statistics.to_string();
        assert!(text.starts_with("scaling: full\n\njournal\n  commits"));
        assert_eq!(statistics.get("journal", "blocks"), Some(71));
        assert_eq!(statistics.get("journal", "waits"), None);
    }
}
