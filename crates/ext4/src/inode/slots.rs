//! Reads inodes from their slots in the inode tables, and checks what a slot alone can show.

use std::sync::Arc;

use pext4_ondisk::directory::max_blocks;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::Inode as Slot;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};

use crate::error::{Refusal, Result};
use crate::inode::account::Account;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, SlotPlace};
use crate::types::FileType;

impl Inodes {
    /// The inode as its slot has it, if that is `expected`: others are not in use.
    pub(super) fn read(
        &self,
        number: InodeNumber,
        expected: impl FnOnce(&Slot) -> bool,
    ) -> Result<Arc<Inode>> {
        // A slot that was never used belongs to no inode and may contain anything.
        if self.groups.is_inode_slot_unused(number) {
            return Err(Refusal::Stale.into());
        }
        let (slot, place) = self.read_slot(number)?;
        if slot.mode == 0 || !expected(&slot) {
            return Err(Refusal::Stale.into());
        }
        let file_type = slot.file_type().ok_or_else(|| {
            Corrupt::new("inode", format!("mode {:#o} names no file type", slot.mode))
                .in_inode(number)
                .in_block(place.block)
        })?;
        self.check_slot(&slot, file_type)
            .map_err(|corrupt| corrupt.in_inode(number).in_block(place.block))?;
        let account = Account::of_known(&self.store, number, &slot);
        let store = &self.store;
        let inode = Inode::new(store, number, slot, file_type, place, account);
        Ok(Arc::new(inode))
    }

    /// The slot of an inode as its block contains it, bypassing the table.
    ///
    /// # Errors
    ///
    /// As [`Inodes::get`].
    fn read_slot(&self, number: InodeNumber) -> Result<(Slot, SlotPlace)> {
        let place = self.place(number)?;
        let buffer = self.store.read_block(place.block)?;
        let state = buffer.read();
        let start = place.offset as usize;
        let bytes = &state.page()[start..start + usize::from(self.store.geometry.inode_size)];
        let slot = self
            .store
            .decode_slot(bytes, number)
            .map_err(|corrupt| corrupt.in_inode(number).in_block(place.block))?;
        Ok((slot, place))
    }

    /// Checks what a slot says of size and content.
    pub(crate) fn check_slot(
        &self,
        slot: &Slot,
        file_type: FileType,
    ) -> std::result::Result<(), Corrupt> {
        let block_size = u64::from(self.store.block_size());
        let most = match file_type {
            FileType::Regular => block_size << 32,
            // A smaller bound than the format's, since a lookup may have to read all of it.
            FileType::Directory => {
                let blocks = self.store.geometry.blocks_count;
                let large = self
                    .store
                    .geometry
                    .features
                    .has_incompat(Incompat::LARGEDIR);
                block_size * blocks.min(max_blocks(large, self.store.block_size()).into())
            }
            FileType::Symlink => block_size,
            _ => u64::MAX,
        };
        if slot.size > most {
            return Err(Corrupt::new(
                "inode",
                format!("size {} is beyond what the format can map", slot.size),
            ));
        }
        if slot.has_inline_data() {
            return self.check_inline(slot, file_type);
        }
        if file_type == FileType::Directory && !slot.size.is_multiple_of(block_size) {
            return Err(Corrupt::new(
                "inode",
                format!(
                    "directory size {} is not a multiple of the block size",
                    slot.size
                ),
            ));
        }
        Ok(())
    }

    /// Where the slot of an inode is located.
    ///
    /// # Errors
    ///
    /// `Corrupt` if there is no such inode, or its group's descriptor is bad.
    pub fn place(&self, number: InodeNumber) -> Result<SlotPlace> {
        if let Some(damage) = self.groups.damage_of(number) {
            return Err(damage.clone().in_inode(number).into());
        }
        let (block, offset): (BlockNumber, u32) =
            self.groups.slot_place(number).ok_or_else(|| {
                Corrupt::new(
                    "inode number",
                    format!(
                        "{number} is not between 1 and {}",
                        self.store.geometry.inodes_count
                    ),
                )
            })?;
        Ok(SlotPlace { block, offset })
    }
}
