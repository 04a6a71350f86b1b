//! Where large files look for space: behind other large files.
//!
//! A goal is the group in which the last allocation of a large file ended. It is advice: nothing
//! depends on its being there or being new, so relaxed atomics do (rule D9). What goals are
//! for is to put *different* files' long runs behind each other, so there are fewer of them than
//! groups, at most one for four.
//!
//! - *Locked*: one goal, under the lock that also guards the list of freed extents.
//! - *Slots*: several, chosen by inode number, so that a file that is written to from different
//!   cores keeps its goal.
//! - *Spread*: more of them than cores, chosen by a hash of the inode number. The first files of
//!   several directories often lie in different groups at the same index, so their numbers are the
//!   same modulo most counts of slots: by the hash they are not. Two files may have one goal even so;
//!   therefore each remembers its own while it is in memory, and looks at the common one only to
//!   begin. Whoever finds the group of its goal held goes elsewhere and stays there, so files that
//!   grow at the same time come to lie in groups of their own, however they began.
//! - *Inode*: an inode has its own (two may share one, by a hash of their numbers). Files that
//!   begin at the same place then meet there again.

use pext4_ondisk::GroupNumber;
use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::hash::spread;
use pext4_sync::topology;

use super::waiting::GlobalLists;
use crate::options::{self, Width};
use crate::store::Store;

/// "No goal yet."
const NONE: u32 = u32::MAX;
/// Goals for each core, where there are more of them than cores.
const SPREAD: u32 = 16;
/// Goals if each inode has its own.
const MOST_INODE_GOALS: u32 = 1 << 16;

/// The goals of a volume.
pub enum StreamGoals {
    /// One, among what the global lock guards.
    Locked,
    /// By inode number modulo their count.
    Slots(Box<[AtomicU32]>),
    /// By a hash of the inode number.
    Spread(Box<[AtomicU32]>),
}

impl StreamGoals {
    pub fn new(store: &Store) -> Self {
        let groups = store.geometry.group_count;
        let cores = u32::try_from(topology::shard_count()).unwrap_or(u32::MAX);
        let width = match store.options.scaling.stream_goals {
            options::StreamGoals::Locked => return Self::Locked,
            options::StreamGoals::Inode => store.geometry.inodes_count.min(MOST_INODE_GOALS),
            options::StreamGoals::Slots(Width::Auto) => cores.min(groups.div_ceil(4)),
            options::StreamGoals::Slots(Width::Fixed(width)) => width.min(groups),
            options::StreamGoals::Spread => (SPREAD * cores).min(groups.div_ceil(4)),
        };
        let goals = (0..width.max(1)).map(|_| AtomicU32::new(NONE)).collect();
        match store.options.scaling.stream_goals {
            options::StreamGoals::Spread => Self::Spread(goals),
            _ => Self::Slots(goals),
        }
    }

    /// Whether the goals here are only where files begin, who remember their own.
    pub fn are_kept_by_files(&self) -> bool {
        matches!(self, Self::Spread(_))
    }

    /// The goal of a file, unless it is under the lock.
    fn slot(&self, inode: u32) -> Option<&AtomicU32> {
        match self {
            Self::Locked => None,
            Self::Slots(slots) => Some(&slots[inode as usize % slots.len()]),
            Self::Spread(slots) => {
                let spread = spread(u64::from(inode));
                Some(&slots[spread as usize % slots.len()])
            }
        }
    }

    /// The group in which the last allocation of a file with this goal ended.
    pub fn get(&self, lists: &GlobalLists, inode: u32) -> Option<GroupNumber> {
        let Some(slot) = self.slot(inode) else {
            return lists.stream_goal();
        };
        let group = slot.load(Ordering::Relaxed);
        (group != NONE).then_some(GroupNumber(group))
    }

    /// Remembers it; a line that says so already is not written.
    pub fn set(&self, lists: &GlobalLists, inode: u32, group: GroupNumber) {
        match self.slot(inode) {
            None => lists.set_stream_goal(group),
            Some(slot) if slot.load(Ordering::Relaxed) != group.get() => {
                slot.store(group.get(), Ordering::Relaxed);
            }
            Some(_) => {}
        }
    }
}
