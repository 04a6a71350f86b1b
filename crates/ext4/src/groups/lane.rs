//! Where a core claims inode numbers since it met others at one number.
//!
//! A lane is 512 numbers of one group: a cache line of the bitmap in memory, and many whole blocks of the
//! inode table. Cores with lanes of their own share neither that line, nor the blocks of their inodes,
//! nor what a transaction and the table of inodes in memory keep by block.
//!
//! A shard remembers its last [`PAST`] lanes. When it has freed what it claimed there, it claims there again:
//! the inodes' memory and the blocks of the table are in its core's caches, and a transaction has them already.
//!
//! It is advice of a shard to itself. Nobody else is told, so two shards may have one lane, and values that
//! were stored by two threads of a shard may be mixed: then a claim meets others again, which costs a race.

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The line of a shard that looks for one.
const NO_LINE: u32 = u32::MAX;

/// Lanes that a shard remembers.
const PAST: usize = 8;

/// A shard's lane, if it has one.
#[derive(Default)]
pub struct Lane {
    /// One more than the group of the directories whose files the lane is for; 0 for none.
    home: AtomicU64,
    /// The group, and the line in the lower half.
    place: AtomicU64,
    /// The transaction in which the shard last met others.
    met: AtomicU32,
    /// One more than the places that were lanes for the same directories; 0 for none.
    past: [AtomicU64; PAST],
    /// How many places were remembered, ever.
    remembered: AtomicU32,
}

impl Lane {
    /// The group and line for files whose directory lies in `home`; without a line, one is to be looked
    /// for.
    pub fn place(&self, home: GroupNumber) -> Option<(GroupNumber, Option<u32>)> {
        if self.home.load(Ordering::Relaxed) != u64::from(home.get()) + 1 {
            return None;
        }
        let (group, line) = unpacked(self.place.load(Ordering::Relaxed));
        Some((group, Some(line).filter(|&line| line != NO_LINE)))
    }

    /// Goes on in a line of `group`, for files whose directory lies in `home`. The line it leaves is
    /// remembered.
    pub fn enter(&self, home: GroupNumber, group: GroupNumber, line: u32) {
        if let Some((group, Some(line))) = self.place(home) {
            let turn = self.remembered.load(Ordering::Relaxed);
            self.remembered
                .store(turn.wrapping_add(1), Ordering::Relaxed);
            self.past[turn as usize % PAST].store(packed(group, line) + 1, Ordering::Relaxed);
        }
        self.go(home, group, line);
    }

    /// Others were met in transaction `tid`: a line is to be looked for, for files whose directory lies
    /// in `home`. The one where they were met is not remembered.
    pub fn seek(&self, home: GroupNumber, tid: Tid) {
        self.met.store(tid.0, Ordering::Relaxed);
        if self.place(home).is_none() {
            self.past
                .iter()
                .for_each(|past| past.store(0, Ordering::Relaxed));
        }
        self.go(home, home, NO_LINE);
    }

    fn go(&self, home: GroupNumber, group: GroupNumber, line: u32) {
        self.place.store(packed(group, line), Ordering::Relaxed);
        self.home
            .store(u64::from(home.get()) + 1, Ordering::Relaxed);
    }

    /// The lanes before this one, the oldest first.
    pub fn past(&self) -> impl Iterator<Item = (GroupNumber, u32)> + '_ {
        let oldest = self.remembered.load(Ordering::Relaxed) as usize;
        let places = (0..PAST).map(move |turn| &self.past[oldest.wrapping_add(turn) % PAST]);
        places.filter_map(|place| Some(unpacked(place.load(Ordering::Relaxed).checked_sub(1)?)))
    }

    /// Whether others were met in transaction `tid` or the one before it.
    pub fn met_lately(&self, tid: Tid) -> bool {
        tid.0.wrapping_sub(self.met.load(Ordering::Relaxed)) <= 1
    }

    /// There is no lane any more.
    pub fn leave(&self) {
        self.home.store(0, Ordering::Relaxed);
    }
}

fn packed(group: GroupNumber, line: u32) -> u64 {
    u64::from(group.get()) << 32 | u64::from(line)
}

fn unpacked(place: u64) -> (GroupNumber, u32) {
    let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits");
    (GroupNumber(half(place >> 32)), half(place))
}
