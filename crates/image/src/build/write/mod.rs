//! From places to bytes, with all threads.
//!
//! Who has nothing to do takes the next job: a piece of a large file, or a *batch* of inodes that
//! follow each other. A batch's inodes become one stretch of the inode table, its small contents and
//! its directories one stretch of the image, so that each is written by few large calls. No two jobs
//! write the same bytes, and none depends on another, so their order changes nothing.

mod data;
mod directory;
mod inode;

use pext4_ondisk::extent;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_ondisk::xattr;
use pext4_ondisk::{BlockNumber, InodeNumber};
use pext4_sync::atomic::{AtomicUsize, Ordering};

use super::crew::work_together;
use super::error::{Error, Result};
use super::order::Order;
use super::output::Output;
use super::place::{LARGE, Places};
use super::progress::{Progress, Verdict};
use super::shape::Shape;
use super::size::Frame;
use super::sources::Contents;
use super::tree::{INSIDE, Id, Tree};
use crate::mkfs::writer::write_frame;
use data::Reader;

/// Bytes of a stretch that are collected before they are written.
const STRETCH: usize = 1 << 20;

/// Everything that is to be written.
pub(super) struct Image<'a> {
    pub tree: &'a Tree,
    pub order: &'a Order,
    pub shape: &'a Shape,
    pub places: &'a Places,
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
            verdict: Verdict::new(),
        };
        work_together(threads, &|| jobs.work());
        jobs.verdict.finish()?;
        self.write_attributes()?;
        self.write_system_inodes()?;
        for contents in self.contents {
            if let Contents::File(archive) = contents {
                archive.check_unchanged()?;
            }
        }
        let mut superblock = self.frame.superblock.clone();
        superblock.lost_found_inode = InodeNumber(super::order::LOST_FOUND);
        self.write_frame(&superblock)
    }

    fn write_frame(&self, superblock: &Superblock) -> Result<()> {
        let failed = |error: crate::Error| match error {
            crate::Error::Io(cause) => Error::output(self.output.target(), "write", cause),
            other => other.into(),
        };
        write_frame(
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

    /// The blocks of attributes, each with the number of its users.
    fn write_attributes(&self) -> Result<()> {
        let mut bytes = vec![0; self.block_size()];
        for spot in self.places.spots.iter().filter(|spot| spot.block != 0) {
            let block = xattr::Block {
                references: spot.users,
                attributes: self.shape.splits[spot.set as usize].block.clone(),
            };
            block.encode(&mut bytes).expect("it was tried before");
            if let Some(seed) = self.geometry().checksum_seed() {
                xattr::stamp_block(seed, BlockNumber(spot.block), &mut bytes);
            }
            self.write_block(spot.block, &bytes)?;
        }
        Ok(())
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

    /// Where an inode's slot lies in the image.
    fn slot_at(&self, number: InodeNumber) -> u64 {
        let geometry = self.geometry();
        let (group, index) = geometry.inode_group(number).expect("inodes were counted");
        let table = self.frame.layout.descriptors[group.get() as usize].inode_table;
        table.get() * u64::from(geometry.block_size)
            + u64::from(index) * u64::from(geometry.inode_size)
    }
}

/// The jobs of one writing.
struct Jobs<'a> {
    image: &'a Image<'a>,
    next: AtomicUsize,
    verdict: Verdict,
}

impl Jobs<'_> {
    fn work(&self) {
        let places = self.image.places;
        let mut worker = Worker {
            image: self.image,
            reader: Reader::new(self.image),
            table: Stretch::new(),
            data: Stretch::new(),
            inode: inode::Maker::new(self.image),
        };
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let done = match places.pieces.get(number) {
                Some(piece) => worker.reader.copy(piece),
                None => match places.batches.get(number - places.pieces.len()) {
                    Some(batch) => worker.write_batch(batch.start as usize..batch.end as usize),
                    None => return,
                },
            };
            if let Err(error) = done.and_then(|()| self.image.progress.check()) {
                self.verdict.note(error);
            }
            if self.verdict.has_failed() {
                return;
            }
        }
    }
}

/// Bytes that follow each other in the image, not yet written.
struct Stretch {
    bytes: Vec<u8>,
    at: u64,
}

impl Stretch {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(STRETCH),
            at: 0,
        }
    }

    /// Room for zeroes at a place of the image; what cannot follow is written first.
    fn room(&mut self, output: &Output, at: u64, length: usize) -> Result<&mut [u8]> {
        let end = self.bytes.len();
        if at != self.at + end as u64 || end + length > STRETCH {
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

/// What one thread works with.
struct Worker<'a> {
    image: &'a Image<'a>,
    reader: Reader<'a>,
    table: Stretch,
    data: Stretch,
    inode: inode::Maker<'a>,
}

impl Worker<'_> {
    fn write_batch(&mut self, batch: std::ops::Range<usize>) -> Result<()> {
        let image = self.image;
        let files = batch.len() as u64;
        let mut bytes = 0;
        for place in batch {
            let id = image.order.inodes[place];
            let number = InodeNumber(image.order.inode(place));
            let inside = self.inside(id)?;
            bytes += match &inside {
                Some(content) if image.tree.node(id).is_regular() => content.len() as u64,
                Some(_) => 0,
                None => self.write_content(id)?,
            };
            self.write_nodes(id, number)?;
            let slot = usize::from(image.geometry().inode_size);
            let slot = self.table.room(image.output, image.slot_at(number), slot)?;
            self.inode.make(id, number, inside.as_deref(), slot)?;
        }
        self.table.flush(image.output)?;
        self.data.flush(image.output)?;
        image.progress.add(files, bytes);
        Ok(())
    }

    /// What lies in the inode of a file or a directory.
    fn inside(&mut self, id: Id) -> Result<Option<Vec<u8>>> {
        let image = self.image;
        let node = image.tree.node(id);
        if node.is_regular() && node.place == INSIDE {
            return self.reader.read_inside(id).map(Some);
        }
        let is_inside = node.is_directory() && image.shape.directory(image.tree, id).blocks == 0;
        let set = image.places.spots[node.attributes as usize].set;
        let room = image.shape.splits[set as usize].room;
        Ok(is_inside.then(|| directory::inside(image, id, room)))
    }

    /// Writes what a file holds, if that is not done by pieces; how much it was.
    fn write_content(&mut self, id: Id) -> Result<u64> {
        let image = self.image;
        let node = image.tree.node(id);
        match node.mode & 0o170_000 {
            0o040_000 => directory::write(image, id, &mut self.data).map(|()| 0),
            0o120_000 if node.size >= pext4_ondisk::inode::BLOCK_AREA as u64 => {
                let block_size = image.block_size();
                let at = node.place * block_size as u64;
                let target = image.tree.target(id);
                self.data.room(image.output, at, block_size)?[..target.len()]
                    .copy_from_slice(target);
                Ok(0)
            }
            0o100_000 if node.size > 0 => {
                let bytes = image.shape.content_blocks(image.tree, id) * image.shape.block_size;
                if bytes >= LARGE {
                    return Ok(0);
                }
                self.reader.read_small(id, &mut self.data)?;
                Ok(node.size.min(bytes))
            }
            _ => Ok(0),
        }
    }

    /// Writes the nodes of an extent tree that does not fit into the inode.
    fn write_nodes(&mut self, id: Id, number: InodeNumber) -> Result<()> {
        let image = self.image;
        let Some(map) = image
            .places
            .maps
            .get(&id)
            .filter(|map| !map.nodes.is_empty())
        else {
            return Ok(());
        };
        let mut built = build_tree(map, image.block_size());
        if let Some(seed) = image.geometry().checksum_seed() {
            built.stamp(seed, number, 0);
        }
        for (block, bytes) in &built.nodes {
            image.write_block(block.get(), bytes)?;
        }
        Ok(())
    }
}

/// The extent tree of a map.
fn build_tree(map: &super::place::Map, block_size: usize) -> extent::Built {
    let mut nodes = map.nodes.iter();
    extent::build(&map.extents, block_size, || {
        nodes.next().copied().map(BlockNumber)
    })
    .expect("as many nodes were placed as are needed, and no file needs a deeper tree")
}
