//! Computes what an inode's tail and its block contain after a change. Pure functions from lists to
//! bytes.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::xattr::{
    Attribute, Block, Content, Full, Replaced, Value, encode_inode_area, inode_area_used,
};

use crate::error::{Refusal, Result};
use crate::types::SetXattrMode;

/// The attributes of an inode, by the place where they are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// In the tail of the inode's slot.
    pub inode: Vec<Attribute>,
    /// In its block.
    pub block: Vec<Attribute>,
}

/// Sizes of the places in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Of the inode's tail; may be 0.
    pub inode: usize,
    /// Of a block.
    pub block: usize,
    /// Blocks in a cluster.
    pub cluster: u32,
}

impl Room {
    /// Blocks of the clusters that a value of this size takes in an inode of its own.
    fn blocks_for(&self, size: u32) -> u64 {
        let cluster = u64::from(self.cluster);
        u64::from(size).div_ceil(self.block as u64 * cluster) * cluster
    }
}

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The inode's tail, if it changes.
    pub area: Option<Box<[u8]>>,
    /// The block.
    pub block: BlockPlan,
    /// Changes of the references to value inodes.
    pub values: ValueUses,
}

/// References to value inodes, one per attribute entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueUses {
    /// To add, for the entries that are written.
    pub taken: Vec<InodeNumber>,
    /// To drop, for the entries in the inode that are replaced.
    pub left_in_inode: Vec<InodeNumber>,
    /// To drop, for the entries in the inode's old block, if no other inode uses it.
    pub left_in_block: Vec<InodeNumber>,
    /// What changes in what is charged to the inode for its values.
    pub charge: ValueCharge,
}

/// What is charged to an inode for its values in inodes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueCharge {
    pub blocks: i64,
    pub inodes: i64,
}

impl std::ops::Sub for ValueCharge {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            blocks: self.blocks - other.blocks,
            inodes: self.inodes - other.inodes,
        }
    }
}

/// The value inodes of these attributes.
pub(super) fn value_inodes(list: &[Attribute]) -> impl Iterator<Item = InodeNumber> {
    list.iter().filter_map(|attribute| match attribute.value {
        Value::Inode { inode, .. } => Some(inode),
        Value::Inline(_) => None,
    })
}

/// The value inodes of both places.
pub(super) fn value_inodes_of(places: &Places) -> impl Iterator<Item = InodeNumber> {
    value_inodes(&places.inode).chain(value_inodes(&places.block))
}

/// What to do with the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockPlan {
    /// It stays as it is, or there is none.
    Keep,
    /// It gets this content, with a reference count of 1.
    Write(Content),
    /// It has no attributes left.
    Drop,
}

impl Plan {
    /// Whether the attributes are already as wanted.
    pub fn changes_nothing(&self) -> bool {
        self.area.is_none() && self.block == BlockPlan::Keep
    }
}

impl Places {
    /// All attributes.
    pub fn all(&self) -> impl Iterator<Item = &Attribute> {
        self.inode.iter().chain(&self.block)
    }

    /// What is charged for values that are in inodes of their own.
    fn value_charge(&self, room: &Room) -> ValueCharge {
        let blocks = self.all().filter_map(|attribute| match attribute.value {
            Value::Inode { size, .. } => Some(room.blocks_for(size)),
            Value::Inline(_) => None,
        });
        let (blocks, inodes) =
            blocks.fold((0, 0), |(sum, count), blocks| (sum + blocks, count + 1));
        ValueCharge {
            blocks: i64::try_from(blocks).unwrap_or(i64::MAX),
            inodes,
        }
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
            return Ok(replaced(Replaced::Same));
        }
        _ => {}
    }
    let mut change = Change::of(places, room);
    let in_inode = change.take_from_inode(new.index, &new.name);
    let in_block = change.find_in_block(new.index, &new.name);
    if change.has_room_in_inode(&new) {
        change.put_into_inode(in_inode, new);
        if let Some(at) = in_block {
            change.take_from_block(at);
        }
    } else {
        change.put_into_block(in_block, new);
    }
    Ok(change.plan().map_err(|Full| Refusal::AttributesFull)?)
}

/// Whether a new value goes into the block if its attribute is there now: the inode has no
/// attribute of this name, and no room for it.
pub(super) fn stays_in_block(inode: &[Attribute], room: &Room, new: &Attribute) -> bool {
    position(inode, new.index, &new.name).is_none() && !has_room(inode, room, new)
}

/// Whether an inode with these attributes has room for another one.
fn has_room(inode: &[Attribute], room: &Room, new: &Attribute) -> bool {
    inode_area_used(inode) + new.space() <= room.inode
}

/// The plan for a block in which only a value was replaced.
pub(super) fn replaced(replaced: Replaced) -> Plan {
    Plan {
        area: None,
        block: match replaced {
            Replaced::Same => BlockPlan::Keep,
            Replaced::By(content) => BlockPlan::Write(content),
        },
        values: ValueUses::default(),
    }
}

/// Removes an attribute.
pub(super) fn remove(places: Places, room: &Room, index: u8, name: &[u8]) -> Result<Plan> {
    let mut change = Change::of(places, room);
    let in_inode = change.take_from_inode(index, name);
    let in_block = change.find_in_block(index, name);
    if let Some(at) = in_block {
        change.take_from_block(at);
    }
    if in_inode.or(in_block).is_none() {
        return Err(Refusal::NoAttribute.into());
    }
    Ok(change.plan().map_err(|Full| Refusal::AttributesFull)?)
}

/// The wanted content of the two places, and what their old content referred to.
struct Change<'a> {
    room: &'a Room,
    wanted: Places,
    changes_inode: bool,
    changes_block: bool,
    /// Value inodes of the old attributes in the inode.
    held_in_inode: Vec<InodeNumber>,
    /// Value inodes of the old attributes in the block.
    held_in_block: Vec<InodeNumber>,
    charge: ValueCharge,
}

impl<'a> Change<'a> {
    /// No change so far.
    fn of(places: Places, room: &'a Room) -> Self {
        Self {
            room,
            changes_inode: false,
            changes_block: false,
            held_in_inode: value_inodes(&places.inode).collect(),
            held_in_block: value_inodes(&places.block).collect(),
            charge: places.value_charge(room),
            wanted: places,
        }
    }

    /// Removes an attribute from the inode; returns its index.
    fn take_from_inode(&mut self, index: u8, name: &[u8]) -> Option<usize> {
        let at = position(&self.wanted.inode, index, name)?;
        self.wanted.inode.remove(at);
        self.changes_inode = true;
        Some(at)
    }

    fn find_in_block(&self, index: u8, name: &[u8]) -> Option<usize> {
        position(&self.wanted.block, index, name)
    }

    fn take_from_block(&mut self, at: usize) {
        self.wanted.block.remove(at);
        self.changes_block = true;
    }

    fn has_room_in_inode(&self, new: &Attribute) -> bool {
        has_room(&self.wanted.inode, self.room, new)
    }

    /// Inserts an attribute at index `at`, where one of its name was, else after all others.
    fn put_into_inode(&mut self, at: Option<usize>, new: Attribute) {
        let list = &mut self.wanted.inode;
        list.insert(at.unwrap_or(list.len()), new);
        self.changes_inode = true;
    }

    fn put_into_block(&mut self, at: Option<usize>, new: Attribute) {
        let list = &mut self.wanted.block;
        match at {
            Some(at) => list[at] = new,
            None => list.push(new),
        }
        self.changes_block = true;
    }

    /// The plan, if everything fits.
    fn plan(self) -> std::result::Result<Plan, Full> {
        let charge = self.wanted.value_charge(self.room) - self.charge;
        let Places { inode, block } = self.wanted;
        let mut values = ValueUses {
            charge,
            ..ValueUses::default()
        };
        let mut area = None;
        if self.changes_inode {
            let mut bytes = vec![0; self.room.inode].into_boxed_slice();
            encode_inode_area(&inode, &mut bytes)?;
            area = Some(bytes);
            values.taken.extend(value_inodes(&inode));
            values.left_in_inode = self.held_in_inode;
        }
        let mut plan = BlockPlan::Keep;
        if self.changes_block {
            values.taken.extend(value_inodes(&block));
            values.left_in_block = self.held_in_block;
            plan = write_block(block, self.room)?;
        }
        Ok(Plan {
            area,
            block: plan,
            values,
        })
    }
}

fn position(list: &[Attribute], index: u8, name: &[u8]) -> Option<usize> {
    list.iter().position(|old| old.is_named(index, name))
}

fn write_block(attributes: Vec<Attribute>, room: &Room) -> std::result::Result<BlockPlan, Full> {
    if attributes.is_empty() {
        return Ok(BlockPlan::Drop);
    }
    let block = Block {
        references: 1,
        attributes,
    };
    Ok(BlockPlan::Write(block.content(room.block)?))
}

/// The plan for freeing an inode with these attributes.
pub(super) fn end(places: &Places, room: &Room) -> Plan {
    Plan {
        values: ValueUses {
            taken: Vec::new(),
            left_in_inode: value_inodes(&places.inode).collect(),
            left_in_block: value_inodes(&places.block).collect(),
            charge: ValueCharge::default() - places.value_charge(room),
        },
        ..end_without_values()
    }
}

/// The plan for freeing an inode whose values are all where its attributes are.
pub(super) fn end_without_values() -> Plan {
    Plan {
        area: None,
        block: BlockPlan::Drop,
        values: ValueUses::default(),
    }
}
