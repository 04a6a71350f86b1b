//! A superblock with a wrong checksum of which the file system has no copy: that of a small one,
//! with one group.
//!
//! A power cut that tears a write of it leaves two whole sectors (`superblock.rs`), of which no
//! field is wrong. Nothing proves that; but damage would show, since the checksums of all other
//! metadata begin with a seed from the superblock, and are found by its sizes and places. So it is
//! used if the descriptor and the journal's inode to which it leads have right checksums, and that
//! inode is the one of which the superblock has a backup. (The mount looks at the root, the orphan
//! file and the log in any case before it writes.) Fields on which none of these depends are
//! trusted, as on a file system without checksums.

use pext4_block::Device;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{GroupNumber, InodeNumber};

use crate::error::Result;

/// Whether the file system that a superblock describes has no place for a copy of it.
pub(super) fn is_alone(superblock: &Superblock) -> bool {
    Geometry::of(superblock).is_ok_and(|geometry| geometry.group_count == 1)
}

/// Whether the structures of the only group have the checksums that the superblock implies.
///
/// # Errors
///
/// `Io`.
pub(super) fn agrees_with(device: &dyn Device, superblock: &Superblock) -> Result<bool> {
    let Ok(geometry) = Geometry::of(superblock) else {
        return Ok(false);
    };
    let group = GroupNumber(0);
    let (block, offset) = geometry.descriptor_location(group);
    let at = block.get() * u64::from(geometry.block_size) + u64::from(offset);
    let mut bytes = vec![0; usize::from(geometry.descriptor_size)];
    device.read_at(at, &mut bytes)?;
    let descriptor = match GroupDescriptor::decode(&bytes, &geometry, group) {
        Ok(descriptor) if descriptor.check(&geometry, group).is_ok() => descriptor,
        _ => return Ok(false),
    };
    if superblock.journal_inode.get() == 0 {
        return Ok(true);
    }
    let journal = slot_of(device, &geometry, &descriptor, superblock.journal_inode)?;
    Ok(journal.is_some_and(|journal| is_backed_up(&journal, superblock)))
}

/// An inode of the group, if its checksum is right.
fn slot_of(
    device: &dyn Device,
    geometry: &Geometry,
    descriptor: &GroupDescriptor,
    number: InodeNumber,
) -> Result<Option<Inode>> {
    let place = geometry
        .inode_group(number)
        .and_then(|(_, index)| geometry.inode_slot(descriptor.inode_table, index));
    let Some((block, offset)) = place.filter(|&(block, _)| geometry.contains(block, 1)) else {
        return Ok(None);
    };
    let at = block.get() * u64::from(geometry.block_size) + u64::from(offset);
    let mut bytes = vec![0; usize::from(geometry.inode_size)];
    device.read_at(at, &mut bytes)?;
    Ok(Inode::decode(&bytes, number, geometry.checksum_seed()).ok())
}

/// Whether the superblock's backup of the journal's inode, if it has one, is of this inode.
fn is_backed_up(journal: &Inode, superblock: &Superblock) -> bool {
    let (words, _) = journal.block.as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_le_bytes(*word));
    superblock.journal_backup_type != 1 || words.eq(superblock.journal_backup[..15].iter().copied())
}
