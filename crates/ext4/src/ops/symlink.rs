//! Symbolic links. A short target is stored in the inode, in place of the map or beside the
//! attributes (`inline_data`); a long one in a block of its own, which is journalled like other
//! metadata.

use std::sync::Arc;

use pext4_block::Stamp;
use pext4_jbd2::Handle;
use pext4_ondisk::{Corrupt, LogicalBlock};

use super::new_inode::{FAST_SYMLINK_END, NewInode};
use crate::error::{Refusal, Result};
use crate::inode::data::MAP_CREDITS;
use crate::inode::extents::{Extent, Mapping};
use crate::inode::filling::Filling;
use crate::inode::{Inode, Reach};
use crate::types::{CreateAttributes, Entry, FileType, InodeNumber};
use crate::volume::Volume;

impl Volume {
    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Volume::create`]; `Refused(NameTooLong)` for a target that does not fit into a block,
    /// `Refused(NotFound)` for an empty one, `Refused(Invalid)` for one with a zero byte.
    pub fn make_symlink(
        &self,
        parent: InodeNumber,
        name: &[u8],
        target: &[u8],
        new: &CreateAttributes,
    ) -> Result<Entry> {
        if target.is_empty() {
            return Err(Refusal::NotFound.into());
        }
        if target.len() >= self.inodes.store.block_size() as usize {
            return Err(Refusal::NameTooLong.into());
        }
        if target.contains(&0) {
            return Err(Refusal::Invalid.into());
        }
        let new = CreateAttributes {
            permissions: 0o777,
            ..*new
        };
        self.make(
            parent,
            name,
            &NewInode {
                target,
                ..NewInode::new(FileType::Symlink, &new)
            },
        )
    }

    /// Stores the target of a new link.
    pub(super) fn write_target(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        target: &[u8],
    ) -> Result<()> {
        let size = target.len() as u64;
        if target.len() < FAST_SYMLINK_END {
            let stored = inode.edit(handle, Reach::Data, |state| {
                state.slot.set_fast_symlink_target(target)
            });
            return if stored {
                Ok(())
            } else {
                Err(Refusal::NameTooLong.into())
            };
        }
        let extent: Extent =
            self.inodes
                .fill_hole(handle, inode, Filling::written(0..1), |_| Ok(None))?;
        let buffer = handle.create(extent.start, Stamp::NONE);
        handle.edit(&buffer, Stamp::NONE, |page| {
            page[..target.len()].copy_from_slice(target)
        });
        inode.edit(handle, Reach::Data, |state| state.slot.size = size);
        Ok(())
    }

    /// Moves a target that is stored beside the attributes to a block, before the link gets an
    /// attribute. e2fsck 1.47 does not look at the attribute block of a link whose target is in the
    /// inode, so an attribute in such a block would be lost.
    pub(super) fn move_target_out(&self, inode: &Arc<Inode>) -> Result<()> {
        let target = inode.inline_content()?;
        let mut handle = self.inodes.store.start(MAP_CREDITS)?;
        let has_extents = self.inodes.new_files_use_extents();
        let backup = inode.end_inline(&mut handle, has_extents, inode.size())?;
        let written = self.write_target(&mut handle, inode, &target);
        if written.is_err() {
            inode.restore_inline(&mut handle, backup);
        }
        written
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// `Refused(Invalid)` if it is not one, `Corrupt`, `Io`.
    pub fn read_link(&self, inode: InodeNumber) -> Result<Vec<u8>> {
        self.run(|| {
            let inode = self.user_inode(inode)?;
            if inode.file_type() != FileType::Symlink {
                return Err(Refusal::Invalid.into());
            }
            let _lock = super::lock_shared(&inode)?;
            self.target(&inode)
        })
    }

    pub(super) fn target(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.is_inline() {
            return inode.inline_content();
        }
        let in_place = inode.state(|state| {
            state
                .slot
                .is_fast_symlink()
                .then(|| state.slot.fast_symlink_target().map(<[u8]>::to_vec))
        });
        if let Some(target) = in_place {
            return Ok(target.map_err(|corrupt| corrupt.in_inode(inode.number()))?);
        }
        let corrupt =
            |problem: &'static str| Corrupt::new("symbolic link", problem).in_inode(inode.number());
        let extent = match self.inodes.lookup(inode, LogicalBlock(0))? {
            Mapping::Mapped(extent) if !extent.unwritten => extent,
            Mapping::Mapped(_) => return Err(corrupt("its block was never written").into()),
            Mapping::Hole(_) => return Err(corrupt("its block is missing").into()),
        };
        let length = usize::try_from(inode.size()).map_err(|_| corrupt("absurd length"))?;
        let buffer = self.inodes.store.read_block(extent.start)?;
        let state = buffer.read();
        Ok(state
            .page()
            .get(..length)
            .ok_or_else(|| corrupt("target longer than a block"))?
            .to_vec())
    }
}
