//! Claiming inode numbers that somebody else has chosen: those in fast commits.

use pext4_jbd2::Handle;
use pext4_ondisk::{Corrupt, GroupNumber, InodeNumber};

use super::claim::Busy;
use crate::error::{Error, Result};
use crate::groups::Groups;

impl Groups {
    /// Whether an inode number is in use.
    ///
    /// # Errors
    ///
    /// `Corrupt` if there is no such number, or the bitmap of its group cannot be used.
    pub(crate) fn is_inode_claimed(&self, inode: InodeNumber) -> Result<bool> {
        let (group, index) = self.place_of(inode)?;
        let bits = self.inode_bits(group);
        self.report();
        Ok(bits.ok_or_else(|| unusable(group))?.is_used(index))
    }

    /// Claims an inode number, which may be claimed already.
    ///
    /// # Errors
    ///
    /// As [`Groups::is_inode_claimed`].
    pub(crate) fn claim_known_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: InodeNumber,
        is_directory: bool,
    ) -> Result<()> {
        let (group, index) = self.place_of(inode)?;
        let bits = self.open_for_claim(handle, group, Busy::Wait);
        self.report();
        if bits.ok_or_else(|| unusable(group))?.take(index) {
            self.count_claimed(group, index, is_directory);
        }
        Ok(())
    }

    /// The numbers before `inode` whose slots count as used once `inode` is claimed, although
    /// nothing was ever written there: the last ones before it, so that no others are looked at.
    ///
    /// # Errors
    ///
    /// `Corrupt` if there is no such number.
    pub(crate) fn unwritten_slots_before(
        &self,
        inode: InodeNumber,
    ) -> Result<impl Iterator<Item = InodeNumber>> {
        let (group, index) = self.place_of(inode)?;
        let is_zeroed = self.inode_bits(group).is_none_or(|bits| bits.is_zeroed());
        let first = if is_zeroed {
            index
        } else {
            self.used_slots(group)
        };
        Ok((first..index).filter_map(move |slot| self.store.geometry.inode_at(group, slot)))
    }

    fn place_of(&self, inode: InodeNumber) -> Result<(GroupNumber, u32)> {
        let place = self.store.geometry.inode_group(inode);
        place.ok_or_else(|| {
            let corrupt = Corrupt::new("inode number", "names no inode of the file system");
            corrupt.in_inode(inode).into()
        })
    }
}

fn unusable(group: GroupNumber) -> Error {
    let corrupt = Corrupt::new("inode bitmap", "cannot be used");
    corrupt.in_group(group).into()
}
