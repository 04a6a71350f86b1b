//! Lanes: where a shard claims inode numbers after it has lost a race for one.
//!
//! A lane is 512 numbers of one group: a cache line of the bitmap in memory, and many whole blocks
//! of the inode table. Cores with different lanes share neither that cache line, nor blocks of the
//! inode table, nor the state that a transaction and the table of inodes in memory have per block.
//!
//! A shard remembers its last [`PAST`] lanes. When it has freed the numbers that it claimed there,
//! it claims there again: the inodes' memory and the blocks of the table are in its core's caches,
//! and the transaction has listed these blocks already.
//!
//! A lane is a hint that a shard leaves for itself. Other shards do not see it, so two shards may
//! choose one lane, and values stored by two threads of a shard may be mixed: then claims race
//! again, which costs little.

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The line of a shard that must find one.
const NO_LINE: u32 = u32::MAX;

/// The number of lanes that a shard remembers.
const PAST: usize = 8;

/// A shard's lane, if it has one.
#[derive(Default)]
pub struct Lane {
    /// The number of the group whose directories' files the lane is for, plus one; 0 for none.
    home: AtomicU64,
    /// The lane's group in the upper half, its line in the lower half.
    place: AtomicU64,
    /// The transaction in which the shard last lost a race.
    met: AtomicU32,
    /// Earlier lanes for the same directories, as in `place`, plus one; 0 for none.
    past: [AtomicU64; PAST],
    /// How many lanes were remembered in total.
    remembered: AtomicU32,
}

impl Lane {
    /// The group and line for files whose directory is in `home`; without a line, one must be
    /// found.
    pub fn place(&self, home: GroupNumber) -> Option<(GroupNumber, Option<u32>)> {
        if self.home.load(Ordering::Relaxed) != u64::from(home.get()) + 1 {
            return None;
        }
        let (group, line) = unpacked(self.place.load(Ordering::Relaxed));
        Some((group, Some(line).filter(|&line| line != NO_LINE)))
    }

    /// Makes a line of `group` the lane for files whose directory is in `home`, and remembers the
    /// previous lane.
    pub fn enter(&self, home: GroupNumber, group: GroupNumber, line: u32) {
        if let Some((old_group, Some(old_line))) = self.place(home) {
            let turn = self.remembered.load(Ordering::Relaxed);
            self.remembered
                .store(turn.wrapping_add(1), Ordering::Relaxed);
            self.past[turn as usize % PAST]
                .store(packed(old_group, old_line) + 1, Ordering::Relaxed);
        }
        self.set(home, group, line);
    }

    /// Notes a lost race in transaction `tid`: a line must be found for files whose directory is in
    /// `home`. The current lane is not remembered.
    pub fn seek(&self, home: GroupNumber, tid: Tid) {
        self.met.store(tid.0, Ordering::Relaxed);
        if self.place(home).is_none() {
            self.past
                .iter()
                .for_each(|past| past.store(0, Ordering::Relaxed));
        }
        self.set(home, home, NO_LINE);
    }

    fn set(&self, home: GroupNumber, group: GroupNumber, line: u32) {
        self.place.store(packed(group, line), Ordering::Relaxed);
        self.home
            .store(u64::from(home.get()) + 1, Ordering::Relaxed);
    }

    /// The earlier lanes, the oldest first.
    pub fn past(&self) -> impl Iterator<Item = (GroupNumber, u32)> + '_ {
        let oldest = self.remembered.load(Ordering::Relaxed) as usize;
        let places = (0..PAST).map(move |turn| &self.past[oldest.wrapping_add(turn) % PAST]);
        places.filter_map(|place| Some(unpacked(place.load(Ordering::Relaxed).checked_sub(1)?)))
    }

    /// Whether the shard lost a race in transaction `tid` or the previous one.
    pub fn met_lately(&self, tid: Tid) -> bool {
        tid.0.wrapping_sub(self.met.load(Ordering::Relaxed)) <= 1
    }

    /// Gives up the lane.
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
