//! The plan of a resize: what is copied, cleared and written.
//!
//! Planning writes nothing. Blocks are classified by their use in the old file system, which makes
//! the order of [`super::run`] safe: *clears* and *fresh* blocks are not part of it, *changed*
//! blocks are, and *copies* are read only when primary metadata is damaged. Only a shrink has
//! *moves*, first those of inode tables. They may go to metadata blocks that the shrink releases,
//! so it is never written through the journal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::Progress;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::feature::{Incompat, ReadOnlyCompat};
use pext4_ondisk::superblock::{self, Superblock};

use super::Summary;
use super::copies::{self, Copy};
use super::image::Image;
use super::journal::Log;
use super::shape::Shape;
use crate::error::Result;
use crate::mkfs::Run;

/// A run of blocks that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub from: u64,
    pub to: u64,
    pub count: u64,
}

/// The plan of a resize.
#[must_use = "nothing is resized unless it is run"]
pub struct Plan {
    /// The superblock as it is on the device.
    pub(super) old: Superblock,
    pub(super) shape: Shape,
    /// Inode tables that move, in this order.
    pub(super) table_moves: Vec<Move>,
    /// Blocks of files that move, when the tables have moved: they may go to where these were.
    pub(super) moves: Vec<Move>,
    /// Blocks that must read as zeroes.
    pub(super) clears: Vec<Run>,
    /// Blocks behind the old end.
    pub(super) fresh: BTreeMap<BlockNumber, Vec<u8>>,
    /// Blocks of the old file system, except the superblock's.
    pub(super) changed: BTreeMap<BlockNumber, Vec<u8>>,
    pub(super) copies: Vec<Copy>,
    pub(super) moved_inodes: u64,
    /// The image's journal, empty.
    pub(super) log: Option<Log>,
    pub(super) replayed: u32,
    pub(super) has_dropped_log: bool,
    /// The time of all time stamps, since 1970; that of the run if `None`.
    pub(super) time: Option<Duration>,
    pub(super) progress: Arc<Progress>,
}

impl fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Plan")
            .field("summary", &self.summary())
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// Computes the free counts of the changed image, and encodes its descriptors and superblocks.
    pub(super) fn complete(
        mut image: Image<'_>,
        mut shape: Shape,
        clears: Vec<Run>,
        moves: Vec<Move>,
    ) -> Result<Self> {
        image
            .descriptors
            .truncate(shape.geometry.group_count as usize);
        image.store_bitmaps(&shape.geometry);
        let superblock = &mut shape.superblock;
        let descriptors = &image.descriptors;
        superblock.free_blocks = descriptors
            .iter()
            .map(|group| u64::from(group.free_clusters))
            .sum();
        superblock.free_inodes = descriptors
            .iter()
            .map(|group| group.free_inodes)
            .fold(0, u32::saturating_add);
        let features = &mut superblock.features;
        features.incompat.remove(Incompat::RECOVER);
        // A mount that a crash ended leaves the mark, also of an orphan file that is empty.
        features
            .read_only_compat
            .remove(ReadOnlyCompat::ORPHAN_PRESENT);
        shape.superblock.overhead_clusters = overhead(&image, &shape);
        let mut copies = copies::descriptors(&mut image, &shape)?;
        copies.extend(copies::superblocks(&shape.superblock, &shape.geometry));
        let end = image.geometry.blocks_count.min(shape.geometry.blocks_count);
        let mut changed = image.changed;
        let mut fresh = changed.split_off(&BlockNumber(end));
        if shape.geometry.blocks_count < image.geometry.blocks_count {
            // Edited blocks behind the new end have moved or are discarded.
            fresh.clear();
        }
        Ok(Self {
            old: image.superblock,
            shape,
            table_moves: image.moved_tables.into_moves(),
            moves,
            clears,
            fresh,
            changed,
            copies,
            moved_inodes: 0,
            log: None,
            replayed: 0,
            has_dropped_log: false,
            time: None,
            progress: Arc::default(),
        })
    }

    /// Sets the time of all time stamps, since 1970: then the run of the same plan writes the same
    /// bytes. `None` means when the plan is run.
    pub fn set_time(&mut self, time: Option<Duration>) {
        self.time = time;
    }

    /// The effects of the resize, in numbers.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let geometry = &self.shape.geometry;
        let per_group = u64::from(geometry.blocks_per_group);
        let first = u64::from(geometry.first_data_block);
        let old_groups = (self.old.blocks_count - first).div_ceil(per_group);
        Summary {
            block_size: geometry.block_size,
            old_blocks: self.old.blocks_count,
            blocks: geometry.blocks_count,
            old_groups: u32::try_from(old_groups).unwrap_or(u32::MAX),
            groups: geometry.group_count,
            old_inodes: self.old.inodes_count,
            inodes: geometry.inodes_count,
            free_blocks: self.shape.superblock.free_blocks,
            moved_blocks: self.moves.iter().map(|moved| moved.count).sum(),
            moved_inodes: self.moved_inodes,
            became_meta_bg: geometry.has_meta_bg()
                && !self.old.features.has_incompat(Incompat::META_BG),
            replayed: self.replayed,
            has_dropped_log: self.has_dropped_log,
        }
    }

    /// Whether the file system has the requested size already.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.old.blocks_count == self.shape.geometry.blocks_count
    }

    /// The block of the primary superblock, and the offset in it.
    pub(super) fn superblock_home(&self) -> (BlockNumber, usize) {
        let size = u64::from(self.shape.geometry.block_size);
        let within = usize::try_from(superblock::OFFSET % size).expect("below a block's size");
        (BlockNumber(superblock::OFFSET / size), within)
    }
}

/// The new value of `s_overhead_clusters`; 0 if the old one is 0.
fn overhead(image: &Image<'_>, shape: &Shape) -> u32 {
    let old = u64::from(image.superblock.overhead_clusters);
    if old == 0 {
        return 0;
    }
    let corrected =
        (old + shape.geometry.metadata_blocks()).saturating_sub(image.geometry.metadata_blocks());
    u32::try_from(corrected).unwrap_or(0)
}
