//! Blocks set aside for a file that grows, or for the small files of one shard.
//!
//! Life cycle: the surplus of an allocation is *set aside* under the very hold of the group that
//! took it from the buddy, and put on the group's list, so that there is no moment in which it is
//! neither free nor findable. Its owner *uses* it from the front; whoever needs space may *discard*
//! it. Whichever comes first empties `state`; an empty preallocation is no longer on the list and
//! its owner drops it. On disk the blocks are free until they are used.
//!
//! Locks: `state` [Preallocation] is taken before the group.

use pext4_ondisk::GroupNumber;
use pext4_sync::order::Class;
use pext4_sync::{Mutex, MutexGuard};

use super::buddy::Span;

/// A run of blocks of one group, allocatable only through this value.
pub struct Preallocation {
    group: GroupNumber,
    /// The block behind the run: unlike its start it never changes, and tells runs of a group apart.
    end: u32,
    state: Mutex<Option<Aside>>,
}

/// What is left of a preallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside {
    /// The block of the file that the run's first block is for; meaningless for small files' runs.
    pub logical: u32,
    /// The blocks, relative to the group.
    pub span: Span,
}

impl Preallocation {
    /// A preallocation of these blocks.
    pub(crate) fn new(group: GroupNumber, aside: Aside) -> Self {
        Self {
            group,
            end: aside.span.end(),
            state: Mutex::new(Class::Preallocation, Some(aside)),
        }
    }

    /// The group it lies in.
    pub(crate) fn group(&self) -> GroupNumber {
        self.group
    }

    /// What tells it apart from the others of its group.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// What is left, to look at and to change; the group is locked inside.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Aside>> {
        self.state.lock()
    }

    /// As [`Self::lock`], unless somebody is at it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Aside>>> {
        self.state.try_lock()
    }
}
