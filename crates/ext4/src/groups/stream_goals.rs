//! Stream goals: large files are allocated after other large files.
//!
//! A goal is the group in which the last allocation of a large file ended. It is a hint:
//! correctness does not depend on it, so relaxed atomics suffice (rule D9). The purpose of goals is
//! to place the long runs of *different* files one after another, so there are fewer goals than
//! groups: at most one for four groups, except in the settings *inode* and a fixed number of slots.
//!
//! - *Locked*: one goal, under the lock that also guards the list of freed extents.
//! - *Slots*: several, chosen by inode number, so that a file that is written to from different
//!   cores keeps its goal.
//! - *Spread*: sixteen goals for each core, chosen by the caller's core and, among those of a core,
//!   by a hash of the inode number. Files that grow at the same time mostly grow on different
//!   cores, so they do not share a goal, and their runs do not take turns in its group. (Chosen by
//!   the hash alone, ten of sixteen tasks with sixteen goals share one with another on average.) By
//!   the hash and not by the number: the first files of several directories often have the same
//!   index in different groups, so their numbers are equal modulo most counts of slots. Each file
//!   remembers its own goal while it is in memory, and uses the shared one only for its first run,
//!   so it keeps its place when its writer moves to another core. A file that finds the group of
//!   its goal locked moves to another group and stays there.
//! - *Inode*: one goal per inode (two inodes may share one, if their numbers are equal modulo the
//!   count). Files that begin in the same group then contend there again.

use std::sync::Arc;

use pext4_ondisk::GroupNumber;
use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::hash::spread;
use pext4_sync::topology;

use super::global_lists::GlobalLists;
use crate::options::{self, Width};
use crate::store::Store;

/// No goal yet.
const NONE: u32 = u32::MAX;
/// The number of goals per core in the setting *spread*.
const SPREAD: u32 = 16;
/// The maximum number of goals in the setting *inode*.
const MAX_INODE_GOALS: u32 = 1 << 16;

/// The goals of a volume.
pub enum StreamGoals {
    /// One, which the global lock guards.
    Locked(Arc<GlobalLists>),
    /// By inode number modulo their count.
    Slots(Box<[AtomicU32]>),
    /// By core and a hash of the inode number.
    Spread(Box<[AtomicU32]>),
}

impl StreamGoals {
    pub fn new(store: &Store, lists: &Arc<GlobalLists>) -> Self {
        let groups = store.geometry.group_count;
        let cores = u32::try_from(topology::processors()).unwrap_or(u32::MAX);
        let width = match store.options.scaling.stream_goals {
            options::StreamGoals::Locked => return Self::Locked(Arc::clone(lists)),
            options::StreamGoals::Inode => store.geometry.inodes_count.min(MAX_INODE_GOALS),
            options::StreamGoals::Slots(Width::Auto) => cores.min(groups.div_ceil(4)),
            options::StreamGoals::Slots(Width::Fixed(width)) => width.min(groups),
            options::StreamGoals::Spread => cores.saturating_mul(SPREAD).min(groups.div_ceil(4)),
        };
        let goals = (0..width.max(1)).map(|_| AtomicU32::new(NONE)).collect();
        match store.options.scaling.stream_goals {
            options::StreamGoals::Spread => Self::Spread(goals),
            _ => Self::Slots(goals),
        }
    }

    /// The number of cores that have goals of their own.
    pub fn cores() -> usize {
        topology::processors().min(topology::shard_count())
    }

    /// Whether files remember goals of their own, and use those here only for their first run.
    pub fn are_kept_by_files(&self) -> bool {
        matches!(self, Self::Spread(_))
    }

    /// The slot of a file's goal, or the lists with the only one.
    fn slot(&self, inode: u32) -> Result<&AtomicU32, &GlobalLists> {
        match self {
            Self::Locked(lists) => Err(lists),
            Self::Slots(slots) => Ok(&slots[inode as usize % slots.len()]),
            Self::Spread(slots) => {
                let cores = Self::cores();
                let core = topology::current() % cores;
                // Where there are fewer goals than cores, neighbours have different ones.
                let own = (slots.len() / cores).max(1);
                let spread = spread(u64::from(inode)) as usize;
                Ok(&slots[(core * own + spread % own) % slots.len()])
            }
        }
    }

    /// The group in which the last allocation of a file with this goal ended.
    pub fn get(&self, inode: u32) -> Option<GroupNumber> {
        match self.slot(inode) {
            Err(lists) => lists.stream_goal(),
            Ok(slot) => {
                let group = slot.load(Ordering::Relaxed);
                (group != NONE).then_some(GroupNumber(group))
            }
        }
    }

    /// Sets the goal, without writing the cache line if it is unchanged.
    pub fn set(&self, inode: u32, group: GroupNumber) {
        match self.slot(inode) {
            Err(lists) => lists.set_stream_goal(group),
            Ok(slot) if slot.load(Ordering::Relaxed) != group.get() => {
                slot.store(group.get(), Ordering::Relaxed);
            }
            Ok(_) => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_ondisk::{GroupNumber, InodeNumber};
    use pext4_sync::topology;

    use super::StreamGoals;
    use crate::groups::testing::Ground;
    use crate::options::Scaling;

    #[test]
    fn stream_goals_are_as_many_as_the_processors_suggest() {
        let processors = topology::processors();
        let shapes = [
            (Scaling::SEEDS, processors),
            (Scaling::FULL, 16 * processors),
        ];
        for (scaling, most) in shapes {
            let Some(ground) = Ground::set(&["-b", "1024", "-g", "512"], "64M", scaling) else {
                return;
            };
            let (StreamGoals::Slots(goals) | StreamGoals::Spread(goals)) =
                &ground.groups.stream_goals
            else {
                panic!("{scaling} has one goal");
            };
            let quarter = ground.groups.count().div_ceil(4) as usize;
            assert_eq!(goals.len(), most.min(quarter), "{scaling}");
        }
    }

    #[test]
    fn files_of_different_cores_have_different_stream_goals() {
        let Some(ground) = Ground::set(&["-b", "1024", "-g", "512"], "64M", Scaling::FULL) else {
            return;
        };
        let groups = &ground.groups;
        if StreamGoals::cores() == 1 {
            println!("SKIPPED: one processor has nobody to differ from");
            return;
        }
        let files = || (12..200).map(InodeNumber);
        let pinned = topology::pin(0);
        files().for_each(|file| groups.set_stream_goal(file, GroupNumber(1)));
        assert!(files().all(|file| groups.stream_goal(file) == Some(GroupNumber(1))));
        drop(pinned);
        let _pinned = topology::pin(1);
        assert!(files().all(|file| groups.stream_goal(file).is_none()));
    }
}
