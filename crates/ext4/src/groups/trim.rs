//! Discarding free blocks on the device (`FITRIM`).
//!
//! Blocks that are free in the buddy can be allocated at any time, so a group is held while the
//! device discards its free runs. A device may be slow, and the committer may wait for the group,
//! so the group is released after every few runs and the search continues where it was. Blocks that
//! a transaction freed which is not durable yet, and preallocated blocks, are not free there.

use std::ops::Range;

use pext4_ondisk::GroupNumber;

use super::Groups;
use crate::error::{Error, Refusal, Result};

/// How many runs of a group are discarded before others get a turn.
const MAX_DISCARDS_PER_HOLD: u32 = 16;

impl Groups {
    /// Discards the free runs of at least `least` clusters in a range of blocks; returns the number
    /// of discarded blocks.
    ///
    /// # Errors
    ///
    /// `Refused(NotSupported)` if the device does not support discards; `Io`.
    pub fn trim(&self, range: &Range<u64>, least: u32) -> Result<u64> {
        let trimmed = self.trim_groups(range, least);
        self.report();
        trimmed
    }

    fn trim_groups(&self, range: &Range<u64>, least: u32) -> Result<u64> {
        let mut trimmed = 0;
        for number in self.store.geometry.groups() {
            let part = self.part_of_group(number, range);
            if !part.is_empty() && self.info(number).free_hint() > 0 {
                self.make_room_for(number);
                trimmed += self.trim_group(number, part, least)?;
            }
        }
        Ok(trimmed)
    }

    /// The clusters of a group that are wholly in a range of blocks.
    fn part_of_group(&self, number: GroupNumber, range: &Range<u64>) -> Range<u32> {
        let geometry = &self.store.geometry;
        let first = geometry.first_block(number).get();
        let length = geometry.clusters_in(number);
        let within = |clusters: u64| {
            let at = u32::try_from(clusters);
            at.map_or(length, |at| at.min(length))
        };
        let cluster = u64::from(geometry.blocks_per_cluster);
        let start = within(range.start.saturating_sub(first).div_ceil(cluster));
        start..within(range.end.saturating_sub(first) / cluster)
    }

    fn trim_group(&self, number: GroupNumber, part: Range<u32>, least: u32) -> Result<u64> {
        let geometry = &self.store.geometry;
        let mut held = self.lock(number);
        if !held.load_blocks() {
            return Ok(0);
        }
        let (mut at, mut trimmed, mut discarded) = (part.start, 0, 0u32);
        while let Some(run) = held.blocks().buddy.next_run(at, part.end) {
            at = run.end();
            if run.length < least {
                continue;
            }
            let blocks = u64::from(run.length) << geometry.cluster_bits;
            let first = geometry.block_of_cluster(number, run.start);
            self.discard_blocks(first.get(), blocks)?;
            trimmed += blocks;
            discarded += 1;
            if discarded.is_multiple_of(MAX_DISCARDS_PER_HOLD) {
                drop(held);
                held = self.lock(number);
                if !held.load_blocks() {
                    break;
                }
            }
        }
        Ok(trimmed)
    }

    fn discard_blocks(&self, start: u64, length: u64) -> Result<()> {
        let block_size = u64::from(self.store.block_size());
        let device = &self.store.device;
        match device.discard(start * block_size, length * block_size) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::NotSupported.into()),
            Err(error) => Err(Error::Io(error)),
        }
    }
}
