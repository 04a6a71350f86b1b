//! Cache lines in virtual time: who has a copy, and what it costs to get one.
//!
//! A core that reads a line last written by another, or writes a line of which another has a copy,
//! waits for a transfer; a line serves one transfer at a time, so a second asker waits for the
//! first. Lines that are asked for together are under way together, as a core has several misses
//! open at a time: the farthest costs its transfer, each other one what follows at its heels. A core
//! that has the only copy writes for nothing, and one that has a copy reads for nothing. A line
//! nobody has touched costs nothing: fetching it from memory is part of the stretch that was
//! measured.

use std::collections::HashMap;

use super::model::Model;
use crate::hash::NumberHash;
use crate::order::Class;
use crate::watch::Site;

/// Most virtual cores.
pub(crate) const MOST_CORES: usize = 384;

/// A set of virtual cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cores([u64; MOST_CORES / 64]);

impl Cores {
    pub(crate) fn insert(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }

    pub(crate) fn contains(&self, core: usize) -> bool {
        self.0[core / 64] & (1 << (core % 64)) != 0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn only(core: usize) -> Self {
        let mut cores = Self::default();
        cores.insert(core);
        cores
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                (left != 0).then(|| {
                    left &= left - 1;
                    index * 64 + bit
                })
            })
        })
    }
}

/// What a line is known as in a report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Label {
    /// The word of a lock, or what the lock guards.
    Lock(Class),
    /// An atomic, by the place that touched it last.
    At(Site),
}

/// How much a line was used since the window was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineUse {
    pub(crate) transfers: u64,
    /// Picoseconds in which a transfer was under way.
    pub(crate) served: u64,
    /// Picoseconds that cores waited for their turn.
    pub(crate) waited: u64,
    pub(crate) cores: Cores,
}

pub(crate) struct Line {
    copies: Cores,
    free_at: u64,
    pub(crate) label: Label,
    pub(crate) usage: LineUse,
}

/// All lines, by address over the size of a line.
#[derive(Default)]
pub(crate) struct Lines {
    lines: HashMap<usize, Line, NumberHash>,
}

/// Who touches a line, and when.
#[derive(Clone, Copy)]
pub(crate) struct Visit<'a> {
    pub(crate) core: usize,
    pub(crate) clock: u64,
    pub(crate) write: bool,
    pub(crate) model: &'a Model,
    /// The processor each core runs on.
    pub(crate) processors: &'a [usize],
    /// The longest transfer, in picoseconds, of those that were asked for together with this one
    /// and before it; none is 0.
    pub(crate) ahead: u64,
}

impl Visit<'_> {
    /// Picoseconds for a line that is so far away, over what is waited for anyway.
    fn cost(&self, distance: u64) -> u64 {
        if self.ahead == 0 {
            return distance;
        }
        distance.saturating_sub(self.ahead) + self.model.further
    }
}

/// A line that has come.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The core's clock.
    pub(crate) clock: u64,
    /// Picoseconds of its way; 0 where it was there already.
    pub(crate) distance: u64,
}

impl Lines {
    /// Touches line `number`.
    pub(crate) fn touch(&mut self, number: usize, label: Label, visit: Visit<'_>) -> Arrival {
        let line = self.lines.entry(number).or_insert_with(|| Line {
            copies: Cores::default(),
            free_at: 0,
            label,
            usage: LineUse::default(),
        });
        line.label = label;
        line.touch(visit)
    }

    /// Nobody has a copy any more; what was used stays counted.
    pub(crate) fn forget(&mut self, number: usize) {
        if let Some(line) = self.lines.get_mut(&number) {
            line.copies = Cores::default();
            line.free_at = 0;
        }
    }

    /// Forgets what has been used, not who has what.
    pub(crate) fn open_window(&mut self) {
        for line in self.lines.values_mut() {
            line.usage = LineUse::default();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&usize, &Line)> {
        self.lines.iter()
    }
}

impl Line {
    fn touch(&mut self, visit: Visit<'_>) -> Arrival {
        let Visit { core, clock, .. } = visit;
        let here = Arrival { clock, distance: 0 };
        let copies = self.copies;
        let has_copy = copies.contains(core);
        if has_copy && (!visit.write || copies == Cores::only(core)) {
            return here;
        }
        let others = copies.iter().filter(|&other| other != core);
        let way = |other| {
            visit
                .model
                .transfer(visit.processors[other], visit.processors[core])
        };
        let distance = if visit.write {
            // All other copies must go; the farthest takes longest.
            others.map(way).max()
        } else {
            // The nearest copy will do.
            others.map(way).min()
        };
        if visit.write {
            self.copies = Cores::only(core);
        } else {
            self.copies.insert(core);
        }
        let Some(distance) = distance else {
            return here;
        };
        let cost = visit.cost(distance);
        let start = clock.max(self.free_at);
        self.free_at = start + cost;
        self.usage.transfers += 1;
        self.usage.served += cost;
        self.usage.waited += start - clock;
        self.usage.cores.insert(core);
        Arrival {
            clock: self.free_at,
            distance,
        }
    }
}

/// Lines that a critical section of this class usually changes behind a pointer in what the lock
/// guards: they move with the lock, though they are no part of it.
pub(crate) fn behind(class: Class) -> usize {
    match class {
        // Control bytes and the slot of a hash table.
        Class::InodeTable | Class::BufferShard | Class::AttributeCache => 2,
        // Bitmap words, buddy words and the descriptor's counts.
        Class::Group => 4,
        // The edited bytes of a page, and the head of the page.
        Class::Buffer => 2,
        // The tail of a list, the slot that is changed, the root of a tree.
        Class::OrphanSlot
        | Class::InodeMap
        | Class::Journal
        | Class::Checkpoint
        | Class::DeviceQueue
        | Class::GroupIndex => 1,
        // What they guard lies in the lock.
        _ => 0,
    }
}
