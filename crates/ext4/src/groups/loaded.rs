//! One group in memory: how it is read and validated.
//!
//! There are three views of its blocks. The *bitmap* is written to disk with the transaction that
//! the group owes it to. The *buddy* shows what can be allocated: a block is used there if it is
//! set in the bitmap, if it is preallocated, or if a transaction that is not durable freed it. The
//! bitmap in the home block is older than both. A group whose bitmap fails its checksum or
//! contradicts the descriptor is corrupt: nothing is allocated or freed there, and other groups are
//! not affected.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pext4_block::Page;
use pext4_jbd2::{Capture, Owed};
use pext4_ondisk::bitmap;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, Tid};

use super::buddy::{Buddy, Span};
use super::freed::{FreedExtent, Pending};
use super::inodes::InodeBits;
use super::metadata::MetadataMap;
use super::preallocation::{Leftover, Listed};
use crate::error::Result;
use crate::store::Store;

/// A group in memory. [group]
pub struct Loaded {
    /// Its descriptor in the running transaction.
    pub descriptor: GroupDescriptor,
    /// Its blocks, once needed.
    pub blocks: Option<BlockSide>,
    /// Its inodes, once needed.
    pub inodes: Option<InodeSide>,
    /// The transaction that descriptor and changed bitmaps are owed to.
    pub owed: Owed,
    /// The version of a transaction that only freed blocks or used preallocations here, made before
    /// a later one changed the group.
    pub early: Option<(Tid, Vec<Capture>)>,
    /// Frees taken from the stack of transactions that may not be folded yet.
    pub unfolded: Vec<FreedExtent>,
    /// Preallocations in this group, by the block after their end.
    pub preallocations: BTreeMap<u32, Listed>,
    /// At least the preallocations with uses that are not folded.
    pub in_use: BTreeSet<u32>,
    /// Uses, not folded yet, of preallocations that are no longer on the list.
    pub leftovers: Vec<Leftover>,
}

/// The blocks of a group. [group]
pub struct BlockSide {
    /// The bitmap that is written to disk.
    pub bitmap: Page,
    /// Whether it changed in the owed transaction.
    pub is_changed: bool,
    /// What can be allocated.
    pub buddy: Buddy,
    /// Blocks that are free in the bitmap and not yet in the buddy.
    pub pending: Pending,
}

/// The part of a group's inode state that its lock guards; the bits are in
/// [`GroupInfo`](super::info::GroupInfo). [group]
#[derive(Default)]
pub struct InodeSide {
    /// Whether the bits may have changed in the owed transaction.
    pub is_changed: bool,
}

impl Loaded {
    /// A group whose descriptor was read, but no bitmap.
    pub fn new(descriptor: GroupDescriptor) -> Self {
        Self {
            descriptor,
            blocks: None,
            inodes: None,
            owed: Owed::default(),
            early: None,
            unfolded: Vec::new(),
            preallocations: BTreeMap::new(),
            in_use: BTreeSet::new(),
            leftovers: Vec::new(),
        }
    }

    /// Whether transactions before the running one, `tid`, used blocks of preallocations that are
    /// not folded.
    pub fn has_older_uses(&self, tid: Tid) -> bool {
        let listed = |end| self.preallocations.get(end);
        self.in_use
            .iter()
            .filter_map(listed)
            .any(|listed| listed.has_uses_before(tid))
            || self
                .leftovers
                .iter()
                .any(|leftover| leftover.has_uses_before(tid))
    }

    /// Takes the blocks of preallocations that transactions up to `tid` used and that are not
    /// folded: of preallocations on the list, and of those that have left it.
    pub fn take_uses(&mut self, tid: Tid) -> [Vec<Span>; 2] {
        let mut used = Vec::new();
        self.in_use.retain(|end| {
            let Some(listed) = self.preallocations.get_mut(end) else {
                return false;
            };
            let (span, is_more) = listed.take_used(tid);
            used.push(span);
            if listed.unfolded() == 0 {
                self.preallocations.remove(end);
            }
            is_more
        });
        let left = self
            .leftovers
            .iter_mut()
            .map(|leftover| leftover.take_used(tid));
        let left = left.collect();
        self.leftovers.retain(|leftover| !leftover.is_folded());
        [used, left]
    }

    /// Whether the group can be evicted without loss, provided that the last transaction that
    /// changed it is durable.
    pub fn is_idle(&self) -> bool {
        let pending = self
            .blocks
            .as_ref()
            .is_some_and(|blocks| !blocks.pending.is_empty());
        self.unfolded.is_empty()
            && self.preallocations.is_empty()
            && self.leftovers.is_empty()
            && !pending
    }
}

/// Whether the group's block bitmap was never written.
pub fn has_no_block_bitmap(store: &Store, descriptor: &GroupDescriptor) -> bool {
    let checksums = store.geometry.checksums;
    descriptor.flags.has_no_block_bitmap(checksums)
}

impl BlockSide {
    /// Reads the block bitmap, or computes it if it was never written. `owned` are the blocks that
    /// no file may own: metadata, and the blocks of the file system's own files.
    ///
    /// # Errors
    ///
    /// `Corrupt` if it contradicts its checksum, the owned blocks in the group, or the free count;
    /// `Io`.
    pub fn load(
        store: &Store,
        owned: &[&MetadataMap],
        group: GroupNumber,
        descriptor: &GroupDescriptor,
    ) -> Result<Self> {
        let bits = store.geometry.clusters_in(group);
        let bitmap = if has_no_block_bitmap(store, descriptor) {
            computed_bitmap(store, owned, group, bits)
        } else {
            read_block_bitmap(store, owned, group, descriptor, bits)?
        };
        let buddy = Buddy::from_bitmap(&bitmap, bits);
        debug_assert_eq!(buddy.check(), Ok(()), "{group:?}");
        if buddy.free() != descriptor.free_clusters {
            let (free, said) = (buddy.free(), descriptor.free_clusters);
            let unit = unit(&store.geometry);
            let problem = format!("has {free} free {unit}s, the group descriptor says {said}");
            return Err(block_bitmap_problem(group, descriptor, problem).into());
        }
        Ok(Self {
            bitmap,
            is_changed: false,
            buddy,
            pending: Pending::default(),
        })
    }
}

/// What a bit of the block bitmap stands for.
fn unit(geometry: &Geometry) -> &'static str {
    match geometry.has_bigalloc() {
        true => "cluster",
        false => "block",
    }
}

const BLOCK_BITMAP: &str = "block bitmap";

fn block_bitmap_problem(
    group: GroupNumber,
    descriptor: &GroupDescriptor,
    problem: String,
) -> Corrupt {
    Corrupt::new(BLOCK_BITMAP, problem)
        .in_group(group)
        .in_block(descriptor.block_bitmap)
}

/// The runs of a group that no file may own, as bits of its bitmap.
fn owned_bits<'a>(
    store: &'a Store,
    owned: &'a [&'a MetadataMap],
    group: GroupNumber,
) -> impl Iterator<Item = Range<u32>> + 'a {
    let geometry = &store.geometry;
    let start = geometry.first_block(group).get();
    let end = start + u64::from(geometry.blocks_in(group));
    let bit = move |block: u64, round_up: u64| {
        let bit = (block - start + round_up) >> geometry.cluster_bits;
        u32::try_from(bit).expect("groups have fewer than 2^32 blocks")
    };
    let last = u64::from(geometry.blocks_per_cluster) - 1;
    owned
        .iter()
        .flat_map(move |map| map.within(start..end))
        .map(move |run| bit(run.start, 0)..bit(run.end, last))
}

fn computed_bitmap(store: &Store, owned: &[&MetadataMap], group: GroupNumber, bits: u32) -> Page {
    let mut bitmap = vec![0; store.block_size() as usize];
    for run in owned_bits(store, owned, group) {
        bitmap::set_range(&mut bitmap, run);
    }
    bitmap::set_padding(&mut bitmap, bits);
    Page::from(bitmap)
}

fn read_block_bitmap(
    store: &Store,
    owned: &[&MetadataMap],
    group: GroupNumber,
    descriptor: &GroupDescriptor,
    bits: u32,
) -> Result<Page> {
    let mut page = store.read_block(descriptor.block_bitmap)?.page();
    let geometry = &store.geometry;
    if let Some(seed) = geometry.checksum_seed() {
        let computed = bitmap::block_bitmap_checksum(seed, &page, geometry.clusters_per_group);
        let stored = descriptor.block_bitmap_checksum;
        if !GroupDescriptor::matches(stored, computed, geometry) {
            let corrupt = Corrupt::checksum(BLOCK_BITMAP, stored, computed).in_group(group);
            return Err(corrupt.in_block(descriptor.block_bitmap).into());
        }
    }
    for run in owned_bits(store, owned, group) {
        if let Some(free) = bitmap::next_zero(&page, run.start, run.end) {
            let unit = unit(geometry);
            let problem =
                format!("says that {unit} {free} of the group is free, which the file system owns");
            return Err(block_bitmap_problem(group, descriptor, problem).into());
        }
    }
    pad(&mut page, bits);
    Ok(page)
}

/// Sets the bits after the last block, in case the image has them clear.
fn pad(page: &mut Page, bits: u32) {
    if !bitmap::has_padding(page, bits) {
        bitmap::set_padding(page.make_mut(), bits);
    }
}

/// Reads the inode bitmap, or makes an empty one if the table was never used.
///
/// # Errors
///
/// `Corrupt` if it contradicts its checksum, the free count or the never used part of the
/// table; `Io`.
pub fn read_inode_bitmap(
    store: &Store,
    group: GroupNumber,
    descriptor: &GroupDescriptor,
) -> Result<InodeBits> {
    let bits = store.geometry.inodes_per_group;
    if descriptor
        .flags
        .has_no_inode_bitmap(store.geometry.checksums)
    {
        let bytes = vec![0; store.block_size() as usize];
        return Ok(InodeBits::new(store, descriptor, &bytes, bits));
    }
    let page = store.read_block(descriptor.inode_bitmap)?.page();
    descriptor.check_inode_bitmap(&page, &store.geometry, group)?;
    Ok(InodeBits::new(store, descriptor, &page, bits))
}

/// The block after the end of the inode table that starts at `table`.
pub fn inode_table_end(store: &Store, table: BlockNumber) -> u64 {
    table.get() + u64::from(store.geometry.inode_table_blocks)
}
