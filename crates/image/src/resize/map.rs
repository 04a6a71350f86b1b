//! Reads the block map of an inode and checks each node.
//!
//! An extent node is visited at most once, since it must begin where its parent says; the walk of
//! an indirect map is bounded by the number of blocks in the file system.

use pext4_ondisk::extent::{self, Extent, Node};
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, LogicalBlock, indirect};

use super::image::Image;
use crate::error::{Error, Result};

/// The extents of an inode, and its tree nodes.
#[derive(Default)]
pub(super) struct Extents {
    pub extents: Vec<Extent>,
    pub nodes: Vec<BlockNumber>,
}

/// Reads an extent tree.
pub(super) fn extents(image: &Image<'_>, number: InodeNumber, inode: &Inode) -> Result<Extents> {
    let mut found = Extents::default();
    let mut reader = ExtentReader {
        image,
        number,
        generation: inode.generation,
        found: &mut found,
        blocks: 0,
    };
    let root = Node::parse(&inode.block).map_err(|corrupt| corrupt.in_inode(number))?;
    reader.read_node(&root, None)?;
    Ok(found)
}

struct ExtentReader<'a, 'd> {
    image: &'a Image<'d>,
    number: InodeNumber,
    generation: u32,
    found: &'a mut Extents,
    /// Number of blocks that the extents so far map.
    blocks: u64,
}

impl ExtentReader<'_, '_> {
    fn read_node(&mut self, node: &Node<'_>, block: Option<BlockNumber>) -> Result<()> {
        let bounds = self.image.bounds();
        node.check_entries(&bounds)
            .map_err(|corrupt| self.with_location(corrupt, block))?;
        for slot in 0..node.len() {
            if node.depth() == 0 {
                let extent = node
                    .extent(slot, &bounds)
                    .map_err(|corrupt| self.with_location(corrupt, block))?;
                self.push(extent)?;
            } else {
                let index = node
                    .index(slot, &bounds)
                    .map_err(|corrupt| self.with_location(corrupt, block))?;
                self.read_child(node.depth(), index)?;
            }
        }
        Ok(())
    }

    fn read_child(&mut self, depth: u16, index: extent::Index) -> Result<()> {
        let block = Some(index.child);
        let bytes = self.image.read(index.child)?;
        if let Some(seed) = self.image.geometry.checksum_seed() {
            extent::verify_node(seed, self.number, self.generation, &bytes)
                .map_err(|corrupt| self.with_location(corrupt, block))?;
        }
        let node = Node::parse(&bytes).map_err(|corrupt| self.with_location(corrupt, block))?;
        if node.is_empty() || node.depth() + 1 != depth || node.logical(0) != index.logical {
            let corrupt = Corrupt::new("extent node", "does not fit its parent");
            return Err(self.with_location(corrupt, block));
        }
        self.found.nodes.push(index.child);
        self.read_node(&node, block)
    }

    fn push(&mut self, extent: Extent) -> Result<()> {
        let end = self.found.extents.last().map_or(0, Extent::end);
        if u64::from(extent.logical.get()) < end {
            let problem = format!("extent {extent} overlaps the one before");
            return Err(self.with_location(Corrupt::new("extent node", problem), None));
        }
        self.blocks += u64::from(extent.length);
        if self.blocks > self.image.geometry.blocks_count {
            let problem = "maps more blocks than the file system has";
            return Err(self.with_location(Corrupt::new("extent tree", problem), None));
        }
        self.found.extents.push(extent);
        Ok(())
    }

    fn with_location(&self, corrupt: Corrupt, block: Option<BlockNumber>) -> Error {
        let corrupt = corrupt.in_inode(self.number);
        block
            .map_or(corrupt.clone(), |block| corrupt.in_block(block))
            .into()
    }
}

/// The blocks of an indirect map, in logical order.
pub(super) fn indirect_blocks(
    image: &Image<'_>,
    number: InodeNumber,
    inode: &Inode,
) -> Result<Vec<(LogicalBlock, BlockNumber)>> {
    let size = image.geometry.block_size;
    let mut reader = IndirectReader {
        image,
        number,
        left: image.geometry.blocks_count,
        found: Vec::new(),
    };
    let fan_out = u64::from(indirect::pointers_per_block(size));
    let mut logical = 0;
    for slot in 0..indirect::DIRECT + indirect::MAX_DEPTH {
        let depth = (slot + 1).saturating_sub(indirect::DIRECT);
        let pointer = indirect::entry(&inode.block, slot);
        reader.read_tree(pointer, depth, logical)?;
        logical += fan_out.pow(u32::try_from(depth).expect("at most 3"));
    }
    Ok(reader.found)
}

struct IndirectReader<'a, 'd> {
    image: &'a Image<'d>,
    number: InodeNumber,
    /// How many more blocks may be visited.
    left: u64,
    found: Vec<(LogicalBlock, BlockNumber)>,
}

impl IndirectReader<'_, '_> {
    fn read_tree(&mut self, pointer: u32, depth: usize, logical: u64) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let block = BlockNumber(u64::from(pointer));
        check_pointer(self.image, self.number, block, &mut self.left)?;
        if depth == 0 {
            let logical = u32::try_from(logical).map_err(|_| {
                Error::from(Corrupt::new("block map", "is too long").in_inode(self.number))
            })?;
            self.found.push((LogicalBlock(logical), block));
            return Ok(());
        }
        let bytes = self.image.read(block)?;
        let fan_out = bytes.len() / 4;
        let reach = (fan_out as u64).pow(u32::try_from(depth - 1).expect("at most 2"));
        for slot in 0..fan_out {
            let pointer = indirect::entry(&bytes, slot);
            self.read_tree(pointer, depth - 1, logical + slot as u64 * reach)?;
        }
        Ok(())
    }
}

/// Fails if a pointer is outside the file system, or if the map contains more blocks than the file
/// system.
pub(super) fn check_pointer(
    image: &Image<'_>,
    number: InodeNumber,
    block: BlockNumber,
    left: &mut u64,
) -> Result<()> {
    let problem = if !image.geometry.contains(block, 1) {
        "points outside the file system"
    } else if *left == 0 {
        "has more blocks than the file system"
    } else {
        *left -= 1;
        return Ok(());
    };
    let corrupt = Corrupt::new("block map", problem);
    Err(corrupt.in_inode(number).in_block(block).into())
}
