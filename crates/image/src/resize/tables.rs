//! Moves bitmaps and inode tables of remaining groups out of blocks that must be vacated.

use std::collections::BTreeMap;
use std::ops::Range;

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::{BlockNumber, GroupNumber};

use super::image::Image;
use super::plan::Move;
use super::shape::Shape;
use super::shrink::release;
use super::vacate::Vacated;
use crate::error::{Error, Result};
use crate::mkfs::Run;
use crate::mkfs::layout::metadata_runs;

/// Inode tables that were moved.
#[derive(Debug, Default)]
pub(super) struct MovedTables {
    /// In the order in which they are copied: one may go to where an earlier one was.
    moves: Vec<Move>,
    /// Their indices by the new place.
    by_place: BTreeMap<u64, usize>,
}

impl MovedTables {
    /// Adds a table that goes to free blocks.
    pub fn add(&mut self, moved: Move) {
        self.by_place.insert(moved.to, self.moves.len());
        self.moves.push(moved);
    }

    /// The block on the device from which a block is copied, if it is of a moved table; else the
    /// block itself.
    pub fn source(&self, block: BlockNumber) -> BlockNumber {
        let before = self.by_place.range(..=block.get()).next_back();
        let moved = before.and_then(|(_, &index)| self.moves.get(index));
        match moved {
            Some(moved) if block.get() - moved.to < moved.count => {
                BlockNumber(moved.from + (block.get() - moved.to))
            }
            _ => block,
        }
    }

    /// What is to be copied, in this order.
    pub fn into_moves(self) -> Vec<Move> {
        self.moves
    }
}

/// Relocates all such metadata.
pub(super) fn plan(image: &mut Image<'_>, shape: &Shape, vacated: &Vacated) -> Result<()> {
    for group in shape.geometry.groups() {
        let descriptor = image.descriptor(group)?;
        let [blocks, inodes, table] = metadata_runs(descriptor, &shape.geometry);
        if vacated.overlaps(&blocks) {
            // The bitmap is read from the old block and later written to the new one.
            image.block_bitmap(group)?.is_changed = true;
            let place = allocate(image, shape, group, 1)?;
            image.descriptors[group.get() as usize].block_bitmap = BlockNumber(place.start);
        }
        if vacated.overlaps(&inodes) {
            image.inode_bitmap(group)?.is_changed = true;
            let place = allocate(image, shape, group, 1)?;
            image.descriptors[group.get() as usize].inode_bitmap = BlockNumber(place.start);
        }
        if vacated.overlaps(&table) {
            move_table(image, shape, vacated, group, table)?;
        }
    }
    Ok(())
}

fn move_table(
    image: &mut Image<'_>,
    shape: &Shape,
    vacated: &Vacated,
    group: GroupNumber,
    table: Run,
) -> Result<()> {
    let count = table.end - table.start;
    let place = allocate(image, shape, group, count)?;
    image.move_table(Move {
        from: table.start,
        to: place.start,
        count,
    });
    image.descriptors[group.get() as usize].inode_table = BlockNumber(place.start);
    release(image, shape, vacated, table)
}

/// Allocates contiguous blocks: anywhere, or without `flex_bg` in the group itself.
fn allocate(image: &mut Image<'_>, shape: &Shape, group: GroupNumber, count: u64) -> Result<Run> {
    let geometry = &shape.geometry;
    let flexible = shape.superblock.features.has_incompat(Incompat::FLEX_BG);
    let own = group.get();
    let candidates: [Range<u32>; 2] = if flexible {
        let first = own / geometry.groups_per_flex * geometry.groups_per_flex;
        [first..geometry.group_count, 0..first]
    } else {
        [own..own + 1, 0..0]
    };
    let found = image.allocate_piece(geometry, candidates.into_iter().flatten(), count)?;
    found.ok_or_else(|| {
        Error::Impossible(format!(
            "no {count} blocks in one piece are free for the metadata of group {own}: take a little more"
        ))
    })
}

#[cfg(test)]
mod tests {
    use pext4_block::RamDevice;
    use pext4_ondisk::BlockNumber;

    use super::super::image::Image;
    use super::super::plan::Move;
    use super::super::{shrink, smallest};
    use super::MovedTables;
    use crate::mkfs::{Options, mkfs};

    #[test]
    fn blocks_of_moved_tables_are_found_where_they_were() {
        let mut moved = MovedTables::default();
        for (from, to) in [(1000, 50), (2000, 1000), (500, 60)] {
            moved.add(Move {
                from,
                to,
                count: 10,
            });
        }
        let source = |block| moved.source(BlockNumber(block)).get();
        assert_eq!(
            [49, 50, 59, 60, 69, 70].map(source),
            [49, 1000, 1009, 500, 509, 70]
        );
        assert_eq!(
            [1000, 1009, 1010, 2000].map(source),
            [2000, 2009, 1010, 2000]
        );
    }

    /// The new last group gets a copy of the superblock and the descriptors where the tables of its
    /// flexible group are.
    #[test]
    fn a_table_that_moves_is_not_kept_in_memory() {
        const PER_GROUP: u64 = 8192;
        let device = RamDevice::new(32 * PER_GROUP * 1024);
        let options = Options {
            block_size: Some(1024),
            inodes: Some(32 * PER_GROUP),
            features: vec!["sparse_super2".to_owned()],
            ..Options::default()
        };
        mkfs(&device, &options).expect("it fits");
        let image = Image::open(&device).expect("a sound image");
        let length = u64::from(image.geometry.inode_table_blocks);
        assert_eq!(length, PER_GROUP / 4);
        let shape = smallest::shape(&image, 17 * PER_GROUP + 1).expect("it can be that small");
        let plan = shrink::plan(image, shape).expect("there is room");
        let moved: u64 = plan.table_moves.iter().map(|table| table.count).sum();
        assert!(
            moved >= length && moved.is_multiple_of(length),
            "{moved} blocks move"
        );
        assert!(
            (plan.changed.len() as u64) < length,
            "{}",
            plan.changed.len()
        );
    }
}
