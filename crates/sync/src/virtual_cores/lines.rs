//! Cache lines in virtual time: which cores have a copy of a line, and what it costs to get one.
//!
//! A core that reads a line last written by another core, or writes a line of which another core
//! has a copy, waits for a transfer. A line serves one transfer at a time, so a second core that
//! asks waits for the first. Lines that are requested together are transferred together, since a
//! core can have several misses outstanding: the farthest line costs its transfer, each other one
//! an extra cost. A core that has the only copy writes without cost, and a core that has a copy
//! reads without cost. The first touch of a line costs nothing: fetching it from memory is part of
//! the measured stretch.
//!
//! A line is known by its address until its memory is freed. Then its record ends: it is kept if a
//! core waited for it, and else added to those of the same label, since there may be millions.

use std::collections::HashMap;

use super::model::Model;
use crate::hash::NumberHash;
use crate::order::Class;
use crate::watch::Site;

/// Most virtual cores.
pub(crate) const MAX_CORES: usize = 384;

/// A set of virtual cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cores([u64; MAX_CORES / 64]);

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

/// The name of a line in a report: by its last write, since writes are why it is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Label {
    /// The word of a lock, or what the lock guards.
    Lock(Class),
    /// An atomic, named by the source location that wrote it last.
    At(Site),
}

/// The use of a line since the window was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LineCounts {
    pub(crate) transfers: u64,
    /// Picoseconds during which a transfer was in progress.
    pub(crate) served: u64,
    /// Picoseconds of these that a core waited for: less than all, if it requested the line ahead.
    pub(crate) awaited: u64,
    /// Picoseconds that cores waited until the line was free for their transfer.
    pub(crate) waited: u64,
    pub(crate) cores: Cores,
}

impl LineCounts {
    /// Adds those of another line; the sum is of no line, so it has no cores.
    fn add(&mut self, other: Self) {
        self.transfers += other.transfers;
        self.served += other.served;
        self.awaited += other.awaited;
        self.waited += other.waited;
    }
}

pub(crate) struct Line {
    copies: Cores,
    free_at: u64,
    on_its_way: Option<Requested>,
    pub(crate) label: Label,
    pub(crate) usage: LineCounts,
}

/// A transfer to a core that has requested the line ahead and not used it yet.
#[derive(Clone, Copy)]
struct Requested {
    core: usize,
    /// The clock at which the transfer begins, and at which the line arrives.
    start: u64,
    end: u64,
}

/// All lines, keyed by address divided by the size of a line.
#[derive(Default)]
pub(crate) struct Lines {
    lines: HashMap<usize, Line, NumberHash>,
    /// The lines whose memory was freed after cores had waited for them.
    pub(crate) freed: Vec<(Label, LineCounts)>,
    /// The sums of the others whose memory was freed.
    pub(crate) freed_sums: HashMap<Label, LineCounts>,
}

/// An access to a line: by which core, and when.
#[derive(Clone, Copy)]
pub(crate) struct LineAccess<'a> {
    pub(crate) core: usize,
    pub(crate) clock: u64,
    pub(crate) write: bool,
    pub(crate) model: &'a Model,
    /// The processor each core runs on.
    pub(crate) processors: &'a [usize],
    /// The longest transfer, in picoseconds, among the lines requested before this one in the same
    /// group; 0 if there was none.
    pub(crate) ahead: u64,
}

impl LineAccess<'_> {
    /// Picoseconds for a line at this distance, in addition to what the core waits for anyway.
    fn cost(&self, distance: u64) -> u64 {
        if self.ahead == 0 {
            return distance;
        }
        distance.saturating_sub(self.ahead) + self.model.further
    }
}

/// The result of an access to a line.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    /// The core's clock after the access.
    pub(crate) clock: u64,
    /// Picoseconds of the transfer; 0 if the core already had a copy.
    pub(crate) distance: u64,
    /// Picoseconds that the core waited until the line was free for its transfer.
    pub(crate) waited: u64,
}

impl Arrival {
    /// The core needs no transfer.
    fn here(clock: u64) -> Self {
        Self {
            clock,
            distance: 0,
            waited: 0,
        }
    }
}

impl Lines {
    /// Touches line `number`.
    pub(crate) fn touch(&mut self, number: usize, label: Label, visit: LineAccess<'_>) -> Arrival {
        self.line(number, label, visit.write).touch(visit)
    }

    /// Requests line `number` for a core that does not wait for it: it waits when it touches the
    /// line before that has arrived. Returns when it arrives.
    pub(crate) fn fetch(&mut self, number: usize, label: Label, visit: LineAccess<'_>) -> Arrival {
        self.line(number, label, visit.write).fetch(visit)
    }

    fn line(&mut self, number: usize, label: Label, write: bool) -> &mut Line {
        let line = self.lines.entry(number).or_insert_with(|| Line {
            copies: Cores::default(),
            free_at: 0,
            on_its_way: None,
            label,
            usage: LineCounts::default(),
        });
        if write {
            line.label = label;
        }
        line
    }

    /// Drops all copies of a line, and ends its record.
    pub(crate) fn forget(&mut self, number: usize) {
        let Some(line) = self.lines.get_mut(&number) else {
            return;
        };
        line.copies = Cores::default();
        line.free_at = 0;
        line.on_its_way = None;
        let usage = std::mem::take(&mut line.usage);
        if usage.waited > 0 {
            self.freed.push((line.label, usage));
        } else if usage.transfers > 0 {
            self.freed_sums.entry(line.label).or_default().add(usage);
        }
    }

    /// Resets the usage counts; the copies stay.
    pub(crate) fn open_window(&mut self) {
        self.freed.clear();
        self.freed_sums.clear();
        for line in self.lines.values_mut() {
            line.usage = LineCounts::default();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&usize, &Line)> {
        self.lines.iter()
    }
}

impl Line {
    fn touch(&mut self, visit: LineAccess<'_>) -> Arrival {
        let LineAccess { core, clock, .. } = visit;
        if self.is_at(core, visit.write) {
            return self.wait_until_here(core, clock);
        }
        let Some((start, distance)) = self.transfer(visit) else {
            return Arrival::here(clock);
        };
        let waited = start - clock;
        self.usage.awaited += self.free_at - start;
        self.usage.waited += waited;
        Arrival {
            clock: self.free_at,
            distance,
            waited,
        }
    }

    fn fetch(&mut self, visit: LineAccess<'_>) -> Arrival {
        let LineAccess { core, clock, .. } = visit;
        let here = Arrival::here(clock);
        if self.is_at(core, visit.write) {
            return here;
        }
        let Some((start, distance)) = self.transfer(visit) else {
            return here;
        };
        let end = self.free_at;
        self.on_its_way = Some(Requested { core, start, end });
        Arrival {
            clock: end,
            distance,
            waited: 0,
        }
    }

    /// Whether a core can use the line without another transfer.
    fn is_at(&self, core: usize, write: bool) -> bool {
        self.copies.contains(core) && (!write || self.copies == Cores::only(core))
    }

    /// Waits for a line that this core has requested ahead, if it has not arrived yet.
    fn wait_until_here(&mut self, core: usize, clock: u64) -> Arrival {
        let mine = self.on_its_way.take_if(|requested| requested.core == core);
        let Some(Requested { start, end, .. }) = mine.filter(|mine| mine.end > clock) else {
            return Arrival::here(clock);
        };
        let begins = start.max(clock);
        let waited = begins - clock;
        self.usage.waited += waited;
        self.usage.awaited += end - begins;
        Arrival {
            clock: end,
            distance: end - clock,
            waited,
        }
    }

    /// Transfers the line; returns when that begins and the distance, if another core had a copy.
    fn transfer(&mut self, visit: LineAccess<'_>) -> Option<(u64, u64)> {
        let core = visit.core;
        let copies = self.copies;
        // A copy that another core has requested stays on its way there if this one only reads.
        self.on_its_way
            .take_if(|requested| visit.write || requested.core == core);
        let others = copies.iter().filter(|&other| other != core);
        let way = |other| {
            visit
                .model
                .transfer(visit.processors[other], visit.processors[core])
        };
        let distance = if visit.write {
            // All other copies must be invalidated; the farthest takes longest.
            others.map(way).max()
        } else {
            // The nearest copy is enough.
            others.map(way).min()
        };
        if visit.write {
            self.copies = Cores::only(core);
        } else {
            self.copies.insert(core);
        }
        let distance = distance?;
        let start = visit.clock.max(self.free_at);
        let cost = visit.cost(distance);
        self.free_at = start + cost;
        self.usage.transfers += 1;
        self.usage.served += cost;
        self.usage.cores.insert(core);
        Some((start, distance))
    }
}

/// The number of lines that a critical section of this class usually changes behind a pointer: they
/// move with the lock, although they are not part of it.
pub(crate) fn behind(class: Class) -> usize {
    match class {
        // The control bytes and the slot of a hash table.
        Class::InodeTable | Class::BufferShard | Class::AttributeCache => 2,
        // Bitmap words, buddy words and the counts of the descriptor.
        Class::Group => 4,
        // The edited bytes of a page and the header of the page.
        Class::Buffer => 2,
        // The tail of a list, the changed slot, the root of a tree.
        Class::OrphanSlot
        | Class::InodeMap
        | Class::Journal
        | Class::Checkpoint
        | Class::DeviceQueue
        | Class::GroupIndex => 1,
        // The guarded data is inside the lock.
        _ => 0,
    }
}
