//! Which inode number a new file gets.
//!
//! [`orlov`] says in which order groups are tried; here the first group with a free inode gives
//! one. Groups that somebody else holds are passed by at first and waited for in a second round,
//! so makers of many files do not queue at one bitmap and no free inode is missed.
//!
//! Search, claim, counts and flags happen under one hold of the group (rule D3, D7). The
//! lowest free inode is taken, so the never used part of a table only shrinks from its front.
//!
//! Credits: one group, [`CREDITS_PER_GROUP`](crate::groups::CREDITS_PER_GROUP) blocks.

mod orlov;

use pext4_jbd2::Handle;
use pext4_ondisk::{Corrupt, GroupNumber, InodeNumber, bitmap};

use crate::error::{Refusal, Result};
use crate::groups::{Groups, Held};

impl Groups {
    /// Claims an inode for a file in the directory `parent`; `is_top` asks for a directory to be
    /// put apart from its neighbours.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if every inode is used.
    pub fn allocate_inode(
        &self,
        handle: &mut Handle<'_>,
        parent: InodeNumber,
        is_directory: bool,
        is_top: bool,
    ) -> Result<InodeNumber> {
        self.make_room();
        let start = self.group_for(parent, is_directory, is_top);
        let found = self.claim_around(handle, start, is_directory);
        self.report();
        found.ok_or_else(|| Refusal::NoSpace.into())
    }

    /// Tries the groups from `start` on: those nobody holds first, then waiting.
    fn claim_around(
        &self,
        handle: &mut Handle<'_>,
        start: GroupNumber,
        is_directory: bool,
    ) -> Option<InodeNumber> {
        let candidates = || {
            self.order_from(start)
                .filter(|&group| self.slot(group).free_inodes_hint() > 0)
        };
        let near = candidates().take(self.near() as usize);
        let uncontended = near
            .filter_map(|group| self.try_hold(group))
            .find_map(|mut held| self.claim_in(handle, &mut held, is_directory));
        uncontended.or_else(|| {
            candidates()
                .find_map(|group| self.claim_in(handle, &mut self.hold(group), is_directory))
        })
    }

    fn claim_in(
        &self,
        handle: &mut Handle<'_>,
        held: &mut Held<'_>,
        is_directory: bool,
    ) -> Option<InodeNumber> {
        if !held.load_inodes() {
            return None;
        }
        let geometry = &self.store.geometry;
        let group = held.number();
        let reserved = if group.get() == 0 {
            geometry.first_inode.get() - 1
        } else {
            0
        };
        let inodes = held.inodes();
        let from = inodes.first_free.max(reserved);
        let index = bitmap::next_zero(&inodes.bitmap, from, geometry.inodes_per_group)?;
        if held.has_no_block_bitmap() && !held.load_blocks() {
            return None;
        }
        held.claim_inode(handle, index, is_directory);
        geometry.inode_at(group, index)
    }

    /// Frees an inode within `handle`. In a group whose inode bitmap is corrupt it is lost instead,
    /// until the image is repaired.
    ///
    /// # Errors
    ///
    /// `Corrupt` if there is no such inode, or it is one that the format reserves.
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
        self.make_room();
        let mut held = self.hold(group);
        if held.load_inodes() {
            held.free_inode(handle, index, was_directory);
        }
        drop(held);
        self.report();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
