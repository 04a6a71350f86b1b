//! Attributes of inodes in fast commits, and what they say of their content.
//!
//! A record has the bytes of a slot, which are not those that the slot will have: the map in it is
//! as it was in memory, with nodes that were not written, and of attributes by name there are none.
//! An inode in use therefore keeps its map and its own attributes, and gets the fields of the
//! record. A new inode begins with an empty map, which the ranges fill. Content that lies in the
//! slot itself comes with it: that of short links, special files and inline files, of which the
//! record has the whole slot.

use std::sync::Arc;

use pext4_ondisk::inode::{BLOCK_AREA, Inode as Slot, InodeFlags};
use pext4_ondisk::{BlockNumber, InodeNumber, extent};

use super::{Application, Links, contradiction};
use crate::error::Result;
use crate::inode::{Inode, Reach};
use crate::ops::INODE_CREDITS;
use crate::types::FileType;

/// Flags that say how content and blocks are stored, which records do not change.
const STORAGE: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::INDEX)
    .union(InodeFlags::INLINE_DATA)
    .union(InodeFlags::HUGE_FILE)
    .union(InodeFlags::EA_INODE);

/// The most bytes of slots that are written because a new inode lies behind them: memory, until
/// all is durable. Linux takes the first number that is free.
const MOST_FILLED: u64 = 16 << 20;

impl Application<'_> {
    /// Applies the attributes of an inode, which is new if it was not in use, or had no name and
    /// another generation.
    pub(super) fn set_attributes(
        &mut self,
        number: InodeNumber,
        bytes: &[u8],
        links: Links,
    ) -> Result<()> {
        let slot = self.decode(number, bytes)?;
        let file_type = slot.file_type().ok_or_else(|| {
            let mode = slot.mode;
            contradiction(format!("mode {mode:#o} names no file type"), number)
        })?;
        match self.in_use(number)? {
            Some(inode) if is_same(&inode, &slot) => {
                if inode.file_type() != file_type {
                    let problem = "makes another kind of file of an inode";
                    return Err(contradiction(problem, number).into());
                }
                self.update(&inode, &slot, links)
            }
            Some(inode) => {
                self.end(&inode)?;
                self.make(number, slot, file_type)
            }
            None => self.make(number, slot, file_type),
        }
    }

    /// Whether attributes are those of this inode, with its content stored in the same way.
    pub(super) fn is_of(&self, inode: &Inode, bytes: &[u8]) -> Result<bool> {
        let slot = self.decode(inode.number(), bytes)?;
        let keeps_place = inode.is_directory() || inode.is_inline() == slot.has_inline_data();
        Ok(is_same(inode, &slot) && keeps_place)
    }

    fn decode(&self, number: InodeNumber, bytes: &[u8]) -> Result<Slot> {
        let store = &self.volume.inodes.store;
        let size = usize::from(store.geometry.inode_size);
        if bytes.len() > size {
            let problem = format!("has {} bytes of a slot of {size}", bytes.len());
            return Err(contradiction(problem, number).into());
        }
        let mut whole = vec![0; size];
        whole[..bytes.len()].copy_from_slice(bytes);
        let slot = Slot::decode(&whole, number, None)?;
        Ok(slot.as_read_with(&store.features))
    }

    fn update(&mut self, inode: &Arc<Inode>, new: &Slot, links: Links) -> Result<()> {
        let inodes = &self.volume.inodes;
        // With checksums it is in those of the blocks, and Linux refuses to change it.
        if inode.generation() != new.generation && inodes.store.geometry.checksum_seed().is_some() {
            let problem = "changes the generation of an inode";
            return Err(contradiction(problem, inode.number()).into());
        }
        if !inode.is_directory() {
            self.prepare_content(inode, new)?;
        }
        let owners = [new.uid, new.gid, new.project];
        self.volume.prepare_owners_of(inode, owners)?;
        let mut handle = inodes.store.start(INODE_CREDITS)?;
        inodes.allow_large_file(&mut handle, new.size);
        inode.edit(&mut handle, Reach::Data, |state| {
            let slot = &mut state.slot;
            set_fields(slot, new);
            if inode.is_directory() {
                return;
            }
            slot.size = new.size;
            if links == Links::AsRecorded {
                slot.links = new.links;
            }
            if !has_map(slot) {
                slot.block = new.block;
            }
            if slot.has_inline_data() {
                slot.tail.clone_from(&new.tail);
            }
        });
        drop(handle);
        self.note_links(inode);
        let checked = inode.state(|state| inodes.check_slot(&state.slot, inode.file_type()));
        Ok(checked.map_err(|corrupt| corrupt.in_inode(inode.number()))?)
    }

    /// Changes how the content of a file is stored to how the record has it.
    fn prepare_content(&mut self, inode: &Arc<Inode>, new: &Slot) -> Result<()> {
        let was_inline = inode.is_inline();
        let was_mapped = inode.state(|state| has_map(&state.slot));
        let tail = inode.state(|state| state.slot.tail.len());
        if new.has_inline_data() && new.tail.len() != tail {
            let problem = "has content of another length than its inode";
            return Err(contradiction(problem, inode.number()).into());
        }
        if was_mapped && new.has_inline_data() {
            self.detach_all(inode)?;
            let mut handle = self.volume.inodes.store.start(INODE_CREDITS)?;
            inode.edit(&mut handle, Reach::Data, |state| {
                state.slot.flags.remove(InodeFlags::EXTENTS);
                state.slot.flags.insert(InodeFlags::INLINE_DATA);
            });
        } else if was_inline && !new.has_inline_data() {
            let mut handle = self.volume.inodes.store.start(INODE_CREDITS)?;
            inode.end_inline(&mut handle, new.has_extents(), new.size)?;
        } else if was_mapped {
            let has_extents = inode.flags().contains(InodeFlags::EXTENTS);
            if has_extents != new.has_extents() {
                let problem = "changes the kind of map of a file";
                return Err(contradiction(problem, inode.number()).into());
            }
        }
        Ok(())
    }

    /// Makes a new inode.
    fn make(&mut self, number: InodeNumber, new: Slot, file_type: FileType) -> Result<()> {
        if new.links == 0 && new.attribute_block != BlockNumber(0) {
            // It was synced when its last name had gone, with which it ended here.
            return Ok(());
        }
        if new.attribute_block != BlockNumber(0) {
            let problem = "makes an inode with a block of attributes, which none can bring";
            return Err(contradiction(problem, number).into());
        }
        self.fill_table_before(number)?;
        let is_inline = new.has_inline_data();
        let mut slot = new;
        slot.blocks = 0;
        slot.deletion_time = 0;
        let of_another_life = InodeFlags::HUGE_FILE | InodeFlags::INDEX | InodeFlags::EA_INODE;
        slot.flags.remove(of_another_life);
        if file_type == FileType::Directory {
            slot.flags.remove(InodeFlags::INLINE_DATA);
            if is_inline && self.volume.inodes.new_files_use_extents() {
                slot.flags.insert(InodeFlags::EXTENTS);
            }
            (slot.size, slot.links) = (0, 2);
            slot.tail.fill(0);
            self.unnamed_directories.insert(number, is_inline);
        }
        if file_type == FileType::Directory || has_map(&slot) {
            slot.block = match slot.has_extents() {
                true => extent::empty_root(),
                false => [0; BLOCK_AREA],
            };
        }
        let inodes = &self.volume.inodes;
        let checked = inodes.check_slot(&slot, file_type);
        checked.map_err(|corrupt| corrupt.in_inode(number))?;
        let inode = self.put(number, slot, file_type)?;
        self.note_links(&inode);
        Ok(())
    }

    /// Gives slots of the table before an inode that were never written those of inodes that are
    /// gone: with the inode they count as used, and what lies there is undefined.
    fn fill_table_before(&mut self, number: InodeNumber) -> Result<()> {
        let inodes = &self.volume.inodes;
        let size = inodes.store.geometry.inode_size;
        for unwritten in inodes.groups.unwritten_slots_before(number)? {
            self.filled += u64::from(size);
            if self.filled > MOST_FILLED {
                let problem = "makes inodes far behind all others";
                return Err(contradiction(problem, number).into());
            }
            let inode = self.put(unwritten, Slot::new(size, 0), FileType::Regular)?;
            self.volume.reap_if_due(&inode)?;
        }
        Ok(())
    }

    /// Claims a number and puts an inode there.
    fn put(&self, number: InodeNumber, slot: Slot, file_type: FileType) -> Result<Arc<Inode>> {
        let inodes = &self.volume.inodes;
        self.volume
            .prepare_owners([slot.uid, slot.gid, slot.project])?;
        let mut handle = inodes.store.start(INODE_CREDITS)?;
        inodes.allow_large_file(&mut handle, slot.size);
        let is_directory = file_type == FileType::Directory;
        let groups = &inodes.groups;
        groups.claim_known_inode(&mut handle, number, is_directory)?;
        let inode = inodes.insert_new(&mut handle, number, slot, file_type)?;
        inodes.release(number, 1);
        Ok(inode)
    }
}

/// Whether attributes are those of this inode. Another generation is that of a successor, but only
/// if the inode has no name: the generation of one that has can be changed.
fn is_same(inode: &Inode, new: &Slot) -> bool {
    inode.generation() == new.generation || inode.links() > 0
}

/// Sets what a record says of any inode. Its content, its links and its size are not meant.
fn set_fields(slot: &mut Slot, new: &Slot) {
    slot.mode = new.mode;
    (slot.uid, slot.gid) = (new.uid, new.gid);
    (slot.accessed, slot.changed, slot.modified) = (new.accessed, new.changed, new.modified);
    if let (Some(created), Some(new)) = (&mut slot.created, new.created) {
        *created = new;
    }
    slot.generation = new.generation;
    slot.version = new.version;
    slot.project = new.project;
    slot.flags = (new.flags - STORAGE) | (slot.flags & STORAGE);
}

/// Whether a file that is no directory has a map of blocks, which may be empty.
pub(super) fn has_map(slot: &Slot) -> bool {
    match slot.file_type() {
        Some(FileType::Regular) => !slot.has_inline_data(),
        Some(FileType::Symlink) => !slot.has_inline_data() && !slot.is_fast_symlink(),
        _ => false,
    }
}
