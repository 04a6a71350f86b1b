//! Clusters of several blocks (`bigalloc`): space is allocated in larger units than files are
//! mapped in.
//!
//! - The blocks of a file are numbered in clusters too, and each has the same place in its cluster
//!   as on the device.
//! - All blocks of one cluster of the file that are mapped lie in one cluster of the device. That
//!   belongs to the file as soon as one of its blocks is mapped, and until none is. So a hole
//!   beside mapped blocks is filled from their cluster, and who unmaps blocks looks for others
//!   beside them.
//! - A node of a map and a block of attributes take a cluster each.
//! - `i_blocks` counts whole clusters.
//!
//! Where a cluster is one block, nothing of this is looked at.

use std::ops::Range;

use pext4_ondisk::{BlockNumber, LogicalBlock};

use super::extents::Mapping;
use super::inodes::Inodes;
use super::nodes::Runs;
use super::{Inode, Root};
use crate::error::Result;

/// Where blocks of a hole can be.
pub(super) enum Place {
    /// From this block on, in a cluster that the file has: so many.
    Own(BlockNumber, u64),
    /// In new clusters: these blocks of the file.
    New(Range<u64>),
}

/// Blocks that a change of a map has unmapped.
#[derive(Default)]
pub(super) struct Unmapped {
    /// Runs of blocks of the device.
    pub(super) runs: Runs,
    /// The blocks of the file among which they were; none of these is mapped any more.
    pub(super) range: Range<u64>,
}

impl Inodes {
    /// Blocks in a cluster.
    pub(super) fn cluster(&self) -> u64 {
        self.store.geometry.blocks_per_cluster.into()
    }

    /// The first block of the cluster of a block, of a file or of the device.
    pub(super) fn cluster_start(&self, block: u64) -> u64 {
        self.store.geometry.cluster_start(block)
    }

    /// Where the beginning of a hole of the file can be.
    pub(super) fn place_in_clusters(&self, inode: &Inode, hole: Range<u64>) -> Result<Place> {
        let cluster = self.cluster();
        if cluster == 1 {
            return Ok(Place::New(hole));
        }
        let root = inode.root();
        let first = self.cluster_start(hole.start);
        if let Some(own) = self.mapped_cluster(inode, &root, first)? {
            let start = BlockNumber(own.get() + hole.start % cluster);
            let length = hole.end.min(first + cluster) - hole.start;
            let few = u32::try_from(length).unwrap_or(u32::MAX);
            self.check_not_metadata(start, few)?;
            return Ok(Place::Own(start, length));
        }
        let last = self.cluster_start(hole.end - 1);
        let is_shared = last != first
            && !hole.end.is_multiple_of(cluster)
            && self.mapped_cluster(inode, &root, last)?.is_some();
        let end = if is_shared { last } else { hole.end };
        Ok(Place::New(hole.start..end))
    }

    /// The clusters of the device that unmapped blocks leave: the first block of each run of them,
    /// and their number. `root` is that of the map without the blocks. Where a cluster is one
    /// block, these are the blocks' own runs, taken.
    pub(super) fn left_clusters(
        &self,
        inode: &Inode,
        root: &Root,
        unmapped: &mut Unmapped,
    ) -> Result<Runs> {
        let cluster = self.cluster();
        if cluster == 1 {
            return Ok(std::mem::take(&mut unmapped.runs));
        }
        let mut left: Vec<u64> = unmapped
            .runs
            .iter()
            .flat_map(|&(start, length)| {
                let end = start.get() + u64::from(length);
                (self.cluster_start(start.get())..end).step_by(cluster as usize)
            })
            .collect();
        left.sort_unstable();
        left.dedup();
        let Range { start, end } = unmapped.range;
        for edge in [start, end]
            .into_iter()
            .filter(|edge| !edge.is_multiple_of(cluster))
        {
            let beside = self.mapped_cluster(inode, root, self.cluster_start(edge))?;
            left.retain(|&first| beside.is_none_or(|beside| beside.get() != first));
        }
        let mut runs = Runs::new();
        for first in left {
            match runs.last_mut() {
                Some((start, count)) if start.get() + u64::from(*count) * cluster == first => {
                    *count += 1;
                }
                _ => runs.push((BlockNumber(first), 1)),
            }
        }
        Ok(runs)
    }

    /// The number of blocks in runs of clusters.
    pub(super) fn blocks_in(&self, clusters: &Runs) -> i64 {
        let count: u64 = clusters.iter().map(|&(_, count)| u64::from(count)).sum();
        i64::try_from(count * self.cluster()).unwrap_or(i64::MAX)
    }

    /// The cluster of the device in which blocks of the file's cluster from block `first` on are,
    /// if any of them is mapped.
    fn mapped_cluster(
        &self,
        inode: &Inode,
        root: &Root,
        first: u64,
    ) -> Result<Option<BlockNumber>> {
        let mut at = first;
        while at < first.saturating_add(self.cluster()) {
            // No file has more blocks.
            let Ok(logical) = u32::try_from(at) else {
                break;
            };
            match self.lookup_any(inode, root, LogicalBlock(logical))? {
                Mapping::Mapped(extent) => {
                    let offset = u64::from(logical.saturating_sub(extent.logical.get()));
                    let block = extent.start.get() + offset;
                    return Ok(Some(BlockNumber(self.cluster_start(block))));
                }
                Mapping::Hole(hole) => at = hole.end(),
            }
        }
        Ok(None)
    }
}
