//! Where a core claims inode numbers since it met others at one number.
//!
//! A lane is 512 numbers of one group: a cache line of the bitmap in memory, and many whole blocks of the
//! inode table. Cores with lanes of their own share neither that line, nor the blocks of their inodes,
//! nor what a transaction and the table of inodes in memory keep by block.
//!
//! It is advice of a shard to itself. Nobody else is told, so two shards may have one lane, and values that
//! were stored by two threads of a shard may be mixed: then a claim meets others again, which costs a race.

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The line of a shard that looks for one.
const NO_LINE: u32 = u32::MAX;

/// A shard's lane, if it has one.
#[derive(Default)]
pub struct Lane {
    /// One more than the group of the directories whose files the lane is for; 0 for none.
    home: AtomicU64,
    /// The group, and the line in the lower half.
    place: AtomicU64,
    /// The transaction in which the shard last met others.
    met: AtomicU32,
}

impl Lane {
    /// The group and line for files whose directory lies in `home`; without a line, one is to be looked
    /// for.
    pub fn place(&self, home: GroupNumber) -> Option<(GroupNumber, Option<u32>)> {
        if self.home.load(Ordering::Relaxed) != u64::from(home.get()) + 1 {
            return None;
        }
        let place = self.place.load(Ordering::Relaxed);
        let half =
            |value: u64| u32::try_from(value & u64::from(u32::MAX)).expect("masked to 32 bits");
        let line = Some(half(place)).filter(|&line| line != NO_LINE);
        Some((GroupNumber(half(place >> 32)), line))
    }

    /// Goes on in a line of `group`, for files whose directory lies in `home`.
    pub fn enter(&self, home: GroupNumber, group: GroupNumber, line: u32) {
        let place = u64::from(group.get()) << 32 | u64::from(line);
        self.place.store(place, Ordering::Relaxed);
        self.home
            .store(u64::from(home.get()) + 1, Ordering::Relaxed);
    }

    /// Others were met in transaction `tid`: a line is to be looked for, for files whose directory lies
    /// in `home`.
    pub fn seek(&self, home: GroupNumber, tid: Tid) {
        self.met.store(tid.0, Ordering::Relaxed);
        self.enter(home, home, NO_LINE);
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
