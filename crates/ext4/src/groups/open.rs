//! Reading the group descriptors: at mount all of them, in one pass, and one when it is needed.
//!
//! A writable mount fails if one descriptor is corrupt, since allocation relies on its counts. A
//! read-only mount, which may be the last resort for a damaged image, needs of a descriptor only
//! where the group's structures are. If its checksum or a count in it is wrong, it is used as far
//! as it goes, as Linux does: nothing is read that an inode's own checksum does not confirm. If
//! they cannot be where it says, nothing is known about the group: the mount continues with the
//! others, and access to one of its inodes returns the descriptor's error.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};
use pext4_sync::Stack;

use super::Groups;
use super::counts::Counts;
use super::evict::Residency;
use super::global_lists::GlobalLists;
use super::hints::Hints;
use super::index::GroupIndex;
use super::info::GroupInfo;
use super::loaded::inode_table_end;
use super::metadata::MetadataMap;
use super::stream_goals::StreamGoals;
use super::waiting::Waiting;
use crate::error::Result;
use crate::options::Reserve;
use crate::store::Store;

/// The maximum number of groups for which memory is allocated before their descriptors are read:
/// those of 16 TiB.
const MAX_AHEAD: usize = 1 << 17;
/// Maximum number of bytes of descriptors read at once.
const CHUNK: u64 = 1 << 20;
/// The maximum number of corrupt descriptors with which a read-only mount continues. More of them
/// suggest that this is no damaged file system but something else.
const MAX_DAMAGED: usize = 1000;

impl Groups {
    /// The groups of a volume, none of them in memory yet.
    ///
    /// # Errors
    ///
    /// `Corrupt` if a descriptor's checksum is wrong, a block number or count in it is invalid, or
    /// structures overlap; a read-only mount continues if few descriptors are corrupt. `Io`.
    pub fn open(store: Arc<Store>) -> Result<Arc<Self>> {
        let table = Table::read(&store)?;
        let reserved = match store.options.reserve {
            Reserve::Everybody => 0,
            Reserve::Nobody | Reserve::Owner => {
                store.superblock(|superblock| superblock.reserved_blocks)
            }
        };
        let (metadata, overlap) = MetadataMap::new(table.runs, store.geometry.blocks_per_cluster);
        let overlap = match overlap {
            Some(corrupt) if !store.options.read_only => return Err(corrupt.into()),
            found => found.map_or_else(OnceLock::new, OnceLock::from),
        };
        let scaling = store.options.scaling;
        let index = GroupIndex::new(
            scaling.group_index,
            scaling.optimize_scan,
            store.geometry.group_count,
        );
        for (number, info) in (0u32..).zip(&table.infos) {
            index.file(info, GroupNumber(number), info.orders());
        }
        let lists = Arc::new(GlobalLists::new());
        Ok(Arc::new_cyclic(|this| Self {
            infos: table.infos.into_boxed_slice(),
            metadata,
            damaged: table.damaged,
            doubtful: table.doubtful,
            overlap,
            protected: OnceLock::new(),
            counts: Counts::new(
                table.free_clusters,
                table.free_inodes,
                table.directories,
                reserved >> store.geometry.cluster_bits,
                scaling.frees,
            ),
            hints: Hints::new(store.options.deterministic.is_some()),
            index,
            stream_goals: StreamGoals::new(&store, &lists),
            waiting: Waiting::new(scaling.frees, lists),
            residency: Residency::new(&store),
            deferred_errors: Stack::new(),
            this: this.clone(),
            store,
        }))
    }
}

/// The result of the pass over the descriptors.
struct Table {
    infos: Vec<GroupInfo>,
    /// The blocks of all metadata.
    runs: Vec<Range<u64>>,
    free_clusters: u64,
    free_inodes: u64,
    directories: u64,
    /// The errors of corrupt descriptors.
    damaged: BTreeMap<GroupNumber, Corrupt>,
    /// The errors of descriptors that are used despite a wrong checksum or count.
    doubtful: Vec<Corrupt>,
}

/// Reads a group's descriptor as it was last committed. It is judged as at mount, so that a group
/// that was accepted then is not refused later. For a read-only mount, which loads no bitmap, its
/// counts are zero if they are in doubt.
///
/// # Errors
///
/// `Corrupt`, naming the group and the block, if it cannot be used; `Io`.
pub fn read_descriptor(store: &Store, group: GroupNumber) -> Result<GroupDescriptor> {
    let geometry = &store.geometry;
    let (block, offset) = geometry.descriptor_location(group);
    let page = store.read_block(block)?.page();
    let start = offset as usize;
    let bytes = &page[start..start + usize::from(geometry.descriptor_size)];
    let (descriptor, _) =
        decode_descriptor(store, group, bytes).map_err(|corrupt| corrupt.in_block(block))?;
    Ok(descriptor)
}

/// Decodes a descriptor and checks its numbers. For a read-only mount a wrong checksum or count is
/// no error, and is returned beside the descriptor, whose counts are zero then.
///
/// # Errors
///
/// [`Corrupt`], naming the group.
fn decode_descriptor(
    store: &Store,
    group: GroupNumber,
    bytes: &[u8],
) -> std::result::Result<(GroupDescriptor, Option<Corrupt>), Corrupt> {
    let geometry = &store.geometry;
    if !store.options.read_only {
        let descriptor = GroupDescriptor::decode(bytes, geometry, group)?;
        descriptor.check(geometry, group)?;
        return Ok((descriptor, None));
    }
    let verified = GroupDescriptor::decode(bytes, geometry, group);
    let descriptor = GroupDescriptor::decode_unverified(bytes, geometry, group)?;
    // The checksum tells that the numbers are damaged, not that they were written so.
    let unsummed = verified.err();
    if let Err(corrupt) = descriptor.check_places(geometry, group) {
        return Err(unsummed.unwrap_or(corrupt));
    }
    let doubt = match descriptor.check_counts(geometry, group) {
        Ok(()) => unsummed,
        Err(corrupt) => unsummed.or(Some(corrupt)),
    };
    match doubt {
        None => Ok((descriptor, None)),
        Some(doubt) => Ok((without_counts(descriptor), Some(doubt))),
    }
}

fn without_counts(mut descriptor: GroupDescriptor) -> GroupDescriptor {
    descriptor.free_clusters = 0;
    descriptor.free_inodes = 0;
    descriptor.used_directories = 0;
    descriptor
}

impl Table {
    fn read(store: &Store) -> Result<Self> {
        // Beyond this, memory is allocated as descriptors are read, which proves that the groups
        // exist.
        let groups = (store.geometry.group_count as usize).min(MAX_AHEAD);
        let mut table = Self {
            infos: Vec::with_capacity(groups),
            runs: Vec::with_capacity(4 * groups),
            free_clusters: 0,
            free_inodes: 0,
            directories: 0,
            damaged: BTreeMap::new(),
            doubtful: Vec::new(),
        };
        let mut index = 0;
        while index < store.geometry.descriptor_blocks {
            index = table.read_chunk(store, index)?;
        }
        Ok(table)
    }

    /// Reads adjacent blocks of descriptors, starting with the one with this index; returns the
    /// index after them.
    fn read_chunk(&mut self, store: &Store, index: u32) -> Result<u32> {
        let (first, count) = adjacent_blocks(store, index)?;
        let block_size = store.geometry.block_size as usize;
        let mut bytes = vec![0; block_size * count as usize];
        let offset = |block: BlockNumber| block.get() * block_size as u64;
        let read = store.device.read_at(offset(first), &mut bytes);
        let is_whole = read.is_ok();
        if !store.options.read_only {
            read?;
        }
        for (block, content) in (first.get()..).zip(bytes.chunks_exact_mut(block_size)) {
            let block = BlockNumber(block);
            // If the device fails, possibly only one of the blocks is unreadable.
            let read = match is_whole {
                true => Ok(()),
                false => store.device.read_at(offset(block), content),
            };
            self.read_block(store, block, read.map(|()| &*content))?;
        }
        Ok(index + count)
    }

    fn read_block(
        &mut self,
        store: &Store,
        block: BlockNumber,
        content: io::Result<&[u8]>,
    ) -> Result<()> {
        let geometry = &store.geometry;
        let size = usize::from(geometry.descriptor_size);
        for slot in 0..geometry.descriptors_per_block as usize {
            let number = u32::try_from(self.infos.len()).unwrap_or(u32::MAX);
            if number >= geometry.group_count {
                break;
            }
            let group = GroupNumber(number);
            let read = match &content {
                Ok(bytes) => self.read_descriptor(store, group, &bytes[slot * size..][..size]),
                Err(error) => {
                    let problem = format!("cannot be read: {error}");
                    Err(Corrupt::new("group descriptor", problem).in_group(group))
                }
            };
            match read {
                Ok(None) => {}
                Ok(Some(doubt)) => {
                    self.check_number_of_damaged(&doubt)?;
                    self.doubtful.push(doubt.in_block(block));
                }
                Err(corrupt) => self.skip(store, group, corrupt.in_block(block))?,
            }
        }
        Ok(())
    }

    fn read_descriptor(
        &mut self,
        store: &Store,
        group: GroupNumber,
        bytes: &[u8],
    ) -> std::result::Result<Option<Corrupt>, Corrupt> {
        let (descriptor, doubt) = decode_descriptor(store, group, bytes)?;
        self.add(store, group, &descriptor)?;
        Ok(doubt)
    }

    fn check_number_of_damaged(&self, corrupt: &Corrupt) -> Result<()> {
        if self.damaged.len() + self.doubtful.len() < MAX_DAMAGED {
            return Ok(());
        }
        Err(corrupt.clone().adding("and so are many others").into())
    }

    /// Records the next group as unusable if the mount is read-only, and fails otherwise.
    fn skip(&mut self, store: &Store, group: GroupNumber, corrupt: Corrupt) -> Result<()> {
        if !store.options.read_only {
            return Err(corrupt.into());
        }
        self.check_number_of_damaged(&corrupt)?;
        self.damaged.insert(group, corrupt);
        self.infos.push(GroupInfo::corrupt());
        Ok(())
    }

    fn add(
        &mut self,
        store: &Store,
        group: GroupNumber,
        descriptor: &GroupDescriptor,
    ) -> std::result::Result<(), Corrupt> {
        // Who only reads looks at every inode that has a name, as Linux does.
        let unused = match store.options.read_only {
            true => 0,
            false => descriptor.never_used_inodes(&store.geometry),
        };
        if unused > descriptor.free_inodes {
            let free = descriptor.free_inodes;
            let problem = format!("{unused} inodes were never used, but only {free} are free");
            return Err(Corrupt::new("group descriptor", problem).in_group(group));
        }
        self.free_clusters += u64::from(descriptor.free_clusters);
        self.free_inodes += u64::from(descriptor.free_inodes);
        self.directories += u64::from(descriptor.used_directories);
        let own = store.geometry.first_block(group).get();
        self.runs
            .push(own..own + u64::from(store.geometry.superblock_overhead(group)));
        for bitmap in [descriptor.block_bitmap, descriptor.inode_bitmap] {
            self.runs.push(bitmap.get()..bitmap.get() + 1);
        }
        let table = descriptor.inode_table;
        self.runs.push(table.get()..inode_table_end(store, table));
        self.infos.push(GroupInfo::new(descriptor, unused));
        Ok(())
    }
}

/// The location of the block of descriptors with this index, and the number of blocks to read
/// there: this one and those with the next indexes that follow it on the device.
fn adjacent_blocks(store: &Store, index: u32) -> Result<(BlockNumber, u32)> {
    let geometry = &store.geometry;
    let first = geometry.descriptor_block(index);
    let most = CHUNK / u64::from(geometry.block_size);
    let most = u32::try_from(most.max(1)).expect("a chunk has few blocks");
    let count = (1..most)
        .take_while(|&step| {
            index + step < geometry.descriptor_blocks
                && first.checked_add(step) == Some(geometry.descriptor_block(index + step))
        })
        .count();
    let count = u32::try_from(count).expect("fewer than a chunk") + 1;
    if !store.contains(first, u64::from(count)) {
        let problem = "lie outside the file system";
        return Err(Corrupt::new("group descriptors", problem)
            .in_block(first)
            .into());
    }
    Ok((first, count))
}
