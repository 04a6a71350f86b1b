//! Reading the group descriptors at mount, in one pass.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};
use pext4_sync::Stack;

use super::Groups;
use super::counts::Counts;
use super::evict::Residency;
use super::hints::Hints;
use super::index::GroupIndex;
use super::loaded::{inode_table_end, unused_inodes};
use super::metadata::MetadataMap;
use super::slot::Slot;
use super::stream_goals::StreamGoals;
use super::waiting::Waiting;
use crate::error::Result;
use crate::options::Reserve;
use crate::store::Store;

/// The maximum number of groups for which memory is allocated before their descriptors are read:
/// those of 16 TiB.
const MOST_AHEAD: usize = 1 << 17;
/// Bytes of descriptors read at once.
const CHUNK: u64 = 1 << 20;

impl Groups {
    /// The groups of a volume, none of them in memory yet.
    ///
    /// # Errors
    ///
    /// `Corrupt` if a descriptor's checksum is wrong, a block number or count in it is invalid, or
    /// structures overlap; `Io`.
    pub fn open(store: Arc<Store>) -> Result<Arc<Self>> {
        let table = Table::read(&store)?;
        let reserved = match store.options.reserve {
            Reserve::Everybody => 0,
            Reserve::Nobody | Reserve::Owner => {
                store.superblock(|superblock| superblock.reserved_blocks)
            }
        };
        let metadata = MetadataMap::new(table.runs)?;
        let scaling = store.options.scaling;
        let index = GroupIndex::new(
            scaling.group_index,
            scaling.optimize_scan,
            store.geometry.group_count,
        );
        for (number, slot) in (0u32..).zip(&table.slots) {
            index.file(slot, GroupNumber(number), slot.place());
        }
        Ok(Arc::new_cyclic(|this| Self {
            slots: table.slots.into_boxed_slice(),
            metadata,
            protected: OnceLock::new(),
            counts: Counts::new(
                table.free_blocks,
                table.free_inodes,
                table.directories,
                reserved >> store.geometry.cluster_bits,
                scaling.frees,
            ),
            hints: Hints::new(store.options.repeatable.is_some()),
            index,
            stream_goals: StreamGoals::new(&store),
            waiting: Waiting::new(scaling.frees),
            residency: Residency::new(&store),
            deferred_errors: Stack::new(),
            this: this.clone(),
            store,
        }))
    }
}

/// The result of the pass over the descriptors.
struct Table {
    slots: Vec<Slot>,
    /// The blocks of all metadata.
    runs: Vec<Range<u64>>,
    free_blocks: u64,
    free_inodes: u64,
    directories: u64,
}

impl Table {
    fn read(store: &Store) -> Result<Self> {
        // More is allocated only as descriptors are read, which shows that the groups exist.
        let groups = (store.geometry.group_count as usize).min(MOST_AHEAD);
        let mut table = Self {
            slots: Vec::with_capacity(groups),
            runs: Vec::with_capacity(4 * groups),
            free_blocks: 0,
            free_inodes: 0,
            directories: 0,
        };
        let mut index = 0;
        while index < store.geometry.descriptor_blocks {
            index = table.read_chunk(store, index)?;
        }
        Ok(table)
    }

    /// Reads adjacent blocks of descriptors from the one with this index on; returns the index
    /// after them.
    fn read_chunk(&mut self, store: &Store, index: u32) -> Result<u32> {
        let geometry = &store.geometry;
        let block_size = u64::from(geometry.block_size);
        let first = geometry.descriptor_block(index);
        let most = u32::try_from((CHUNK / block_size).max(1)).expect("a chunk has few blocks");
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
        let mut bytes = vec![0; geometry.block_size as usize * count as usize];
        store.device.read_at(first.get() * block_size, &mut bytes)?;
        for (block, content) in bytes.chunks_exact(geometry.block_size as usize).enumerate() {
            let block = BlockNumber(first.get() + u64::try_from(block).unwrap_or(0));
            self.read_block(store, content)
                .map_err(|corrupt| corrupt.in_block(block))?;
        }
        Ok(index + count)
    }

    fn read_block(&mut self, store: &Store, content: &[u8]) -> std::result::Result<(), Corrupt> {
        let geometry = &store.geometry;
        for bytes in content.chunks_exact(usize::from(geometry.descriptor_size)) {
            let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
            if number >= geometry.group_count {
                break;
            }
            let group = GroupNumber(number);
            let descriptor = GroupDescriptor::decode(bytes, geometry, group)?;
            descriptor.check(geometry, group)?;
            self.add(store, group, &descriptor)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        store: &Store,
        group: GroupNumber,
        descriptor: &GroupDescriptor,
    ) -> std::result::Result<(), Corrupt> {
        let unused = unused_inodes(store, descriptor);
        if unused > descriptor.free_inodes {
            let free = descriptor.free_inodes;
            let problem = format!("{unused} inodes were never used, but only {free} are free");
            return Err(Corrupt::new("group descriptor", problem).in_group(group));
        }
        self.free_blocks += u64::from(descriptor.free_clusters);
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
        self.slots.push(Slot::new(descriptor, unused));
        Ok(())
    }
}
