//! Reads the block map of an inode and checks each node.
//!
//! An extent node is visited at most once, since it must begin where its parent says; the walk of
//! an indirect map is bounded by what its caller allows, and keeps nothing that it has passed.

use pext4_ondisk::checksum::InodeSeed;
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
            extent::verify_node(InodeSeed::new(seed, self.number, self.generation), &bytes)
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

/// A walk over the blocks of an indirect map, in logical order. It keeps one block of pointers for
/// each level, so that a map whose pointers lead to the same blocks again and again takes no memory
/// for each of them.
pub(super) struct IndirectWalk {
    number: InodeNumber,
    /// The blocks of pointers on the way to the next block; the inode's own come first.
    levels: Vec<Level>,
}

/// A block of pointers, or the pointers in the inode.
struct Level {
    bytes: Vec<u8>,
    /// The next pointer.
    slot: usize,
    /// The number of levels of pointers below this block; of the inode the pointers differ in it.
    depth: usize,
    /// The logical block to which the next pointer leads.
    logical: u64,
}

impl IndirectWalk {
    pub fn new(number: InodeNumber, inode: &Inode) -> Self {
        let root = Level {
            bytes: inode.block.to_vec(),
            slot: 0,
            depth: 0,
            logical: 0,
        };
        Self {
            number,
            levels: vec![root],
        }
    }

    /// The next block, and its logical number; `None` at the end. Each block that is visited, those
    /// of pointers included, is taken from `left`.
    pub fn next(
        &mut self,
        image: &Image<'_>,
        left: &mut u64,
    ) -> Result<Option<(LogicalBlock, BlockNumber)>> {
        loop {
            let is_inode = self.levels.len() == 1;
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            if level.slot == level.bytes.len() / 4 {
                self.levels.pop();
                continue;
            }
            if is_inode {
                level.depth = (level.slot + 1).saturating_sub(indirect::DIRECT);
            }
            let (depth, logical) = (level.depth, level.logical);
            let pointer = indirect::entry(&level.bytes, level.slot);
            let fan_out = u64::from(indirect::pointers_per_block(image.geometry.block_size));
            level.slot += 1;
            level.logical += fan_out.pow(u32::try_from(depth).expect("at most 3"));
            if pointer == 0 {
                continue;
            }
            let block = BlockNumber(u64::from(pointer));
            check_pointer(image, self.number, block, left)?;
            if depth == 0 {
                return Ok(Some((self.checked_logical(logical)?, block)));
            }
            self.levels.push(Level {
                bytes: image.read(block)?,
                slot: 0,
                depth: depth - 1,
                logical,
            });
        }
    }

    fn checked_logical(&self, logical: u64) -> Result<LogicalBlock> {
        let logical = u32::try_from(logical).map_err(|_| {
            Error::from(Corrupt::new("block map", "is too long").in_inode(self.number))
        })?;
        Ok(LogicalBlock(logical))
    }
}

/// Fails if a pointer is outside the file system, or if none is left of the blocks that the caller
/// allows: never more than those of the file system.
pub(super) fn check_pointer(
    image: &Image<'_>,
    number: InodeNumber,
    block: BlockNumber,
    left: &mut u64,
) -> Result<()> {
    let problem = if !image.geometry.contains(block, 1) {
        "points outside the file system"
    } else if *left == 0 {
        "leads to more blocks than there can be"
    } else {
        *left -= 1;
        return Ok(());
    };
    let corrupt = Corrupt::new("block map", problem);
    Err(corrupt.in_inode(number).in_block(block).into())
}

#[cfg(test)]
mod tests {
    use pext4_block::RamDevice;
    use pext4_ondisk::indirect::{DIRECT, set_entry};
    use pext4_ondisk::inode::Inode;
    use pext4_ondisk::{BlockNumber, InodeNumber};

    use super::super::image::Image;
    use super::super::journal::runs;
    use super::IndirectWalk;
    use crate::mkfs::{FileSystem, Options, mkfs};

    fn device(file_system: FileSystem) -> RamDevice {
        let device = RamDevice::new(16 << 20);
        let options = Options {
            file_system,
            block_size: Some(1024),
            ..Options::default()
        };
        mkfs(&device, &options).expect("an image");
        device
    }

    /// Three levels of pointers in three blocks: sixteen million blocks, all of them one.
    #[test]
    fn a_walk_keeps_a_block_for_each_level() {
        const LEVELS: [u32; 4] = [9000, 9001, 9002, 9003];
        let device = device(FileSystem::Ext2);
        let mut image = Image::open(&device).expect("a sound image");
        for pair in LEVELS.windows(2) {
            let pointers = pair[1].to_le_bytes().repeat(256);
            image.put(BlockNumber(u64::from(pair[0])), pointers);
        }
        let mut inode = Inode::new(256, 32);
        set_entry(&mut inode.block, DIRECT + 2, LEVELS[0]);
        let mut walk = IndirectWalk::new(InodeNumber(12), &inode);
        let mut left = 100_000;
        let mut next = 12 + 256 + 256 * 256;
        let error = loop {
            match walk.next(&image, &mut left) {
                Ok(Some((logical, block))) => {
                    assert_eq!((logical.get(), block.get()), (next, 9003));
                    assert!(walk.levels.len() <= 4);
                    next += 1;
                }
                Ok(None) => panic!("it ends after {next} blocks"),
                Err(error) => break error.to_string(),
            }
        };
        assert_eq!(left, 0, "each block that is visited counts");
        assert!(error.contains("more blocks than there can be"), "{error}");
        let data = u64::from(next - (12 + 256 + 256 * 256));
        assert!(data > 100_000 * 255 / 257 && data < 100_000, "{data}");
    }

    #[test]
    fn a_journal_of_pointers_has_a_limit() {
        let device = device(FileSystem::Ext3);
        let image = Image::open(&device).expect("a sound image");
        let journal = image.superblock.journal_inode;
        let blocks = |limit| runs(&image, journal, limit);
        let all = blocks(u64::from(u32::MAX)).expect("a sound journal");
        let count = all
            .iter()
            .map(|&(_, length)| u64::from(length))
            .sum::<u64>();
        assert!(count >= 1024, "{count}");
        assert!(all.len() < 8, "runs are joined: {all:?}");
        assert_eq!(blocks(count).expect("as many as may be"), all);
        for limit in [count - 1, 100] {
            let error = blocks(limit).expect_err("too many").to_string();
            assert!(
                error.contains(&format!("more than {limit} blocks")),
                "{error}"
            );
        }
    }
}
