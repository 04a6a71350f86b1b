//! Clusters of several blocks (`bigalloc`): space is allocated in larger units than files are
//! mapped in.
//!
//! - The blocks of a file are numbered in clusters too, and each has the same place in its cluster
//!   as on the device.
//! - All blocks of one cluster of the file that are mapped lie in one cluster of the device. That
//!   belongs to the file as soon as one of its blocks is mapped, and until none is. So a hole
//!   beside mapped blocks is filled from their cluster, and who unmaps blocks looks for others
//!   beside them.
//! - A block that is unmapped while others of its cluster stay can be filled again at once, since
//!   the cluster stays the file's. It is not before the unmapping is durable: a crash may bring the
//!   old map back, and with it what was in the block ([`Inodes::settle_cluster`]).
//! - A node of a map and a block of attributes take a cluster each.
//! - `i_blocks` counts whole clusters.
//!
//! Where a cluster is one block, nothing of this is looked at.

use std::ops::Range;

use pext4_jbd2::Handle;
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock, Tid};

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
    /// Where the change came to its end before the range did: no block of the file from here to the
    /// end of the range is mapped any more.
    pub(super) left: Option<u64>,
    /// The clusters of the device that hold blocks beside the range.
    pub(super) beside: Beside,
}

/// Runs of clusters of the device: the first block of each run, and how many clusters it has. Where
/// a cluster is one block, these are runs of blocks.
#[derive(Default)]
pub(super) struct ClusterRuns(pub(super) Runs);

/// The clusters of the device in which blocks of the file lie before and behind a range that begins
/// or ends inside a cluster of the file.
pub(super) type Beside = [Option<BlockNumber>; 2];

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
        let end_of_first = first + cluster;
        if let Some(own) = self.mapped_cluster(inode, &root, first..end_of_first)? {
            let start = BlockNumber(own.get() + hole.start % cluster);
            return Ok(Place::Own(start, hole.end.min(end_of_first) - hole.start));
        }
        let last = self.cluster_start(hole.end - 1);
        let is_shared = last != first
            && !hole.end.is_multiple_of(cluster)
            && self
                .mapped_cluster(inode, &root, last..last + cluster)?
                .is_some();
        let end = if is_shared { last } else { hole.end };
        Ok(Place::New(hole.start..end))
    }

    /// The transaction that last unmapped blocks of a cluster that stays, unless it is known to be
    /// durable.
    pub(crate) fn unmapped_beside(&self, inode: &Inode) -> Option<Tid> {
        // Where a cluster is one block, nobody takes a lock for this.
        (self.cluster() > 1).then(|| inode.state(|state| state.unmapped_beside_in))?
    }

    /// Waits until what was unmapped is durable, if a hole from `block` on will be filled from a
    /// cluster of the file. The caller holds the inode's lock for writing and no handle.
    ///
    /// # Errors
    ///
    /// The journal's, or those of reading the map.
    pub(super) fn settle_cluster(&self, inode: &Inode, block: u64) -> Result<()> {
        let Some(tid) = self.unmapped_beside(inode) else {
            return Ok(());
        };
        let first = self.cluster_start(block);
        let own = self.mapped_cluster(inode, &inode.root(), first..first + self.cluster())?;
        if own.is_some() {
            self.store.journal().commit(tid)?;
            inode.note(|state| state.unmapped_beside_in = None);
        }
        Ok(())
    }

    /// The clusters beside a range of blocks that will be unmapped. To be called before that: what
    /// cannot be read is found while nothing has changed.
    pub(super) fn clusters_beside(&self, inode: &Inode, range: &Range<u64>) -> Result<Beside> {
        if self.cluster() == 1 {
            return Ok([None; 2]);
        }
        let root = inode.root();
        let first = self.cluster_start(range.start);
        let end = range.end.checked_next_multiple_of(self.cluster());
        let before = self.mapped_cluster(inode, &root, first..range.start)?;
        let behind = self.mapped_cluster(inode, &root, range.end..end.unwrap_or(range.end))?;
        let is_within = range.end <= first.saturating_add(self.cluster());
        match (before, behind) {
            (Some(before), Some(behind)) if is_within && before != behind => {
                Err(Self::scattered(inode, behind.get()).into())
            }
            _ => Ok([before, behind]),
        }
    }

    /// The clusters of the device that unmapped blocks leave. `root` is that of the map without the
    /// blocks. Where a cluster is one block, these are the blocks' own runs, taken.
    pub(super) fn left_clusters(
        &self,
        handle: &Handle<'_>,
        inode: &Inode,
        root: &Root,
        unmapped: &mut Unmapped,
    ) -> ClusterRuns {
        let cluster = self.cluster();
        if cluster == 1 || unmapped.runs.is_empty() {
            return ClusterRuns(std::mem::take(&mut unmapped.runs));
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
        let all = left.len();
        let [before, behind] = unmapped.beside;
        let before = match unmapped.left {
            Some(end) => self.cluster_of_rest(inode, root, end, unmapped),
            None => before,
        };
        left.retain(|&first| ![before, behind].contains(&Some(BlockNumber(first))));
        if left.len() < all {
            inode.note(|state| state.unmapped_beside_in = Some(handle.tid()));
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
        ClusterRuns(runs)
    }

    /// The cluster of the device that still holds blocks before `end`, where the change of a map
    /// came to its end. The next change begins there, and will report what cannot be read now.
    fn cluster_of_rest(
        &self,
        inode: &Inode,
        root: &Root,
        end: u64,
        unmapped: &Unmapped,
    ) -> Option<BlockNumber> {
        let rest = self.cluster_start(end)..end;
        self.mapped_cluster(inode, root, rest).unwrap_or_else(|_| {
            // Blocks are unmapped from the end backwards.
            let (lowest, _) = unmapped.runs.last()?;
            Some(BlockNumber(self.cluster_start(lowest.get())))
        })
    }

    /// The number of blocks in runs of clusters.
    pub(super) fn blocks_in(&self, clusters: &ClusterRuns) -> i64 {
        let runs = clusters.0.iter();
        let count: u64 = runs.map(|&(_, count)| u64::from(count)).sum();
        i64::try_from(count * self.cluster()).unwrap_or(i64::MAX)
    }

    /// The cluster of the device in which blocks are that the file has in a part of one of its
    /// clusters, if any of them is mapped.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they are in several clusters of the device, or as [`Inodes::lookup`].
    fn mapped_cluster(
        &self,
        inode: &Inode,
        root: &Root,
        part: Range<u64>,
    ) -> Result<Option<BlockNumber>> {
        let mut found = None;
        let mut at = part.start;
        while at < part.end {
            // No file has more blocks.
            let Ok(logical) = u32::try_from(at) else {
                break;
            };
            match self.lookup_with_root(inode, root, LogicalBlock(logical))? {
                Mapping::Mapped(extent) => {
                    let offset = u64::from(logical.saturating_sub(extent.logical.get()));
                    let block = extent.start.get() + offset;
                    let own = BlockNumber(self.cluster_start(block));
                    if *found.get_or_insert(own) != own {
                        return Err(Self::scattered(inode, block).into());
                    }
                    at = extent.end();
                }
                Mapping::Hole(hole) => at = hole.end(),
            }
        }
        Ok(found)
    }

    fn scattered(inode: &Inode, block: u64) -> Corrupt {
        let problem = "a cluster of the file lies in several clusters of the device";
        let corrupt = Corrupt::new("extent tree", problem);
        corrupt
            .in_block(BlockNumber(block))
            .in_inode(inode.number())
    }
}
