//! Moves file blocks that must be vacated, and updates the maps that point to them.
//!
//! If any part of an extent tree moves, the tree is rebuilt, in its old nodes if these need not
//! move; indirect blocks are edited. Data is recorded as a move, except blocks with pending changes
//! (of directories): these move in memory. Unwritten extents get other blocks without a copy. An
//! attribute block that several inodes share moves once.

use std::collections::BTreeMap;

use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, indirect, xattr};

use super::image::Image;
use super::map;
use super::plan::Move;
use super::shape::Shape;
use super::shrink::{no_room, release};
use super::space::Cursor;
use super::vacate::Vacated;
use crate::error::{Error, Result};
use crate::mkfs::Run;

/// The list of bad blocks.
pub(super) const BAD_BLOCKS: InodeNumber = InodeNumber(1);

/// Moves file blocks.
pub(super) struct Mover<'a> {
    shape: &'a Shape,
    vacated: &'a Vacated,
    cursor: Cursor,
    moves: Vec<Move>,
    /// Moved attribute blocks: from the old to the new block.
    attributes: BTreeMap<BlockNumber, BlockNumber>,
    /// How many more blocks may be visited, of data and of maps.
    left: u64,
    /// How many more nodes of maps may be read: an image may be long and hold little, and nodes may
    /// lead to the same ones again and again.
    nodes: u64,
}

impl<'a> Mover<'a> {
    pub fn new(shape: &'a Shape, vacated: &'a Vacated) -> Self {
        Self {
            shape,
            vacated,
            cursor: Cursor::default(),
            moves: Vec::new(),
            attributes: BTreeMap::new(),
            left: 0,
            nodes: 0,
        }
    }

    /// Returns the data to copy.
    pub fn finish(self) -> Vec<Move> {
        self.moves
    }

    /// Moves the blocks of all files in the remaining groups.
    pub fn move_files(&mut self, image: &mut Image<'_>) -> Result<()> {
        self.left = image.geometry.blocks_count;
        self.nodes = image.blocks_to_read();
        for group in self.shape.geometry.groups() {
            for number in image.used_inodes(group)? {
                if number == InodeNumber::RESIZE {
                    continue;
                }
                let inode = image.inode(number)?;
                self.move_file(image, number, inode)?;
            }
        }
        Ok(())
    }

    fn move_file(&mut self, image: &mut Image<'_>, number: InodeNumber, old: Inode) -> Result<()> {
        let mut inode = old.clone();
        if inode.attribute_block.get() != 0 && self.vacated.contains(inode.attribute_block.get()) {
            inode.attribute_block =
                self.move_attribute_block(image, number, inode.attribute_block)?;
        }
        if has_map(&inode) {
            if inode.has_extents() {
                self.move_extents(image, number, &mut inode)?;
            } else {
                self.move_indirect(image, number, &mut inode)?;
            }
        }
        if inode == old {
            return Ok(());
        }
        image.put_inode(number, &inode)
    }

    /// Allocates up to `max_blocks` contiguous blocks.
    fn allocate(&mut self, image: &mut Image<'_>, max_blocks: u64) -> Result<Run> {
        let run = image.allocate(&self.shape.geometry, &mut self.cursor, max_blocks)?;
        run.ok_or_else(|| no_room(self.shape))
    }

    fn move_attribute_block(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        old: BlockNumber,
    ) -> Result<BlockNumber> {
        if let Some(&new) = self.attributes.get(&old) {
            return Ok(new);
        }
        if !image.geometry.contains(old, 1) {
            let corrupt = Corrupt::new("inode", "its attributes lie outside the file system");
            return Err(corrupt.in_inode(number).in_block(old).into());
        }
        let mut bytes = image.read(old)?;
        let new = BlockNumber(self.allocate(image, 1)?.start);
        if let Some(seed) = image.geometry.checksum_seed() {
            xattr::verify_block(seed, old, &bytes)
                .map_err(|corrupt| corrupt.in_inode(number).in_block(old))?;
            xattr::stamp_block(seed, new, &mut bytes);
        }
        image.put(new, bytes);
        self.attributes.insert(old, new);
        Ok(new)
    }

    fn move_extents(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        inode: &mut Inode,
    ) -> Result<()> {
        let found = map::extents(image, number, inode)?;
        self.take_nodes(number, found.nodes.len() as u64)?;
        let stays = |extent: &Extent| !self.vacated.overlaps(&run_of(extent));
        let nodes_stay = !found
            .nodes
            .iter()
            .any(|node| self.vacated.contains(node.get()));
        let mapped = found.extents.iter().map(|extent| u64::from(extent.length));
        self.left = self
            .left
            .checked_sub(mapped.sum())
            .ok_or_else(|| used_twice(number))?;
        if nodes_stay && found.extents.iter().all(stays) {
            return Ok(());
        }
        let mut runs = Vec::with_capacity(found.extents.len());
        for extent in &found.extents {
            self.extent(image, extent, &mut runs)?;
        }
        let extents = extent::extents_of(&runs).ok_or_else(|| {
            Error::from(Corrupt::new("extent tree", "cannot be built anew").in_inode(number))
        })?;
        self.rebuild(image, number, inode, &extents, found.nodes)
    }

    fn take_nodes(&mut self, number: InodeNumber, count: u64) -> Result<()> {
        let left = self.nodes.checked_sub(count);
        self.nodes = left.ok_or_else(|| used_twice(number))?;
        Ok(())
    }

    /// Appends the runs that replace one extent.
    fn extent(
        &mut self,
        image: &mut Image<'_>,
        extent: &Extent,
        runs: &mut Vec<extent::Run>,
    ) -> Result<()> {
        let first = extent.start.get();
        let mut push = |from: u64, start: u64, length: u64| {
            runs.push(extent::Run {
                logical: extent
                    .logical
                    .checked_add(from - first)
                    .expect("inside the extent"),
                start: BlockNumber(start),
                length: u32::try_from(length).expect("a part of an extent"),
                unwritten: extent.unwritten,
            });
        };
        for (piece, must_move) in self.vacated.pieces(run_of(extent)) {
            if !must_move {
                push(piece.start, piece.start, piece.end - piece.start);
                continue;
            }
            let mut from = piece.start;
            while from < piece.end {
                let to = self.allocate(image, piece.end - from)?;
                let count = to.end - to.start;
                if !extent.unwritten {
                    self.record_move(image, from, to.start, count);
                }
                push(from, to.start, count);
                from += count;
            }
        }
        Ok(())
    }

    /// Records a move of data. Pending changes of the blocks move with them.
    fn record_move(&mut self, image: &mut Image<'_>, from: u64, to: u64, count: u64) {
        image.move_changed(&Move { from, to, count });
        match self.moves.last_mut() {
            Some(last) if last.from + last.count == from && last.to + last.count == to => {
                last.count += count;
            }
            _ => self.moves.push(Move { from, to, count }),
        }
    }

    /// Rebuilds an inode's extent tree, preferably in its old nodes.
    fn rebuild(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        inode: &mut Inode,
        extents: &[Extent],
        old_nodes: Vec<BlockNumber>,
    ) -> Result<()> {
        let needed = extent::nodes_needed(extents.len(), image.block_size());
        let had = old_nodes.len();
        let mut pool: Vec<BlockNumber> = old_nodes
            .into_iter()
            .filter(|node| !self.vacated.contains(node.get()))
            .collect();
        let spare = pool.split_off(pool.len().min(needed));
        while pool.len() < needed {
            pool.push(BlockNumber(self.allocate(image, 1)?.start));
        }
        for node in spare {
            release(image, self.shape, self.vacated, node.get()..node.get() + 1)?;
        }
        pool.reverse();
        let built = extent::build(extents, image.block_size(), || pool.pop());
        let mut built = built.ok_or_else(|| {
            Error::from(Corrupt::new("extent tree", "is too large to move").in_inode(number))
        })?;
        if let Some(seed) = image.geometry.checksum_seed() {
            built.stamp(InodeSeed::new(seed, number, inode.generation));
        }
        inode.block = built.root;
        for (block, bytes) in built.nodes {
            image.put(block, bytes);
        }
        self.recount(image, number, inode, had, needed)
    }

    /// Updates `i_blocks` after the number of tree nodes changed.
    fn recount(
        &self,
        image: &Image<'_>,
        number: InodeNumber,
        inode: &mut Inode,
        had: usize,
        has: usize,
    ) -> Result<()> {
        if had == has {
            return Ok(());
        }
        let features = &image.superblock.features;
        // The files of the file system itself, such as the journal, are in nobody's quota.
        let is_counted = number == InodeNumber::ROOT || number >= image.geometry.first_inode;
        if is_counted && features.has_read_only_compat(ReadOnlyCompat::QUOTA) {
            return Err(Error::Impossible(format!(
                "the map of inode {number} would take another number of blocks at this size, and this \
                 version does not correct quota: turn it off with `tune2fs -O ^quota` first"
            )));
        }
        let block_size = image.geometry.block_size;
        let per_block = u64::from(block_size / 512);
        let sectors = (inode.sectors(block_size) + has as u64 * per_block)
            .saturating_sub(had as u64 * per_block);
        let huge = features.has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
        if inode.set_sectors(sectors, block_size, huge) {
            return Ok(());
        }
        Err(Corrupt::new("inode", "its space cannot be counted")
            .in_inode(number)
            .into())
    }

    fn move_indirect(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        inode: &mut Inode,
    ) -> Result<()> {
        for slot in 0..indirect::DIRECT + indirect::MAX_DEPTH {
            let depth = (slot + 1).saturating_sub(indirect::DIRECT);
            let pointer = indirect::entry(&inode.block, slot);
            let moved = self.move_tree(image, number, pointer, depth)?;
            indirect::set_entry(&mut inode.block, slot, moved);
        }
        Ok(())
    }

    /// Moves the block or the tree at `pointer`. Returns the new pointer.
    fn move_tree(
        &mut self,
        image: &mut Image<'_>,
        number: InodeNumber,
        pointer: u32,
        depth: usize,
    ) -> Result<u32> {
        if pointer == 0 {
            return Ok(0);
        }
        let block = BlockNumber(u64::from(pointer));
        map::check_pointer(image, number, block, &mut self.left)?;
        let must_move = self.vacated.contains(block.get());
        if depth == 0 {
            if !must_move {
                return Ok(pointer);
            }
            let to = self.low_block(image)?;
            self.record_move(image, block.get(), u64::from(to), 1);
            return Ok(to);
        }
        self.take_nodes(number, 1)?;
        let mut bytes = image.read(block)?;
        let mut is_changed = false;
        for slot in 0..bytes.len() / 4 {
            let below = indirect::entry(&bytes, slot);
            let moved = self.move_tree(image, number, below, depth - 1)?;
            if moved != below {
                indirect::set_entry(&mut bytes, slot, moved);
                is_changed = true;
            }
        }
        if must_move {
            let to = self.low_block(image)?;
            image.changed.remove(&block);
            image.put(BlockNumber(u64::from(to)), bytes);
            return Ok(to);
        }
        if is_changed {
            image.put(block, bytes);
        }
        Ok(pointer)
    }

    /// Allocates a block with a 32-bit number.
    fn low_block(&mut self, image: &mut Image<'_>) -> Result<u32> {
        let run = self.allocate(image, 1)?;
        u32::try_from(run.start).map_err(|_| no_room(self.shape))
    }
}

fn run_of(extent: &Extent) -> Run {
    extent.start.get()..extent.start.get() + u64::from(extent.length)
}

fn used_twice(number: InodeNumber) -> Error {
    Corrupt::new("inode", "uses blocks that others use")
        .in_inode(number)
        .into()
}

/// Whether `i_block` maps blocks.
fn has_map(inode: &Inode) -> bool {
    match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => !inode.has_inline_data(),
        Some(FileType::Symlink) => !inode.has_inline_data() && !inode.is_fast_symlink(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use pext4_block::{Device, RamDevice};
    use pext4_ondisk::InodeNumber;
    use pext4_ondisk::inode::{Inode, InodeFlags};

    use super::super::image::Image;
    use super::super::smallest;
    use super::super::vacate::Vacated;
    use super::Mover;
    use crate::mkfs::{Options, mkfs};

    const NODE: u32 = 2_000_000;

    /// The header of a node of an extent tree.
    fn header(entries: u16, room: u16, depth: u16) -> Vec<u8> {
        let fields = [0xF30A, entries, room, depth, 0, 0];
        fields
            .iter()
            .flat_map(|field: &u16| field.to_le_bytes())
            .collect()
    }

    /// Four nodes of one extent each, to which any number of files may lead without checksums.
    #[test]
    fn nodes_of_maps_are_read_no_more_often_than_there_can_be_nodes() {
        const FILES: usize = 60_000;
        let device = RamDevice::new(4 << 30);
        let options = Options {
            block_size: Some(1024),
            features: ["^has_journal", "^metadata_csum"]
                .map(str::to_owned)
                .to_vec(),
            ..Options::default()
        };
        mkfs(&device, &options).expect("it fits");
        let mut root = header(4, 4, 1);
        for number in 0u32..4 {
            root.extend(number.to_le_bytes());
            root.extend((NODE + number).to_le_bytes());
            root.extend([0; 4]);
            let mut node = header(1, 84, 0);
            node.extend(number.to_le_bytes());
            node.extend([1, 0, 0, 0]);
            node.extend((NODE + 10 + number).to_le_bytes());
            let at = u64::from(NODE + number) * 1024;
            device.write_at(at, &node).expect("it fits");
        }
        let mut inode = Inode::new(256, 32);
        inode.mode = 0o100_644;
        inode.links = 1;
        inode.flags = InodeFlags::EXTENTS;
        inode.block.copy_from_slice(&root);
        let mut image = Image::open(&device).expect("a sound image");
        let shape = smallest::shape(&image, 3_900_000).expect("it can be smaller");
        let vacated = Vacated::between(&image.geometry, &shape.geometry);
        let mut mover = Mover::new(&shape, &vacated);
        mover.move_files(&mut image).expect("there are none");
        let mut moved = 0;
        let told = loop {
            match mover.move_file(&mut image, InodeNumber(12), inode.clone()) {
                Ok(()) => moved += 1,
                Err(error) => break error.to_string(),
            }
            assert!(moved < FILES, "nodes are read again and again");
        };
        assert!(told.contains("others use"), "{told}");
        assert!(moved > 10_000, "{moved}");
    }
}
