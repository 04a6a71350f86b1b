//! The inode allocator: which inode number a new file gets.
//!
//! [`orlov`] chooses the group to begin with; [`claim`] allocates a number of one group, in the way
//! that the switch `inode-bits` selects; [`lanes`] separates threads that race for numbers. The
//! first round skips groups that are locked and the second one waits for them, so that threads that
//! create many files do not queue at one bitmap. A third round tries groups regardless of their
//! hints, so that no free inode is missed.
//!
//! Without contention the lowest free inode is taken, so that the never used part of a table
//! shrinks from its front.
//!
//! Credits: one group, [`CREDITS_PER_GROUP`](crate::groups::CREDITS_PER_GROUP) blocks.

mod claim;
mod known;
mod lanes;
mod orlov;

use std::cell::OnceCell;

use pext4_jbd2::Handle;
use pext4_ondisk::{Corrupt, GroupNumber, InodeNumber};

use crate::error::{Refusal, Result};
use crate::groups::Groups;
use claim::Busy;
use orlov::NEAR;

/// What an inode is claimed for, as far as its group depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Anything but a directory: near its parent.
    File,
    /// A directory: near its parent, as long as there is room for what it will contain.
    Directory,
    /// A directory that is apart from its siblings.
    TopDirectory,
}

impl Placement {
    fn is_directory(self) -> bool {
        self != Self::File
    }
}

impl Groups {
    /// Claims an inode in the directory `parent`.
    ///
    /// # Errors
    ///
    /// `Refused(NoInodes)` if every inode is used.
    pub fn allocate_inode(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
        placement: Placement,
    ) -> Result<InodeNumber> {
        let home = self.home_of(parent);
        let is_directory = placement.is_directory();
        let in_lane = (!is_directory).then(|| self.claim_in_lane(handle, home));
        let found = in_lane.flatten().or_else(|| {
            let start = self.group_for(parent, placement);
            self.claim_around(handle, (home, start), is_directory)
        });
        self.report();
        found.ok_or_else(|| Refusal::NoInodes.into())
    }

    /// Tries the groups in circular order from `start` on, for a file whose directory is in `home`.
    fn claim_around(
        &self,
        handle: &mut Handle<'_>,
        (home, start): (GroupNumber, GroupNumber),
        is_directory: bool,
    ) -> Option<InodeNumber> {
        let candidates = || {
            self.order_from(start)
                .filter(|&group| self.info(group).free_inodes_hint() > 0)
        };
        let mut claim = |group, busy| self.claim_in(handle, (home, group), busy, is_directory);
        let near = candidates()
            .take(NEAR)
            .find_map(|group| claim(group, Busy::Skip));
        near.or_else(|| candidates().find_map(|group| claim(group, Busy::Wait)))
            .or_else(|| {
                let mut rest = self.order_from(start).filter(self.may_have_inodes());
                rest.find_map(|group| claim(group, Busy::Wait))
            })
    }

    /// Whether a group may have free inodes that its hint does not show. The bits of a group tell
    /// that, and looking at them costs little. If they are not in memory, nobody has claimed or
    /// freed an inode there, and only a damaged descriptor can hide one: of a volume that has no
    /// free inode no bitmaps are read for that. (Elsewhere the sum does not count: while one thread
    /// frees an inode and another claims one, it may read as 0 although there is always one.)
    fn may_have_inodes(&self) -> impl FnMut(&GroupNumber) -> bool {
        let has_any = OnceCell::new();
        move |&group| {
            let info = self.info(group);
            info.inodes.get().is_some()
                || info.free_inodes_hint() > 0
                || *has_any.get_or_init(|| self.free_inodes() > 0)
        }
    }

    /// Frees an inode under `handle`. In a group whose inode bitmap is corrupt it is lost instead,
    /// until the image is repaired.
    ///
    /// # Errors
    ///
    /// `Corrupt` if there is no such inode, or if the format reserves it.
    pub fn free_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        was_directory: bool,
    ) -> Result<()> {
        let geometry = &self.store.geometry;
        let place = geometry
            .inode_group(inode)
            .filter(|_| inode >= geometry.first_inode);
        let Some((group, index)) = place else {
            return Err(Corrupt::new("inode number", "is not one that can be freed")
                .in_inode(inode)
                .into());
        };
        self.give_back(handle, group, index, was_directory);
        self.report();
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
