//! Writes the image, with several threads.
//!
//! An idle thread takes the next job: a piece of a large file, or a *batch* of consecutive inodes.
//! The inodes of a batch are contiguous in the inode table, and its small contents and directories
//! are mostly contiguous in the image, so each is written with few large calls. No two jobs write
//! the same bytes and no job depends on another, so their order does not affect the image.

mod data;
mod directory;
mod inode;

use pext4_block::Progress;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::extent;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::xattr;
use pext4_ondisk::{BlockNumber, InodeNumber};
use pext4_sync::atomic::{AtomicUsize, Ordering};

use super::attributes::{SplitSet, split};
use super::error::{Error, Result};
use super::first_error::FirstError;
use super::order::Order;
use super::output::Output;
use super::place::{LARGE, Placement};
use super::shape::Shape;
use super::size::Frame;
use super::sources::Contents;
use super::threads::run_on_threads;
use super::tree::{INLINE, Id, Tree};
use crate::mkfs::contents::extra_size;
use crate::mkfs::writer::write_metadata;
use data::ContentReader;

/// Size of a write buffer in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Everything that is written.
pub(super) struct Image<'a> {
    pub tree: &'a Tree,
    pub order: &'a Order,
    pub shape: &'a Shape,
    pub placement: &'a Placement,
    pub frame: &'a Frame,
    pub contents: &'a [Contents],
    pub output: &'a Output,
    pub progress: &'a Progress,
}

impl Image<'_> {
    fn geometry(&self) -> &Geometry {
        &self.frame.geometry
    }

    fn block_size(&self) -> usize {
        self.geometry().block_size as usize
    }

    /// Writes all of it.
    pub fn write(&self, threads: usize) -> Result<()> {
        let jobs = Jobs {
            image: self,
            next: AtomicUsize::new(0),
            first_error: FirstError::new(),
        };
        run_on_threads(threads, &|| jobs.work());
        jobs.first_error.finish()?;
        self.write_attributes()?;
        self.write_system_inodes()?;
        for contents in self.contents {
            if let Contents::File(archive) = contents {
                archive.check_unchanged()?;
            }
        }
        let mut superblock = self.frame.superblock.clone();
        superblock.lost_found_inode = InodeNumber(super::order::LOST_FOUND);
        self.write_metadata(&superblock)
    }

    fn write_metadata(&self, superblock: &Superblock) -> Result<()> {
        let failed = |error: crate::Error| match error {
            crate::Error::Io(cause) => Error::output(self.output.target(), "write", cause),
            other => Error::layout(self.output.target(), other),
        };
        write_metadata(
            self.output,
            &self.frame.layout,
            superblock,
            &self.frame.files,
        )
        .map_err(failed)?;
        self.output.write(superblock::OFFSET, &superblock.encode())
    }

    fn write_block(&self, block: u64, bytes: &[u8]) -> Result<()> {
        self.output.write(block * self.block_size() as u64, bytes)
    }

    /// Writes the attribute blocks, each with the number of inodes that share it.
    fn write_attributes(&self) -> Result<()> {
        let mut bytes = vec![0; self.block_size()];
        for placed in self
            .placement
            .attributes
            .iter()
            .filter(|placed| placed.block != 0)
        {
            let block = xattr::Block {
                references: placed.users,
                attributes: self.split_set(placed.set).block,
            };
            block.encode(&mut bytes).expect("it was tried before");
            if let Some(seed) = self.geometry().checksum_seed() {
                xattr::stamp_block(seed, BlockNumber(placed.block), &mut bytes);
            }
            self.write_block(placed.block, &bytes)?;
        }
        Ok(())
    }

    /// The attributes of a set in the inode and in the block.
    fn split_set(&self, set: u32) -> SplitSet {
        let geometry = self.geometry();
        let blank = Inode::new(geometry.inode_size, extra_size(geometry.inode_size));
        let split = split(
            &self.tree.sets.get(set),
            blank.tail.len(),
            self.block_size(),
        );
        split.expect("the shape has tried it")
    }

    fn write_system_inodes(&self) -> Result<()> {
        let geometry = self.geometry();
        let mut slot = vec![0; usize::from(geometry.inode_size)];
        for (number, inode) in &self.frame.files.inodes {
            inode.encode(&mut slot, *number, geometry.checksum_seed());
            self.output.write(self.slot_at(*number), &slot)?;
        }
        Ok(())
    }

    /// The byte offset of an inode in the image.
    fn slot_at(&self, number: InodeNumber) -> u64 {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_group(number).expect("inodes were counted");
        let table = self.frame.layout.descriptors[group.get() as usize].inode_table;
        table.get() * u64::from(geometry.block_size)
            + u64::from(index) * u64::from(geometry.inode_size)
    }
}

/// The shared state of the writing threads.
struct Jobs<'a> {
    image: &'a Image<'a>,
    next: AtomicUsize,
    first_error: FirstError,
}

impl Jobs<'_> {
    fn work(&self) {
        let placement = self.image.placement;
        let mut worker = Worker {
            image: self.image,
            reader: ContentReader::new(self.image),
            table: WriteBuffer::new(),
            data: WriteBuffer::new(),
            inode: inode::InodeEncoder::new(self.image),
        };
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let done = match placement.pieces.get(number) {
                Some(piece) => worker.reader.copy(piece),
                None => match placement.batches.get(number - placement.pieces.len()) {
                    Some(batch) => worker.write_batch(batch.start as usize..batch.end as usize),
                    None => return,
                },
            };
            if let Err(error) = done.and_then(|()| Ok(self.image.progress.check()?)) {
                self.first_error.record(error);
            }
            if self.first_error.has_failed() {
                return;
            }
        }
    }
}

/// Contiguous bytes of the image that are not written yet.
struct WriteBuffer {
    bytes: Vec<u8>,
    at: u64,
}

impl WriteBuffer {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(BUFFER_BYTES),
            at: 0,
        }
    }

    /// Returns `length` zeroed bytes of the buffer for the offset `at` of the image. Writes the
    /// buffer first if they do not follow its end or do not fit.
    fn room(&mut self, output: &Output, at: u64, length: usize) -> Result<&mut [u8]> {
        let end = self.bytes.len();
        if at != self.at + end as u64 || end + length > BUFFER_BYTES {
            self.flush(output)?;
            self.at = at;
        }
        let start = self.bytes.len();
        self.bytes.resize(start + length, 0);
        Ok(&mut self.bytes[start..])
    }

    fn flush(&mut self, output: &Output) -> Result<()> {
        if !self.bytes.is_empty() {
            output.write(self.at, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// The state of one thread.
struct Worker<'a> {
    image: &'a Image<'a>,
    reader: ContentReader<'a>,
    table: WriteBuffer,
    data: WriteBuffer,
    inode: inode::InodeEncoder<'a>,
}

impl Worker<'_> {
    fn write_batch(&mut self, batch: std::ops::Range<usize>) -> Result<()> {
        let image = self.image;
        let files = batch.len() as u64;
        let mut bytes = 0;
        for place in batch {
            let id = image.order.inodes[place];
            let number = InodeNumber(image.order.inode(place));
            let inline = self.inline_content(id)?;
            bytes += match &inline {
                Some(content) if image.tree.node(id).is_regular() => content.len() as u64,
                Some(_) => 0,
                None => self.write_content(id)?,
            };
            self.write_nodes(id, number)?;
            let slot = usize::from(image.geometry().inode_size);
            let slot = self.table.room(image.output, image.slot_at(number), slot)?;
            self.inode.encode(id, number, inline.as_deref(), slot)?;
        }
        self.table.flush(image.output)?;
        self.data.flush(image.output)?;
        image.progress.add(files, bytes);
        Ok(())
    }

    /// The content of a file or directory that is stored in its inode.
    fn inline_content(&mut self, id: Id) -> Result<Option<Vec<u8>>> {
        let image = self.image;
        let node = image.tree.node(id);
        if node.is_regular() && node.first_block == INLINE {
            return self.reader.read_inline(id).map(Some);
        }
        let is_inline = node.is_directory() && image.shape.directory(image.tree, id).blocks == 0;
        let set = image.placement.attributes[node.attributes as usize].set;
        let room = image.shape.sets[set as usize].room as usize;
        Ok(is_inline.then(|| directory::inline_content(image, id, room)))
    }

    /// Writes the content of a file, unless it is copied in pieces. Returns the number of bytes.
    fn write_content(&mut self, id: Id) -> Result<u64> {
        let image = self.image;
        let node = image.tree.node(id);
        match node.file_type() {
            FileType::Directory => directory::write(image, id, &mut self.data).map(|()| 0),
            FileType::Symlink if node.size >= pext4_ondisk::inode::BLOCK_AREA as u64 => {
                let block_size = image.block_size();
                let at = node.first_block * block_size as u64;
                let target = image.tree.target(id);
                self.data.room(image.output, at, block_size)?[..target.len()]
                    .copy_from_slice(target);
                Ok(0)
            }
            FileType::Regular if node.size > 0 => {
                let bytes = image.shape.content_blocks(image.tree, id) * image.shape.block_size;
                if bytes >= LARGE {
                    return Ok(0);
                }
                self.reader.read_small(id, &mut self.data)?;
                Ok(image.tree.data_bytes(id))
            }
            _ => Ok(0),
        }
    }

    /// Writes the nodes of an extent tree that does not fit into the inode.
    fn write_nodes(&mut self, id: Id, number: InodeNumber) -> Result<()> {
        let image = self.image;
        let Some(map) = image
            .placement
            .maps
            .get(&id)
            .filter(|map| !map.nodes.is_empty())
        else {
            return Ok(());
        };
        let mut built = build_tree(map, image.block_size());
        if let Some(seed) = image.geometry().checksum_seed() {
            built.stamp(InodeSeed::new(seed, number, 0));
        }
        for (block, bytes) in &built.nodes {
            image.write_block(block.get(), bytes)?;
        }
        Ok(())
    }
}

/// The extent tree of a block map.
fn build_tree(map: &super::place::BlockMap, block_size: usize) -> extent::Built {
    let mut nodes = map.nodes.iter();
    extent::build(&map.extents, block_size, || {
        nodes.next().copied().map(BlockNumber)
    })
    .expect("as many nodes were placed as are needed, and no file needs a deeper tree")
}
