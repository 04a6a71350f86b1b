//! One directory's file: its blocks through the extent tree, the buffers and the journal.
//!
//! Whoever looks holds the directory's lock for reading, whoever changes holds it for writing and
//! lends a handle. Reserved blocks are mapped at once, behind the end of the file, and `append`
//! only moves the end: after the first change of an operation nothing is left that could fail for
//! want of space.
//!
//! Of a directory that lies in its inode the regions are shown as if they were blocks; a change
//! puts the whole content back into the slot.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Buffer, Stamp};
use pext4_jbd2::Handle;
use pext4_ondisk::inode::{BLOCK_AREA, InodeFlags, inline};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, LogicalBlock, directory, htree};
use pext4_sync::Near;

use super::blocks::{BlockKind, DirectoryBlocks, DirectorySettings, kind_of};
use crate::error::{Error, Result};
use crate::inode::extents::{Extent, Mapping};
use crate::inode::table::Inodes;
use crate::inode::{Inode, Reach};
use crate::seal;

/// A leaf that was looked at, held: what is changed next need not be found again. It stays what it
/// is while the directory's lock is held.
pub struct LeafBuffer {
    block: LogicalBlock,
    buffer: Near<Buffer>,
}

/// A directory, its file and, for changes, a handle.
pub struct DirectoryFile<'a, 'h> {
    inodes: &'a Inodes,
    inode: &'a Arc<Inode>,
    settings: &'a DirectorySettings,
    generation: u32,
    is_inline: bool,
    handle: Option<&'a mut Handle<'h>>,
    /// A leaf that is looked at now is changed next.
    for_update: bool,
    /// The leaf that was looked at last, where one is changed.
    seen: Cell<Option<LeafBuffer>>,
    /// The mapping found last: most operations stay within one run.
    last: Cell<Option<Extent>>,
    /// The root of the map, once it was asked for; forgotten when the map changes.
    root: OnceCell<[u8; 60]>,
}

impl<'a, 'h> DirectoryFile<'a, 'h> {
    /// A directory to look at.
    #[must_use]
    pub fn reading(
        inodes: &'a Inodes,
        settings: &'a DirectorySettings,
        inode: &'a Arc<Inode>,
    ) -> Self {
        Self {
            inodes,
            inode,
            settings,
            generation: inode.generation(),
            is_inline: inode.is_inline(),
            handle: None,
            for_update: false,
            seen: Cell::new(None),
            last: Cell::new(None),
            root: OnceCell::new(),
        }
    }

    /// The same for who will change the leaf that is looked at. Its lock is taken for writing even to
    /// look: a core that had read the lines of a leaf would have to ask for all of them once more.
    #[must_use]
    pub fn for_update(self) -> Self {
        Self {
            for_update: true,
            ..self
        }
    }

    /// A directory to change.
    #[must_use]
    pub fn changing(
        inodes: &'a Inodes,
        settings: &'a DirectorySettings,
        inode: &'a Arc<Inode>,
        handle: &'a mut Handle<'h>,
    ) -> Self {
        Self {
            handle: Some(handle),
            ..Self::reading(inodes, settings, inode)
        }
    }

    /// The leaf that was looked at last before a change.
    #[must_use]
    pub fn into_leaf_buffer(self) -> Option<LeafBuffer> {
        self.seen.into_inner()
    }

    /// The same directory for who has looked at a leaf before.
    #[must_use]
    pub fn with_leaf_buffer(self, leaf: Option<LeafBuffer>) -> Self {
        self.seen.set(leaf);
        self
    }

    fn locate(&self, block: LogicalBlock) -> Result<BlockNumber> {
        let known = self.last.get().filter(|extent| extent.covers(block));
        let extent = match known {
            Some(extent) => extent,
            None => self.look_up(block)?,
        };
        self.last.set(Some(extent));
        let step = block.get() - extent.logical.get();
        extent
            .start
            .checked_add(step)
            .ok_or_else(|| self.corrupt(block, "mapping beyond the end of the device"))
    }

    fn look_up(&self, block: LogicalBlock) -> Result<Extent> {
        // The directory's lock keeps its map as it is.
        let root = self.root.get_or_init(|| self.inode.root());
        match self.inodes.lookup_with_root(self.inode, root, block)? {
            Mapping::Mapped(extent) if !extent.unwritten => Ok(extent),
            Mapping::Mapped(_) => Err(self.corrupt(block, "block was never written")),
            Mapping::Hole { .. } => Err(self.corrupt(block, "block is missing")),
        }
    }

    fn corrupt(&self, block: LogicalBlock, problem: &str) -> Error {
        Corrupt::new(
            "directory",
            format!("{problem} (block {block} of the directory)"),
        )
        .in_inode(self.inode.number())
        .into()
    }

    fn buffer(&self, block: LogicalBlock, kind: BlockKind) -> Result<Near<Buffer>> {
        if kind == BlockKind::Leaf
            && let Some(seen) = self.seen.take()
            && seen.block == block
        {
            return Ok(seen.buffer);
        }
        let home = self.locate(block)?;
        let buffer = self.inodes.store.near_block(home)?;
        self.verify(&buffer, home, kind)?;
        Ok(buffer)
    }

    /// Keeps a leaf at hand that may be changed.
    fn keep(&self, block: LogicalBlock, kind: BlockKind, buffer: Near<Buffer>) {
        if kind == BlockKind::Leaf && (self.for_update || self.handle.is_some()) {
            self.seen.set(Some(LeafBuffer { block, buffer }));
        }
    }

    fn verify(&self, buffer: &Buffer, home: BlockNumber, kind: BlockKind) -> Result<()> {
        let store = &self.inodes.store;
        if !store.metadata_csum {
            return Ok(());
        }
        let (seed, inode) = (store.checksum_seed, self.inode.number());
        let check = |page: &[u8]| {
            let kind = match kind {
                BlockKind::Either => kind_of(page),
                known => known,
            };
            match kind {
                BlockKind::Index => htree::verify(seed, inode, self.generation, page),
                _ => directory::verify_leaf(seed, inode, self.generation, page),
            }
        };
        let verified = buffer.verify(check);
        verified.map_err(|corrupt| corrupt.in_block(home).in_inode(inode).into())
    }

    fn stamp(&self, kind: BlockKind) -> Stamp {
        match kind {
            BlockKind::Index => seal::directory_index(self.inode.number(), self.generation),
            _ => seal::directory_leaf(self.inode.number(), self.generation),
        }
    }

    /// Shows a region of a directory that lies in its inode. The first is published.
    fn read_region<R>(
        &self,
        block: LogicalBlock,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        if block.get() == 0 {
            let root = self.root.get_or_init(|| self.inode.root());
            return look(&root[self.region(root, block)?]);
        }
        let area = self.inode.inline_area()?;
        look(&area[self.region(&area, block)?])
    }

    fn edit_region<R>(
        &mut self,
        block: LogicalBlock,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let mut area = self.inode.inline_area()?;
        let region = self.region(&area, block)?;
        let result = change(&mut area[region]);
        self.put_area(&area)?;
        Ok(result)
    }

    fn region(&self, area: &[u8], block: LogicalBlock) -> Result<Range<usize>> {
        inline::region(area, block.get())
            .map_err(|corrupt| corrupt.in_inode(self.inode.number()).into())
    }

    fn put_area(&mut self, area: &[u8]) -> Result<()> {
        self.root.take();
        let inode = self.inode;
        inode.put_inline(self.handle(), area)
    }

    fn handle(&mut self) -> &mut Handle<'h> {
        self.handle
            .as_mut()
            .expect("a directory that is changed was given a handle")
    }
}

impl DirectoryBlocks for DirectoryFile<'_, '_> {
    fn inode(&self) -> InodeNumber {
        self.inode.number()
    }

    fn count(&self) -> u32 {
        if self.is_inline {
            return 1 + u32::from(self.inode.size() > BLOCK_AREA as u64);
        }
        let blocks = self.inode.size() / u64::from(self.inodes.store.block_size());
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    fn read<R>(
        &self,
        block: LogicalBlock,
        kind: BlockKind,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        if self.is_inline {
            return self.read_region(block, look);
        }
        let buffer = self.buffer(block, kind)?;
        let answer = if self.for_update && kind == BlockKind::Leaf {
            look(&buffer.write().page)
        } else {
            look(&buffer.read().page)
        };
        self.keep(block, kind, buffer);
        answer
    }

    fn edit<R>(
        &mut self,
        block: LogicalBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        if self.is_inline {
            return self.edit_region(block, change);
        }
        // Verified here as well: the block may have left memory since it was read, and once it is
        // edited its bytes wait for their checksum until the commit.
        let buffer = self.buffer(block, kind)?;
        let stamp = self.stamp(kind);
        let answer = self.handle().edit(&buffer, stamp, change);
        self.keep(block, kind, buffer);
        Ok(answer)
    }

    fn reserve(&mut self, blocks: u32) -> Result<()> {
        let (inodes, inode) = (self.inodes, self.inode);
        let first = u64::from(self.count());
        let end = first + u64::from(blocks);
        let mut next = first;
        self.root.take();
        while next < end {
            match inodes.fill_hole(self.handle(), inode, next..end, false, |_| Ok(())) {
                Ok(extent) => next += u64::from(extent.length),
                Err(error) => {
                    // Nothing may stay mapped behind the end.
                    let mut map = inode.map.write();
                    // Each run costs one entry and one leaf.
                    let budget = 2 * blocks + 2;
                    inodes.unmap(self.handle(), inode, &mut map, first..next, budget)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, kind: BlockKind) -> Result<LogicalBlock> {
        let block = LogicalBlock(self.count());
        let home = self.locate(block)?;
        let stamp = self.stamp(kind);
        let bytes = u64::from(self.inodes.store.block_size());
        let inode = self.inode;
        let buffer = self.handle().create(home, stamp);
        buffer.set_verified();
        inode.edit(self.handle(), Reach::Data, |state| state.slot.size += bytes);
        Ok(block)
    }

    fn is_indexed(&self) -> bool {
        is_indexed(self.inode)
    }

    fn set_indexed(&mut self) {
        let inode = self.inode;
        inode.edit(self.handle(), Reach::Data, |state| {
            state.slot.flags |= InodeFlags::INDEX
        });
    }

    fn settings(&self) -> &DirectorySettings {
        self.settings
    }

    fn is_inline(&self) -> bool {
        self.is_inline
    }

    fn inline_parent(&self) -> InodeNumber {
        inline::parent(self.root.get_or_init(|| self.inode.root()))
    }

    fn set_inline_parent(&mut self, parent: InodeNumber) -> Result<()> {
        let mut area = self.inode.inline_area()?;
        inline::set_parent(&mut area, parent);
        self.put_area(&area)
    }

    fn widen_inline(&mut self, bytes: usize) -> Result<bool> {
        let mut area = self.inode.inline_area()?;
        let length = area.len();
        if (length + bytes) as u64 > self.inode.inline_room()? {
            return Ok(false);
        }
        area.resize(length + bytes, 0);
        directory::init_empty(&mut area[length..], self.format());
        self.put_area(&area)?;
        Ok(true)
    }

    fn end_inline(&mut self) -> Result<()> {
        let (inodes, inode) = (self.inodes, self.inode);
        let backup = inode.end_inline(self.handle(), inodes.maps_by_extents())?;
        self.is_inline = false;
        let reserved = self.reserve(1);
        if reserved.is_err() {
            inode.restore_inline(self.handle(), backup);
            self.is_inline = true;
            self.root.take();
        }
        reserved
    }
}

/// Whether a directory has an index.
#[must_use]
pub fn is_indexed(inode: &Inode) -> bool {
    inode.flags().contains(InodeFlags::INDEX)
}
