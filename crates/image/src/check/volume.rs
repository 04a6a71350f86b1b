//! The image that is checked: its device, its superblock, and the location of each group's
//! metadata.
//!
//! Everything here only reads. A location in a group's descriptor is used only if it is possible
//! ([`Group::has_table`] and the like); all passes ignore the others.

use std::io;
use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::directory::Format;
use pext4_ondisk::extent::Bounds;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::inode::Inode;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber};

/// The offset of `i_extra_isize` in an inode's slot.
pub(super) const EXTRA_SIZE_AT: usize = 0x80;

/// A group's descriptor, in few bytes: there may be hundreds of thousands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
    pub(super) free_clusters: u32,
    pub(super) free_inodes: u32,
    pub(super) used_directories: u32,
    pub(super) unused_inodes: u32,
    pub(super) block_bitmap_checksum: u32,
    pub(super) inode_bitmap_checksum: u32,
    pub(super) flags: GroupFlags,
    /// The descriptor, or a backup of it, could be read.
    pub(super) is_known: bool,
    /// It is a backup, which may be old. What counts is where it says that metadata lies, and of
    /// its flags whether a bitmap was not written at that time.
    pub(super) is_from_backup: bool,
    /// The location of the block bitmap is possible.
    pub(super) has_block_bitmap: bool,
    /// The location of the inode bitmap is possible.
    pub(super) has_inode_bitmap: bool,
    /// The location of the inode table is possible, and the table is read.
    pub(super) has_table: bool,
}

impl Group {
    pub(super) fn of(descriptor: &GroupDescriptor) -> Self {
        Self {
            block_bitmap: descriptor.block_bitmap.get(),
            inode_bitmap: descriptor.inode_bitmap.get(),
            inode_table: descriptor.inode_table.get(),
            free_clusters: descriptor.free_clusters,
            free_inodes: descriptor.free_inodes,
            used_directories: descriptor.used_directories,
            unused_inodes: descriptor.unused_inodes,
            block_bitmap_checksum: descriptor.block_bitmap_checksum,
            inode_bitmap_checksum: descriptor.inode_bitmap_checksum,
            flags: descriptor.flags,
            is_known: true,
            ..Self::default()
        }
    }

    /// Whether the locations of both bitmaps and of the table are possible, and the table is read.
    pub(super) fn is_placed(&self) -> bool {
        self.has_block_bitmap && self.has_inode_bitmap && self.has_table
    }

    /// The group as a backup of its descriptor has it.
    pub(super) fn from_backup(backup: Self) -> Self {
        Self {
            is_from_backup: true,
            ..backup
        }
    }
}

/// The image.
pub(super) struct Volume {
    pub(super) device: Arc<dyn Device>,
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    /// The checksum seed, if metadata has checksums.
    pub(super) seed: Option<u32>,
    pub(super) format: Format,
    pub(super) bounds: Bounds,
}

/// Why an inode could not be read.
pub(super) enum InodeError {
    /// There is no such number, or the location of its table is not possible.
    Absent,
    /// The device failed.
    Io(io::Error),
    /// Its bytes are wrong.
    Corrupt(Corrupt),
}

impl Volume {
    pub(super) fn new(device: Arc<dyn Device>, superblock: Superblock, geometry: Geometry) -> Self {
        Self {
            device,
            seed: geometry.checksum_seed(),
            format: Format::of(&superblock.features),
            bounds: geometry.bounds(),
            superblock,
            geometry,
        }
    }

    /// Interprets an inode as the operating system that the image was made for does.
    pub(super) fn as_of_creator(&self, inode: Inode) -> Inode {
        match self.superblock.is_for_hurd() {
            true => inode.as_of_hurd(),
            false => inode,
        }
    }

    pub(super) fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// Reads whole blocks.
    pub(super) fn read(&self, block: BlockNumber, into: &mut [u8]) -> io::Result<()> {
        let offset = block
            .get()
            .checked_mul(u64::from(self.geometry.block_size))
            .ok_or(io::ErrorKind::InvalidInput)?;
        self.device.read_at(offset, into)
    }

    /// Reads one block.
    pub(super) fn block(&self, block: BlockNumber) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_size()];
        self.read(block, &mut bytes)?;
        Ok(bytes)
    }

    /// The first of these blocks that may have anything but zeroes, if one has. Those before it are
    /// in a hole of the image.
    pub(super) fn first_with_data(&self, start: BlockNumber, count: u64) -> Option<BlockNumber> {
        let size = u64::from(self.geometry.block_size);
        let end = start.get().saturating_add(count).saturating_mul(size);
        if end > self.device.size() {
            return Some(start);
        }
        match self.device.next_data(start.get().saturating_mul(size), end) {
            Ok(data) => data.map(|data| BlockNumber(data.start / size)),
            // The read tells what is wrong.
            Err(_) => Some(start),
        }
    }

    /// Whether all of these blocks are in the file system.
    pub(super) fn contains(&self, start: BlockNumber, count: u64) -> bool {
        self.geometry.contains(start, count)
    }

    /// The bytes of an inode's slot.
    pub(super) fn slot(&self, groups: &[Group], inode: InodeNumber) -> Result<Vec<u8>, InodeError> {
        let (group, index) = self.geometry.inode_group(inode).ok_or(InodeError::Absent)?;
        let group = groups
            .get(group.get() as usize)
            .filter(|group| group.has_table)
            .ok_or(InodeError::Absent)?;
        let table = BlockNumber(group.inode_table);
        let (block, offset) = self
            .geometry
            .inode_slot(table, index)
            .ok_or(InodeError::Absent)?;
        let at = block.get() * u64::from(self.geometry.block_size) + u64::from(offset);
        let mut slot = vec![0; usize::from(self.geometry.inode_size)];
        self.device.read_at(at, &mut slot).map_err(InodeError::Io)?;
        Ok(slot)
    }

    /// An inode. Its checksum is not verified, and an extra part of an impossible size is left out:
    /// pass 1 checks both.
    pub(super) fn inode(&self, groups: &[Group], inode: InodeNumber) -> Result<Inode, InodeError> {
        let slot = self.slot(groups, inode)?;
        decode_leniently(&slot, inode)
            .map(|inode| self.as_of_creator(inode))
            .map_err(InodeError::Corrupt)
    }

    /// The number of inodes in the used part of a group's table, by its descriptor; all, if that is
    /// from a backup.
    pub(super) fn table_in_use(&self, group: &Group) -> u32 {
        if !group.has_table {
            return 0;
        }
        let all = self.geometry.inodes_per_group;
        if !self.geometry.checksums.protects_descriptors() || group.is_from_backup {
            return all;
        }
        if self.is_inode_uninit(group) {
            return 0;
        }
        all.saturating_sub(group.unused_inodes)
    }

    /// Whether a group's block bitmap was never written.
    pub(super) fn is_block_uninit(&self, group: &Group) -> bool {
        group.flags.has_no_block_bitmap(self.geometry.checksums)
    }

    /// Whether a group's inode bitmap was never written.
    pub(super) fn is_inode_uninit(&self, group: &Group) -> bool {
        group.flags.has_no_inode_bitmap(self.geometry.checksums)
    }
}

/// Decodes an inode without its checksum, and without an extra part of an impossible size.
pub(super) fn decode_leniently(slot: &[u8], inode: InodeNumber) -> Result<Inode, Corrupt> {
    Inode::decode(slot, inode, None).or_else(|corrupt| {
        let mut slot = slot.to_vec();
        let Some(size) = slot.get_mut(EXTRA_SIZE_AT..EXTRA_SIZE_AT + 2) else {
            return Err(corrupt);
        };
        size.fill(0);
        Inode::decode(&slot, inode, None)
    })
}

/// The number of the group with this index, which must be below the group count.
pub(super) fn group_number(index: usize) -> GroupNumber {
    GroupNumber(u32::try_from(index).expect("groups are counted by 32 bits"))
}
