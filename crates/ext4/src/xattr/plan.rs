//! What an inode's tail and its block will hold after a change. Pure: lists in, bytes out.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::xattr::{Attribute, Block, Full, Value, encode_inode_area};

use crate::error::{Refusal, Result};
use crate::types::SetXattrMode;

/// The attributes of an inode, by the place they lie in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// In the tail of the inode's slot.
    pub inode: Vec<Attribute>,
    /// In its block.
    pub block: Vec<Attribute>,
}

/// Bytes that the places have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Of the inode's tail; may be 0.
    pub inode: usize,
    /// Of a block.
    pub block: usize,
}

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The inode's tail, if it changes.
    pub area: Option<Box<[u8]>>,
    /// The block.
    pub block: BlockPlan,
    /// What becomes of values in inodes of their own.
    pub values: ValueUses,
}

/// References to inodes that hold values, each entry one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueUses {
    /// Of what is written.
    pub taken: Vec<InodeNumber>,
    /// Of what was in the inode and is replaced.
    pub left_in_inode: Vec<InodeNumber>,
    /// Of what is in the block that the inode has, where that changes.
    pub left_in_block: Vec<InodeNumber>,
    /// Blocks that the inode's values take more (or fewer): they are on its account.
    pub blocks: i64,
}

/// The inodes that hold values of these attributes.
pub(super) fn value_inodes(list: &[Attribute]) -> impl Iterator<Item = InodeNumber> {
    list.iter().filter_map(|attribute| match attribute.value {
        Value::Inode { inode, .. } => Some(inode),
        Value::Here(_) => None,
    })
}

/// What to do with the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockPlan {
    /// It stays as it is, or there is none.
    Keep,
    /// It gets this content, which says that one inode uses it.
    Write(Box<[u8]>),
    /// It has no attributes left.
    Drop,
}

impl Places {
    /// All attributes.
    pub fn all(&self) -> impl Iterator<Item = &Attribute> {
        self.inode.iter().chain(&self.block)
    }

    /// Blocks that values in inodes of their own take.
    fn value_blocks(&self, room: &Room) -> i64 {
        let blocks = self.all().map(|attribute| match attribute.value {
            Value::Inode { size, .. } => u64::from(size).div_ceil(room.block as u64),
            Value::Here(_) => 0,
        });
        i64::try_from(blocks.sum::<u64>()).unwrap_or(i64::MAX)
    }

    /// The attribute of this name.
    pub fn find(&self, index: u8, name: &[u8]) -> Option<&Attribute> {
        self.all().find(|attribute| attribute.is_named(index, name))
    }
}

/// Sets an attribute: in the inode if it fits there, else in the block.
pub(super) fn set(places: Places, room: &Room, new: Attribute, mode: SetXattrMode) -> Result<Plan> {
    match (places.find(new.index, &new.name), mode) {
        (Some(_), SetXattrMode::Create) => return Err(Refusal::Exists.into()),
        (None, SetXattrMode::Replace) => return Err(Refusal::NoAttribute.into()),
        (Some(old), _) if old.value == new.value => {
            return Ok(Plan {
                area: None,
                block: BlockPlan::Keep,
                values: ValueUses::default(),
            });
        }
        _ => {}
    }
    let mut wanted = places.clone();
    put(&mut wanted.inode, new.clone());
    take(&mut wanted.block, new.index, &new.name);
    if let Ok(plan) = difference(&places, &wanted, room) {
        return Ok(plan);
    }
    let mut wanted = places.clone();
    take(&mut wanted.inode, new.index, &new.name);
    put(&mut wanted.block, new);
    Ok(difference(&places, &wanted, room).map_err(|Full| Refusal::AttributesFull)?)
}

/// Removes an attribute.
pub(super) fn remove(places: Places, room: &Room, index: u8, name: &[u8]) -> Result<Plan> {
    if places.find(index, name).is_none() {
        return Err(Refusal::NoAttribute.into());
    }
    let mut wanted = places.clone();
    take(&mut wanted.inode, index, name);
    take(&mut wanted.block, index, name);
    Ok(difference(&places, &wanted, room).map_err(|Full| Refusal::AttributesFull)?)
}

/// Puts an attribute where one of its name is, else behind all others.
fn put(list: &mut Vec<Attribute>, new: Attribute) {
    match list
        .iter_mut()
        .find(|old| old.is_named(new.index, &new.name))
    {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

fn take(list: &mut Vec<Attribute>, index: u8, name: &[u8]) {
    list.retain(|attribute| !attribute.is_named(index, name));
}

/// What to write so that places that hold `before` hold `after`, if that fits.
fn difference(before: &Places, after: &Places, room: &Room) -> std::result::Result<Plan, Full> {
    let area = if before.inode == after.inode {
        None
    } else {
        let mut area = vec![0; room.inode].into_boxed_slice();
        encode_inode_area(&after.inode, &mut area)?;
        Some(area)
    };
    let block = if before.block == after.block {
        BlockPlan::Keep
    } else if after.block.is_empty() {
        BlockPlan::Drop
    } else {
        let mut content = vec![0; room.block].into_boxed_slice();
        Block {
            references: 1,
            attributes: after.block.clone(),
        }
        .encode(&mut content)?;
        BlockPlan::Write(content)
    };
    let mut values = ValueUses::default();
    if area.is_some() {
        values.taken.extend(value_inodes(&after.inode));
        values.left_in_inode.extend(value_inodes(&before.inode));
    }
    if block != BlockPlan::Keep {
        values.taken.extend(value_inodes(&after.block));
        values.left_in_block.extend(value_inodes(&before.block));
    }
    values.blocks = after.value_blocks(room) - before.value_blocks(room);
    Ok(Plan {
        area,
        block,
        values,
    })
}

/// A plan for the end of an inode with these attributes.
pub(super) fn end(places: &Places, room: &Room) -> Plan {
    Plan {
        area: None,
        block: BlockPlan::Drop,
        values: ValueUses {
            taken: Vec::new(),
            left_in_inode: value_inodes(&places.inode).collect(),
            left_in_block: value_inodes(&places.block).collect(),
            blocks: -places.value_blocks(room),
        },
    }
}
