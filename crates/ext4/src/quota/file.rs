//! One quota file: the places of its entries, and new entries.
//!
//! A new entry goes into the first leaf of the file's list of leaves with empty places, or into a
//! new one; the nodes that lead to it are made where they are missing. New blocks are appended to
//! the file. Everything that can fail comes before the first change: the blocks that change are
//! read, and those that the file needs besides are mapped.

use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Buffer, Stamp};
use pext4_jbd2::Handle;
use pext4_ondisk::quota::{self, BLOCK_SIZE, DEPTH, ENTRIES, Header, LeafHeader, OwnerKind, ROOT};
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};
use pext4_sync::hash::NumberMap;
use pext4_sync::{Class, Mutex};

use super::tree::{Tree, corrupt};
use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::inode::data::MAP_CREDITS;
use crate::inode::extents::{Extent, Mapping};
use crate::inode::filling::Filling;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach};
use crate::store::Store;

/// Metadata blocks that a new entry may dirty: those of two runs of new blocks, the header, nodes,
/// two leaves, and the inode.
const CREDITS: u32 = 2 * MAP_CREDITS + DEPTH + 8;

/// What an error that stops the store says was being done.
const HALF_CHANGED: &str = "a quota file was left half changed";

/// A place in a block of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The block.
    pub(crate) block: BlockNumber,
    /// The offset in that block in bytes.
    pub(crate) offset: u32,
}

impl Place {
    pub(super) fn behind(self, bytes: usize) -> Self {
        let offset = self
            .offset
            .saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        Self { offset, ..self }
    }
}

/// A quota file.
pub(crate) struct File {
    number: InodeNumber,
    tree: Mutex<Tree>,
    /// Of the entries, by owner.
    places: Mutex<NumberMap<u32, Place>>,
}

impl File {
    /// Reads the quota file in inode `number`, which has `size` bytes in these runs of blocks.
    pub(crate) fn open(
        groups: &Groups,
        (kind, number): (OwnerKind, InodeNumber),
        size: u64,
        runs: &[Extent],
    ) -> Result<Self> {
        let run_is_bad = |run: &&Extent| {
            let start = run.start.get();
            groups.is_metadata(start..start.saturating_add(run.length.into()))
        };
        if let Some(run) = runs.iter().find(run_is_bad) {
            let corrupt = corrupt("leads to the file system's own structures");
            return Err(corrupt.in_block(run.start).in_inode(number).into());
        }
        let store = &groups.store;
        let read = |block: u32| -> Result<([u8; BLOCK_SIZE], Place)> {
            let (logical, within) = home_of(block, store.block_size());
            let place = Place {
                block: block_of(runs, logical)?,
                offset: within,
            };
            let buffer = store.read_block(place.block)?;
            let state = buffer.read();
            let bytes = state.page().get(bytes_at(within)).unwrap_or_default();
            let bytes = bytes.try_into().map_err(|_| corrupt("is cut short"))?;
            Ok((bytes, place))
        };
        let opened = || -> Result<Self> {
            let (header, _) = read(0)?;
            let header = Header::decode(&header, kind, size)?;
            let (tree, places) = Tree::read(header, &read)?;
            Ok(Self {
                number,
                tree: Mutex::new(Class::QuotaFile, tree),
                places: Mutex::new(Class::Leaf, places),
            })
        };
        opened().map_err(|error| error.in_inode(number))
    }

    pub(super) fn number(&self) -> InodeNumber {
        self.number
    }

    /// Where all entries are.
    pub(super) fn places(&self) -> Vec<Place> {
        self.places.lock().values().copied().collect()
    }

    /// Where the entry of an owner is.
    pub(super) fn place(&self, id: u32) -> Option<Place> {
        self.places.lock().get(&id).copied()
    }

    /// Gives an owner an entry without usage, if it has none.
    pub(super) fn give_entry(&self, inodes: &Inodes, id: u32) -> Result<()> {
        let mut tree = self.tree.lock();
        if self.place(id).is_some() {
            return Ok(());
        }
        let inode = Arc::clone(&*inodes.get(self.number)?);
        let given = self.give_entry_in(&mut tree, inodes, &inode, id);
        inodes.drop_preallocation(&inode);
        let place = given.map_err(|error| error.in_inode(self.number))?;
        self.places.lock().insert(id, place);
        Ok(())
    }

    fn give_entry_in(
        &self,
        tree: &mut Tree,
        inodes: &Inodes,
        inode: &Arc<Inode>,
        id: u32,
    ) -> Result<Place> {
        let blocks = Blocks::new(inodes, inode);
        let way = Way::to(tree, &blocks, id)?;
        let mut handle = inodes.store.start(CREDITS)?;
        let first = tree.header.blocks;
        let added = blocks.append(&mut handle, first, way.new_blocks())?;
        let place = way.build(tree, &mut handle, &added, id);
        place.ok_or_else(|| {
            let error = corrupt("has blocks in two places of the file").into();
            inodes.store.stop_half_done(HALF_CHANGED, &error);
            error
        })
    }
}

/// The block of a file of this block size in which a quota block is, and its offset there.
fn home_of(number: u32, block_size: u32) -> (LogicalBlock, u32) {
    let per_block = (block_size / BLOCK_SIZE as u32).max(1);
    let within = number % per_block * BLOCK_SIZE as u32;
    (LogicalBlock(number / per_block), within)
}

fn bytes_at(offset: u32) -> Range<usize> {
    let start = offset as usize;
    start..start + BLOCK_SIZE
}

fn block_of(runs: &[Extent], logical: LogicalBlock) -> Result<BlockNumber> {
    let behind = runs.partition_point(|run| run.logical <= logical);
    let block = behind.checked_sub(1).and_then(|index| {
        let run = runs[index];
        let offset = logical.get() - run.logical.get();
        (offset < run.length).then(|| run.start.checked_add(offset))?
    });
    Ok(block.ok_or_else(|| corrupt("has no such block"))?)
}

/// A quota block: a part of a block in memory.
#[derive(Clone)]
struct Part {
    buffer: Arc<Buffer>,
    offset: u32,
}

impl Part {
    fn place(&self) -> Place {
        Place {
            block: self.buffer.block(),
            offset: self.offset,
        }
    }

    fn look<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        let state = self.buffer.read();
        look(state.page().get(bytes_at(self.offset)).unwrap_or_default())
    }

    fn edit(&self, handle: &mut Handle<'_>, change: impl FnOnce(&mut [u8])) {
        handle.edit(&self.buffer, Stamp::NONE, |page| {
            change(page.get_mut(bytes_at(self.offset)).unwrap_or_default());
        });
    }
}

/// The blocks of a quota file while its tree is locked, or the volume is only read: nobody else
/// changes its map.
pub(super) struct Blocks<'a> {
    inodes: &'a Inodes,
    inode: &'a Arc<Inode>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(inodes: &'a Inodes, inode: &'a Arc<Inode>) -> Self {
        Self { inodes, inode }
    }

    fn store(&self) -> &Store {
        &self.inodes.store
    }

    /// The bytes of a quota block, and its place.
    pub(super) fn read(&self, number: u32) -> Result<([u8; BLOCK_SIZE], Place)> {
        let part = self.get(number)?;
        let bytes = part.look(|bytes| bytes.try_into());
        let bytes = bytes.map_err(|_| corrupt("is cut short"))?;
        Ok((bytes, part.place()))
    }

    fn get(&self, number: u32) -> Result<Part> {
        let (logical, offset) = home_of(number, self.store().block_size());
        let block = match self.inodes.lookup(self.inode, logical)? {
            Mapping::Mapped(extent) => {
                let offset = logical.get().saturating_sub(extent.logical.get());
                extent.start.checked_add(offset)
            }
            Mapping::Hole(_) => None,
        };
        let block = block.ok_or_else(|| corrupt("has a hole"))?;
        let buffer = self.store().read_block(block)?;
        Ok(Part { buffer, offset })
    }

    /// Appends `count` quota blocks of zeroes from block `first` on. If that fails, nothing is
    /// changed, or the journal has stopped.
    fn append(&self, handle: &mut Handle<'_>, first: u32, count: u32) -> Result<Vec<(u32, Part)>> {
        let end = first.checked_add(count);
        let end = end.ok_or_else(|| corrupt("has as many blocks as it can have"))?;
        let bytes = u64::from(end) * BLOCK_SIZE as u64;
        let block_size = u64::from(self.store().block_size());
        let mapped = self.inode.size().div_ceil(block_size);
        // What exists is read before the first change.
        let is_old = |number: &u32| {
            let (logical, _) = home_of(*number, self.store().block_size());
            u64::from(logical.get()) < mapped
        };
        let mut parts = Vec::new();
        for number in (first..end).filter(is_old) {
            parts.push((number, self.get(number)?));
        }
        self.map(handle, mapped..bytes.div_ceil(block_size))?;
        for number in (first..end).filter(|number| !is_old(number)) {
            let part = self.get(number).inspect_err(|error| {
                self.store().stop_half_done(HALF_CHANGED, error);
            });
            parts.push((number, part?));
        }
        for (_, part) in &parts {
            part.edit(handle, |bytes| bytes.fill(0));
        }
        self.inode.edit(handle, Reach::Data, |state| {
            state.slot.size = state.slot.size.max(bytes);
        });
        Ok(parts)
    }

    /// Maps blocks behind the end of the file, which are zero.
    fn map(&self, handle: &mut Handle<'_>, blocks: Range<u64>) -> Result<()> {
        let (inodes, inode) = (self.inodes, self.inode);
        let mut next = blocks.start;
        let mut runs = Vec::new();
        while next < blocks.end {
            let before = handle.changes();
            let filling = Filling::written(next..blocks.end);
            let filled = inodes.fill_hole(handle, inode, filling, |_| Ok(None));
            let extent = match filled {
                Ok(extent) => extent,
                Err(error) => {
                    self.undo(handle, blocks.start..next, before, &error)?;
                    return Err(error);
                }
            };
            next = extent.end();
            runs.push(extent);
        }
        // Only now: blocks that are given back must owe nothing to the journal.
        for extent in runs {
            let blocks = (0..extent.length).filter_map(|offset| extent.start.checked_add(offset));
            blocks.for_each(|block| drop(handle.create(block, Stamp::NONE)));
        }
        Ok(())
    }

    /// After a failure: nothing may stay mapped behind the end.
    fn undo(
        &self,
        handle: &mut Handle<'_>,
        mapped: Range<u64>,
        before: u64,
        error: &Error,
    ) -> Result<()> {
        let is_half_done = matches!(error, Error::Io(_) | Error::Corrupt(_));
        if is_half_done && handle.changes() > before {
            self.store().stop_half_done(HALF_CHANGED, error);
            return Ok(());
        }
        let mut map = self.inode.map.lock();
        let budget = DEPTH + 2;
        let undone = self
            .inodes
            .unmap(handle, self.inode, &mut map, mapped, budget);
        undone.map(|_| ())
    }
}

/// The way through the tree to the leaf that gets a new entry, as far as it exists.
struct Way {
    header: Part,
    /// The nodes from the root down.
    nodes: Vec<Part>,
    leaf: Option<FreeLeaf>,
}

/// A leaf with an empty place, the first of its list.
struct FreeLeaf {
    number: u32,
    part: Part,
    /// The next one in the list.
    next: Option<Part>,
}

impl Way {
    fn to(tree: &Tree, blocks: &Blocks<'_>, id: u32) -> Result<Self> {
        let mut nodes = vec![blocks.get(ROOT)?];
        for depth in 0..DEPTH - 1 {
            let index = quota::index_of(id, depth);
            let child = nodes[depth as usize].look(|node| quota::references(node).nth(index));
            let child = child.unwrap_or(0);
            if child == 0 {
                break;
            }
            nodes.push(blocks.get(child)?);
        }
        Ok(Self {
            header: blocks.get(0)?,
            nodes,
            leaf: FreeLeaf::first(tree, blocks)?,
        })
    }

    /// The number of blocks that are missing.
    fn new_blocks(&self) -> u32 {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(DEPTH);
        DEPTH.saturating_sub(nodes) + u32::from(self.leaf.is_none())
    }

    /// Puts the entry into the leaf, with `added` in place of what is missing. `None` if the leaf
    /// has changed with a node: two blocks of a damaged file may lie in one place.
    fn build(
        self,
        tree: &mut Tree,
        handle: &mut Handle<'_>,
        added: &[(u32, Part)],
        id: u32,
    ) -> Option<Place> {
        let mut added = added.iter();
        tree.header.blocks += self.new_blocks();
        let leaf = self.leaf.or_else(|| {
            let (number, part) = added.next()?;
            Some(FreeLeaf {
                number: *number,
                part: part.clone(),
                next: None,
            })
        });
        let leaf = leaf.expect("a missing leaf was added");
        let mut nodes = self.nodes;
        for (number, part) in added {
            link(handle, &nodes, id, *number);
            tree.nodes.insert(*number);
            nodes.push(part.clone());
        }
        link(handle, &nodes, id, leaf.number);
        let place = leaf.put(tree, handle, id)?;
        let header = tree.header;
        self.header.edit(handle, |bytes| header.store(bytes));
        Some(place)
    }
}

/// Makes the last node lead to this block.
fn link(handle: &mut Handle<'_>, nodes: &[Part], id: u32, number: u32) {
    if let Some((node, depth)) = nodes.iter().zip(0..).last() {
        node.edit(handle, |bytes| {
            quota::set_reference(bytes, quota::index_of(id, depth), number);
        });
    }
}

impl FreeLeaf {
    /// The first leaf of the list, if it has an empty place. A list that leads elsewhere is
    /// abandoned: its leaves keep their empty places.
    fn first(tree: &Tree, blocks: &Blocks<'_>) -> Result<Option<Self>> {
        let is_leaf = |number: u32| {
            number != 0 && tree.check_number(number).is_ok() && !tree.nodes.contains(&number)
        };
        let number = tree.header.free_leaf;
        if !is_leaf(number) {
            return Ok(None);
        }
        let part = blocks.get(number)?;
        let (header, place) =
            part.look(|leaf| (LeafHeader::decode(leaf), quota::empty_place(leaf)));
        if place.is_none() {
            return Ok(None);
        }
        let next = is_leaf(header.next_free) && header.next_free != number;
        let next = next.then(|| blocks.get(header.next_free)).transpose()?;
        Ok(Some(Self { number, part, next }))
    }

    /// Puts a new entry into the leaf, which is the first of the list or gets there; `None` if it
    /// has no empty place.
    fn put(self, tree: &mut Tree, handle: &mut Handle<'_>, id: u32) -> Option<Place> {
        let (mut header, place) = self
            .part
            .look(|leaf| (LeafHeader::decode(leaf), quota::empty_place(leaf)));
        let offset = place?;
        header.entries = header.entries.saturating_add(1);
        tree.header.free_leaf = self.number;
        if usize::from(header.entries) >= ENTRIES {
            let next = self.next.is_some().then_some(header.next_free);
            tree.header.free_leaf = next.unwrap_or(0);
            (header.next_free, header.previous_free) = (0, 0);
            if let Some(next) = &self.next {
                next.edit(handle, |bytes| {
                    let mut header = LeafHeader::decode(bytes);
                    header.previous_free = 0;
                    header.store(bytes);
                });
            }
        }
        self.part.edit(handle, |bytes| {
            header.store(bytes);
            quota::put_entry(bytes, offset, id);
        });
        Some(self.part.place().behind(offset))
    }
}
