//! The free space of one group, as it is shown.

use pext4_ondisk::GroupNumber;

use super::Groups;
use super::info::mark;
use crate::statistics::{FreeRuns, GroupBlocks, GroupReport};

impl Groups {
    /// What is known about the free space of a group. Nothing is read for it; the lock is taken
    /// only if the block bitmap is in memory, and held while the counts are copied.
    pub fn report_on(&self, number: GroupNumber) -> GroupReport {
        let info = self.info(number);
        let is_corrupt = info.is(mark::BLOCKS_CORRUPT);
        let loaded = match !is_corrupt && info.is(mark::BLOCKS_LOADED) {
            true => self.loaded_runs(number),
            false => None,
        };
        let (free, blocks) = match loaded {
            Some((free, runs)) => (free, GroupBlocks::Loaded(runs)),
            None if is_corrupt => (0, GroupBlocks::Corrupt),
            None => (info.free_hint(), GroupBlocks::NotLoaded),
        };
        GroupReport {
            number: number.get(),
            free_blocks: u64::from(free) << self.store.geometry.cluster_bits,
            blocks,
            has_corrupt_inodes: info.is(mark::INODES_CORRUPT),
        }
    }

    /// Free clusters and free runs of a group; `None` if its block bitmap is not in memory.
    fn loaded_runs(&self, number: GroupNumber) -> Option<(u32, FreeRuns)> {
        let mut held = self.lock(number);
        let buddy = &held.loaded()?.blocks.as_ref()?.buddy;
        let (free, count) = (buddy.free(), buddy.fragments());
        let (first, by_order) = (buddy.first_free(), buddy.runs_by_order());
        drop(held);
        let geometry = &self.store.geometry;
        let bits = geometry.cluster_bits;
        let orders = geometry.clusters_per_group.ilog2() as usize + 1;
        // No run is shorter than a cluster.
        let shorter = std::iter::repeat_n(0, bits as usize);
        let runs = FreeRuns {
            count,
            first: first.map(|cluster| u64::from(cluster) << bits),
            by_order: shorter.chain(by_order.into_iter().take(orders)).collect(),
        };
        Some((free, runs))
    }
}
