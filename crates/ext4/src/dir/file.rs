//! One directory's file: its blocks, by way of the extent tree, the buffers and the journal.
//!
//! A reader holds the directory's lock for reading; a caller that changes something holds it for
//! writing (or, for names in one leaf, for reading: [`DirectoryFile::lock_leaf`]) and lends a
//! handle. Reserved blocks are mapped at once, beyond the end of the file, and `append` only moves
//! the end: after the first change of an operation nothing can fail for lack of space.
//!
//! If a directory is stored in its inode, its regions are presented as blocks; a change stores the
//! whole content in the slot again.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::Arc;

use pext4_block::{Buffer, BufferState, Stamp};
use pext4_jbd2::Handle;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::Fingerprints;
use pext4_ondisk::inode::{BLOCK_AREA, InodeFlags, inline};
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber, LogicalBlock, directory, htree};
use pext4_sync::ShardRef;

use super::blocks::{BlockKind, DirectoryBlocks, DirectorySettings, kind_of};
use super::index;
use super::leaf_view::{LeafEdit, LeafView};
use super::locked_leaf::{self, LockedLeaf, SeenLeaf, view, view_to_change};
use crate::error::{Error, Result};
use crate::inode::extents::{Extent, Mapping};
use crate::inode::filling::Filling;
use crate::inode::inodes::Inodes;
use crate::inode::name_orders::NameOrder;
use crate::inode::{Inode, Reach, Root};
use crate::seal;
use crate::statistics::Event;

/// A leaf of no more records has no fingerprints: to look at its records takes fewer instructions
/// than to keep them, and no more cache lines.
const FEW_RECORDS: usize = 8;

/// A directory, its file and, for changes, a handle.
pub struct DirectoryFile<'a, 'h> {
    inodes: &'a Inodes,
    inode: &'a Arc<Inode>,
    settings: &'a DirectorySettings,
    generation: u32,
    is_inline: bool,
    handle: Option<&'a mut Handle<'h>>,
    /// The caller will change the leaf that it reads.
    for_update: bool,
    /// The leaf that was read last.
    last_leaf: Cell<Option<SeenLeaf>>,
    /// The mapping that was found last: most operations stay within one run.
    last: Cell<Option<Extent>>,
    /// The root of the map, after its first use; dropped when the map changes.
    root: OnceCell<Root>,
}

impl<'a, 'h> DirectoryFile<'a, 'h> {
    /// A directory for reading.
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
            last_leaf: Cell::new(None),
            last: Cell::new(None),
            root: OnceCell::new(),
        }
    }

    /// The same directory, for a caller that will change the leaf that it reads. Even reads take
    /// the leaf's lock for writing: a core that first reads the leaf's cache lines and then writes
    /// them would have to transfer all of them twice.
    #[must_use]
    pub fn for_update(self) -> Self {
        Self {
            for_update: true,
            ..self
        }
    }

    /// A directory for changes.
    #[must_use]
    pub fn changing(
        inodes: &'a Inodes,
        settings: &'a DirectorySettings,
        inode: &'a Arc<Inode>,
        handle: &'a mut Handle<'h>,
    ) -> Self {
        Self {
            handle: Some(handle),
            ..Self::reading(inodes, settings, inode).for_update()
        }
    }

    /// The leaf that was read last; none in a directory that is stored in its inode.
    #[must_use]
    pub fn into_last_leaf(self) -> Option<SeenLeaf> {
        self.last_leaf.into_inner()
    }

    /// The same directory, for a caller that has read a leaf before, so that its buffer is not
    /// searched again.
    #[must_use]
    pub fn with_last_leaf(self, leaf: Option<SeenLeaf>) -> Self {
        self.last_leaf.set(leaf);
        self
    }

    /// Locks a leaf that was read before, for the change of one name. The directory's lock is held
    /// shared.
    pub fn lock_leaf<'b>(&'b mut self, seen: &'b SeenLeaf) -> LockedLeaf<'b, 'h> {
        let inode = self.inode;
        let (format, stamp) = (self.format(), self.stamp(BlockKind::Leaf));
        let leaf = seen.lock(inode.number(), format, stamp, self.handle());
        inode.forget_name_order();
        leaf
    }

    fn locate(&self, block: LogicalBlock) -> Result<BlockNumber> {
        let covers = |extent: &Extent| extent.covers(block);
        let known = self.last.get().filter(covers);
        // The map cannot change while the directory's lock is held.
        let known = known.or_else(|| self.inode.known_extent().filter(covers));
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
        self.inodes
            .check_map_of_directory(self.inode, self.count())?;
        let root = self.root.get_or_init(|| self.inode.root());
        match self.inodes.lookup_with_root(self.inode, root, block)? {
            Mapping::Mapped(extent) if !extent.unwritten => {
                self.inode.remember_extent(root, &extent);
                Ok(extent)
            }
            Mapping::Mapped(_) => Err(self.corrupt(block, "block was never written")),
            Mapping::Hole(_) => Err(self.corrupt(block, "block is missing")),
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

    fn buffer(&self, block: LogicalBlock, kind: BlockKind) -> Result<ShardRef<Buffer>> {
        if kind == BlockKind::Leaf
            && let Some(leaf) = self.last_leaf.take()
            && leaf.block() == block
        {
            return Ok(leaf.into_buffer());
        }
        let home = self.locate(block)?;
        let buffer = self.inodes.store.read_frequent_block(home)?;
        self.verify(&buffer, (block, home), kind)?;
        Ok(buffer)
    }

    /// Keeps a reference to a leaf whose count of changes was `changes` when it was locked: it may
    /// be validated or changed next.
    fn keep(&self, block: LogicalBlock, kind: BlockKind, buffer: ShardRef<Buffer>, changes: u64) {
        if kind == BlockKind::Leaf {
            let leaf = SeenLeaf::new(block, buffer, changes);
            self.last_leaf.set(Some(leaf));
        }
    }

    /// Checks a block when it is first used: its checksum and, in an index, the order on which
    /// searches depend. Elsewhere only the checksum is.
    fn verify(
        &self,
        buffer: &Buffer,
        (block, home): (LogicalBlock, BlockNumber),
        kind: BlockKind,
    ) -> Result<()> {
        let (geometry, inode) = (&self.inodes.store.geometry, self.inode.number());
        // Only a block that was checked as a whole is marked so, since only such a block is
        // changed: from then on its checksum is stale, and a leaf may become the root of an index.
        let check = |page: &[u8]| {
            if let Some(seed) = geometry.inode_seed(inode, self.generation) {
                check_sum(seed, page, kind)?;
            }
            if kind == BlockKind::Index {
                index::check(page, block, self.settings(), self.count())?;
            }
            Ok::<bool, Corrupt>(matches!(kind, BlockKind::Leaf | BlockKind::Index))
        };
        let verified = buffer.verify_partly(check);
        verified.map_err(|corrupt| corrupt.in_block(home).in_inode(inode).into())
    }

    fn stamp(&self, kind: BlockKind) -> Stamp {
        match kind {
            BlockKind::Index => seal::directory_index(self.inode.number(), self.generation),
            _ => seal::directory_leaf(self.inode.number(), self.generation),
        }
    }

    /// Calls `look` with a region of a directory stored in its inode. The first region is published
    /// and read without a lock.
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

    /// Keeps the fingerprints of a leaf that will be changed, if none that fit are kept yet and it
    /// has more than a few records. A damaged leaf gets none: whoever searches it finds what is
    /// wrong.
    fn make_fingerprints(&self, state: &mut BufferState) {
        let anew = |state: &BufferState| Fingerprints::of(state.page(), self.format()).ok();
        if !self.settings.fingerprints {
            return;
        }
        if let Some(kept) = state.fingerprints()
            && kept.fit(self.format())
        {
            debug_assert!(
                anew(state).is_none_or(|anew| anew == *kept),
                "the fingerprints of a leaf of inode {} are not those of its bytes",
                self.inode.number()
            );
        } else if directory::has_more_records(state.page(), self.format(), FEW_RECORDS)
            && let Some(fingerprints) = anew(state)
        {
            state.keep_fingerprints(fingerprints);
            let tally = &self.inodes.store.tally;
            tally.count(Event::LeavesFingerprinted);
        }
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
        if kind == BlockKind::Leaf {
            return self.read_leaf(block, |leaf| look(leaf.bytes));
        }
        if self.is_inline {
            return self.read_region(block, look);
        }
        look(self.buffer(block, kind)?.read().page())
    }

    fn read_leaf<R>(
        &self,
        block: LogicalBlock,
        look: impl FnOnce(LeafView<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.is_inline {
            return self.read_region(block, |bytes| look(LeafView::plain(bytes)));
        }
        let buffer = self.buffer(block, BlockKind::Leaf)?;
        let (answer, changes) = if self.for_update {
            buffer.fetch_for_writing();
            let mut state = buffer.write();
            self.make_fingerprints(&mut state);
            (
                look(view_to_change(&state, self.format())),
                buffer.changes(),
            )
        } else {
            let state = buffer.read();
            (look(view(&state, self.format())), buffer.changes())
        };
        self.keep(block, BlockKind::Leaf, buffer, changes);
        answer
    }

    fn edit<R>(
        &mut self,
        block: LogicalBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.inode.forget_name_order();
        if self.is_inline {
            return self.edit_region(block, change);
        }
        // Verified here as well: the block may have been evicted since it was read, and after the
        // edit its checksum is stale until the commit.
        let buffer = self.buffer(block, kind)?;
        let stamp = self.stamp(kind);
        let answer = self.handle().edit(&buffer, stamp, change);
        let changes = buffer.changes();
        self.keep(block, kind, buffer, changes);
        Ok(answer)
    }

    fn edit_leaf<R>(
        &mut self,
        block: LogicalBlock,
        change: impl FnOnce(LeafEdit<'_>) -> R,
    ) -> Result<R> {
        self.inode.forget_name_order();
        if self.is_inline {
            return self.edit_region(block, |bytes| {
                change(LeafEdit {
                    bytes,
                    fingerprints: None,
                })
            });
        }
        let buffer = self.buffer(block, BlockKind::Leaf)?;
        let form = (self.stamp(BlockKind::Leaf), self.format());
        let (answer, changes) = {
            let mut state = buffer.write();
            let leaf = locked_leaf::edit(self.handle(), &buffer, &mut state, form);
            (change(leaf), buffer.changes())
        };
        self.keep(block, BlockKind::Leaf, buffer, changes);
        Ok(answer)
    }

    fn reserve(&mut self, blocks: u32) -> Result<()> {
        let (inodes, inode) = (self.inodes, self.inode);
        let first = u64::from(self.count());
        let end = first + u64::from(blocks);
        let mut next = first;
        self.root.take();
        while next < end {
            let filling = Filling::written(next..end);
            match inodes.fill_hole(self.handle(), inode, filling, |_| Ok(None)) {
                Ok(extent) => next += u64::from(extent.length),
                Err(error) => {
                    // Nothing may stay mapped beyond the end.
                    let mut map = inode.map.lock();
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
        inode.forget_name_order();
        self.handle().create(home, stamp);
        inode.edit(self.handle(), Reach::Data, |state| state.slot.size += bytes);
        Ok(block)
    }

    fn is_indexed(&self) -> bool {
        is_indexed(self.inode)
    }

    fn set_indexed(&mut self, indexed: bool) {
        let inode = self.inode;
        inode.edit(self.handle(), Reach::Data, |state| {
            state.slot.flags.set(InodeFlags::INDEX, indexed);
        });
    }

    fn settings(&self) -> &DirectorySettings {
        self.settings
    }

    fn order(&self, cookie: u64) -> Option<NameOrder> {
        self.inodes.name_orders.get(self.inode, cookie)
    }

    fn most_ordered(&self) -> usize {
        self.inodes.name_orders.most()
    }

    fn begin_order(&self) -> u32 {
        self.inodes.name_orders.begin(self.inode)
    }

    fn keep_order(&self, mark: u32, order: &NameOrder) {
        let orders = &self.inodes.name_orders;
        orders.keep(self.inode, mark, Arc::clone(order));
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
        // The size tells how many blocks there are.
        let backup = inode.end_inline(self.handle(), inodes.new_files_use_extents(), 0)?;
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

/// Checks the checksum of a directory's block.
fn check_sum(seed: InodeSeed, page: &[u8], kind: BlockKind) -> std::result::Result<(), Corrupt> {
    let kind = match kind {
        BlockKind::Either => kind_of(page),
        known => known,
    };
    match kind {
        BlockKind::Index | BlockKind::Dots => htree::verify(seed, page),
        _ => directory::verify_leaf(seed, page),
    }
}
