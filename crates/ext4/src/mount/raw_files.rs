//! The file system's own files, read before any layer exists: no inode table, no journal.

use std::collections::HashSet;
use std::ops::ControlFlow;

use pext4_ondisk::extent::{self, Bounds};
use pext4_ondisk::inode::Inode as Slot;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, LogicalBlock, indirect};

use crate::error::{Error, Refusal, Result};
use crate::groups::open::read_descriptor;
use crate::inode::extents::{self, Extent, NodeStore};
use crate::store::Store;
use crate::types::FileType;

/// The slot of an inode, read without the inode table in memory.
pub(super) fn raw_slot(store: &Store, inode: InodeNumber) -> Result<Slot> {
    let geometry = &store.geometry;
    let absent =
        || Corrupt::new("superblock", "names an inode that does not exist").in_inode(inode);
    let (group, index) = geometry.inode_group(inode).ok_or_else(absent)?;
    let descriptor = read_descriptor(store, group)?;
    let (block, offset) = geometry
        .inode_slot(descriptor.inode_table, index)
        .ok_or_else(absent)?;
    let buffer = store.read_block(block)?;
    let state = buffer.read();
    let start = offset as usize;
    let bytes = &state.page()[start..start + usize::from(geometry.inode_size)];
    Ok(store
        .decode_slot(bytes, inode)
        .map_err(|corrupt| corrupt.in_inode(inode).in_block(block))?)
}

/// The blocks of one of the file system's own files, which must have no holes.
pub(super) fn file_blocks(
    store: &Store,
    inode: InodeNumber,
    slot: &Slot,
    what: &'static str,
) -> Result<Vec<Extent>> {
    let corrupt = |problem: &'static str| Error::from(Corrupt::new(what, problem).in_inode(inode));
    if slot.file_type() != Some(FileType::Regular) || slot.links == 0 {
        return Err(corrupt("is no regular file"));
    }
    let count = slot.size / u64::from(store.block_size());
    // Without holes it cannot have more blocks than the file system.
    let count = u32::try_from(count)
        .ok()
        .filter(|&count| u64::from(count) <= store.geometry.blocks_count);
    let count = count.ok_or_else(|| corrupt("is absurdly large"))?;
    let runs = if slot.has_extents() {
        extents_of(store, inode, slot, count)?
    } else {
        mapped_blocks(store, slot, count).map_err(|error| error.in_inode(inode))?
    };
    let mut next = 0;
    for run in &runs {
        if u64::from(run.logical.get()) != next || run.unwritten {
            return Err(corrupt("has a hole"));
        }
        next = run.end();
    }
    if next < u64::from(count) || count == 0 {
        return Err(corrupt("has a hole at its end"));
    }
    Ok(runs)
}

fn extents_of(store: &Store, inode: InodeNumber, slot: &Slot, count: u32) -> Result<Vec<Extent>> {
    let nodes = RawNodes {
        store,
        inode,
        generation: slot.generation,
    };
    let mut runs = Vec::new();
    extents::walk(&slot.block, &nodes, 0..u64::from(count), &mut |extent| {
        runs.push(extent);
        ControlFlow::Continue(())
    })
    .map_err(|error| error.in_inode(inode))?;
    Ok(runs)
}

fn mapped_blocks(store: &Store, slot: &Slot, count: u32) -> Result<Vec<Extent>> {
    let mut runs: Vec<Extent> = Vec::new();
    // The starts of runs: detects a block of pointers that is reached again and again without end.
    let mut begun = HashSet::new();
    for logical in (0..count).map(LogicalBlock) {
        let read = |block: BlockNumber, index: usize| -> Result<u32> {
            let buffer = store.read_block(block)?;
            Ok(indirect::entry(buffer.read().page(), index))
        };
        let Some(start) = indirect::lookup(&slot.block, store.block_size(), logical, read)? else {
            // A hole, which the caller refuses.
            break;
        };
        let bad = |problem| Corrupt::new("block map", problem).in_block(start);
        if !store.contains(start, 1) {
            return Err(bad("leads outside the file system").into());
        }
        match runs.last_mut() {
            Some(last) if continues(last, logical, start) => last.length += 1,
            _ if !begun.insert(start) => return Err(bad("leads to a block twice").into()),
            _ => runs.push(Extent {
                logical,
                start,
                length: 1,
                unwritten: false,
            }),
        }
    }
    Ok(runs)
}

fn continues(run: &Extent, logical: LogicalBlock, start: BlockNumber) -> bool {
    run.end() == u64::from(logical.get()) && run.start.checked_add(run.length) == Some(start)
}

/// Read-only access to tree nodes before there is a journal.
struct RawNodes<'a> {
    store: &'a Store,
    inode: InodeNumber,
    generation: u32,
}

impl NodeStore for RawNodes<'_> {
    fn bounds(&self) -> Bounds {
        self.store.bounds()
    }

    fn block_size(&self) -> usize {
        self.store.block_size() as usize
    }

    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let buffer = self.store.read_block(block)?;
        let page = buffer.page();
        let geometry = &self.store.geometry;
        if let Some(seed) = geometry.inode_seed(self.inode, self.generation) {
            extent::verify_node(seed, &page).map_err(|corrupt| corrupt.in_block(block))?;
        }
        extents::check_node(&page, depth, &self.bounds())
            .map_err(|corrupt| corrupt.in_block(block))?;
        look(&page)
    }

    fn edit<R>(&mut self, _block: BlockNumber, _change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Err(Refusal::ReadOnly.into())
    }

    fn reserve(&mut self, _nodes: u32) -> Result<()> {
        Err(Refusal::ReadOnly.into())
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        Err(Refusal::ReadOnly.into())
    }

    fn free(&mut self, _block: BlockNumber) -> Result<()> {
        Err(Refusal::ReadOnly.into())
    }
}

/// Refuses an image whose root is not a directory. Called before anything but the replay is
/// written.
pub(super) fn check_root(store: &Store) -> Result<()> {
    let root = raw_slot(store, InodeNumber::ROOT)?;
    let problem = match (root.file_type(), root.links) {
        (Some(FileType::Directory), 0) => "has no links",
        (Some(FileType::Directory), _) => return Ok(()),
        _ => "is no directory",
    };
    let corrupt = Corrupt::new("root directory", problem);
    Err(corrupt.in_inode(InodeNumber::ROOT).into())
}
