//! Encodes the descriptors and the superblock copies as blocks.

use std::sync::Arc;

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::{BlockNumber, GroupNumber};

use super::image::Image;
use super::shape::Shape;
use crate::error::Result;

/// A block and its new contents.
pub(super) type Copy = (BlockNumber, Arc<[u8]>);

/// Adds the primary descriptor blocks that differ from the device to the changed blocks. Returns
/// the copies to write.
pub(super) fn descriptors(image: &mut Image<'_>, shape: &Shape) -> Result<Vec<Copy>> {
    let geometry = &shape.geometry;
    let old = image.geometry;
    let holders = classic_holders(geometry);
    let mut copies = Vec::new();
    for index in 0..geometry.descriptor_blocks {
        let home = geometry.descriptor_block(index);
        let bytes = encode(image, geometry, index);
        let is_changed = !is_on_device(image, home, &bytes)?;
        let shared: Arc<[u8]> = bytes.as_slice().into();
        if is_meta(geometry, index) {
            for copy in geometry.descriptor_block_copies(index) {
                copies.push((copy, Arc::clone(&shared)));
            }
        } else {
            for &group in &holders {
                let is_new = group.get() >= old.group_count || !old.has_superblock(group);
                if (is_changed || is_new)
                    && let Some(copy) = geometry.first_block(group).checked_add(1 + index)
                {
                    copies.push((copy, Arc::clone(&shared)));
                }
            }
        }
        if is_changed {
            image.put(home, bytes);
        } else {
            image.changed.remove(&home);
        }
    }
    Ok(copies)
}

fn is_meta(geometry: &Geometry, index: u32) -> bool {
    geometry.has_meta_bg() && index >= geometry.first_meta_bg
}

/// The groups, except 0, that contain copies of all descriptors before `first_meta_bg`.
fn classic_holders(geometry: &Geometry) -> Vec<GroupNumber> {
    geometry
        .groups()
        .skip(1)
        .filter(|&group| geometry.has_superblock(group))
        .filter(|&group| {
            // A group in a meta block group has only a superblock copy and possibly descriptors of
            // its own meta block group.
            let index = group.get() / geometry.descriptors_per_block;
            !is_meta(geometry, index)
        })
        .collect()
}

fn encode(image: &Image<'_>, geometry: &Geometry, index: u32) -> Vec<u8> {
    let mut bytes = vec![0; image.block_size()];
    let first = index * geometry.descriptors_per_block;
    let size = usize::from(geometry.descriptor_size);
    let descriptors = image.descriptors.iter().skip(first as usize);
    for ((group, slot), descriptor) in (first..).zip(bytes.chunks_exact_mut(size)).zip(descriptors)
    {
        descriptor.encode(slot, geometry, GroupNumber(group));
    }
    bytes
}

fn is_on_device(image: &Image<'_>, home: BlockNumber, bytes: &[u8]) -> Result<bool> {
    Ok(image.geometry.contains(home, 1) && image.read_unchanged(home)? == bytes)
}

/// The copies of the superblock.
pub(super) fn superblocks(superblock: &Superblock, geometry: &Geometry) -> Vec<Copy> {
    let copy = |group: GroupNumber| {
        let home = geometry.superblock_copy(group)?;
        let mut copy = superblock.clone();
        copy.set_copy_group(group);
        let mut bytes = vec![0; geometry.block_size as usize];
        bytes[..superblock::SIZE].copy_from_slice(&copy.encode());
        Some((home, bytes.into()))
    };
    geometry.groups().skip(1).filter_map(copy).collect()
}
