//! Updates extended attributes after inodes were renumbered: rewrites entries whose value is a
//! renumbered inode, in inodes and in attribute blocks.
//!
//! An entry's hash and position do not depend on that number, so a block that several inodes share
//! stays shared. The checksum of the inode or block is updated.

use std::collections::BTreeSet;

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::xattr::{self, Attribute, Block, Full, Value};
use pext4_ondisk::{BlockNumber, Corrupt};

use super::image::Image;
use super::shape::Shape;
use super::shrink::Renumbered;
use crate::error::{Error, Result};

const STRUCTURE: &str = "extended attributes";

/// Updates all attributes.
pub(super) fn rewrite(image: &mut Image<'_>, shape: &Shape, renumbered: &Renumbered) -> Result<()> {
    let may_have = image.superblock.features.has_incompat(Incompat::EA_INODE);
    if renumbered.is_empty() || !may_have {
        return Ok(());
    }
    let mut seen = BTreeSet::new();
    for group in shape.geometry.groups() {
        for number in image.used_inodes(group)? {
            let mut inode = image.inode(number)?;
            let block = inode.attribute_block;
            if block.get() != 0 && seen.insert(block) {
                update_block(image, block, renumbered).map_err(|error| match error {
                    Error::Corrupt(corrupt) => corrupt.in_inode(number).in_block(block).into(),
                    other => other,
                })?;
            }
            let changed = update_inode(&mut inode, renumbered);
            if changed.map_err(|corrupt| corrupt.in_inode(number))? {
                image.put_inode(number, &inode)?;
            }
        }
    }
    Ok(())
}

/// Updates the attributes in an inode. Returns whether one changed.
fn update_inode(inode: &mut Inode, renumbered: &Renumbered) -> std::result::Result<bool, Corrupt> {
    if inode.extra_isize == 0 {
        return Ok(false);
    }
    let mut attributes = xattr::decode_inode_area(&inode.tail)?;
    if !renumber(&mut attributes, renumbered) {
        return Ok(false);
    }
    let encoded = xattr::encode_inode_area(&attributes, &mut inode.tail);
    encoded.map_err(no_room)?;
    Ok(true)
}

fn update_block(image: &mut Image<'_>, block: BlockNumber, renumbered: &Renumbered) -> Result<()> {
    if !image.geometry.contains(block, 1) {
        return Err(Corrupt::new(STRUCTURE, "lie outside the file system").into());
    }
    let mut bytes = image.read(block)?;
    let mut decoded = Block::decode(&bytes)?;
    if !renumber(&mut decoded.attributes, renumbered) {
        return Ok(());
    }
    let seed = image.geometry.checksum_seed();
    if let Some(seed) = seed {
        xattr::verify_block(seed, block, &bytes)?;
    }
    decoded.encode(&mut bytes).map_err(no_room)?;
    if let Some(seed) = seed {
        xattr::stamp_block(seed, block, &mut bytes);
    }
    image.put(block, bytes);
    Ok(())
}

/// Updates the inode numbers of values. Returns whether one changed.
fn renumber(attributes: &mut [Attribute], renumbered: &Renumbered) -> bool {
    let mut is_changed = false;
    for attribute in attributes {
        if let Value::Inode { inode, .. } = &mut attribute.value
            && let Some(&new) = renumbered.get(inode)
        {
            *inode = new;
            is_changed = true;
        }
    }
    is_changed
}

fn no_room(Full: Full) -> Corrupt {
    Corrupt::new(STRUCTURE, "do not fit where they were")
}
