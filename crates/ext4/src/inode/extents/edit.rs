//! The only operation that changes a tree: replacing some adjacent extents of one leaf by others.
//! Its consequences (keys of ancestors, nodes that split or are removed, a root that absorbs its
//! only child) are handled here and in `split`.

use std::ops::Range;

use pext4_ondisk::extent::{self, EntryBytes, Extent, Node, ROOT_SIZE};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use super::path::{Path, parse_placed, parse_root};
use super::{Few, NodeStore};
use crate::error::Result;

/// A tree open for changes.
pub(super) struct Editor<'a, S> {
    pub root: &'a mut [u8; ROOT_SIZE],
    pub store: &'a mut S,
}

impl<S: NodeStore> Editor<'_, S> {
    /// As [`Self::replace`]; where there are fewer extents then, the tree loses a level if the rest
    /// fits into the root.
    pub fn replace_and_collapse(
        &mut self,
        path: &mut Path,
        slots: Range<usize>,
        extents: &[Extent],
    ) -> Result<()> {
        let are_fewer = extents.len() < slots.len();
        self.replace(path, slots, extents)?;
        match are_fewer {
            true => self.collapse(),
            false => Ok(()),
        }
    }

    /// Replaces the extents in `slots` of the leaf at the end of `path` by `extents`, which map
    /// nothing that another extent of the tree maps.
    pub fn replace(
        &mut self,
        path: &mut Path,
        slots: Range<usize>,
        extents: &[Extent],
    ) -> Result<()> {
        let leaf = path.leaf();
        let left = path.level(leaf).entries - slots.len();
        if left + extents.len() == 0 {
            return self.drop_node(path, leaf);
        }
        let entries: Few<EntryBytes> = extents.iter().map(Extent::encode).collect();
        if left + entries.len() <= path.level(leaf).max {
            return self.splice(path, leaf, slots, &entries);
        }
        self.replace_and_split(path, slots, &entries)
    }

    /// Replaces entries of a node that has room; updates the ancestors if its first entry changed.
    pub fn splice(
        &mut self,
        path: &Path,
        level: usize,
        slots: Range<usize>,
        entries: &[EntryBytes],
    ) -> Result<()> {
        let first = self.edit(path.level(level).block, |bytes| {
            extent::splice(bytes, slots, entries)?;
            first_of(bytes)
        })?;
        self.announce_first(path, level, first)
    }

    /// Updates the ancestors of the node at `level` to `first`, its new first logical block.
    pub fn announce_first(&mut self, path: &Path, level: usize, first: LogicalBlock) -> Result<()> {
        if path.level(level).first == first {
            return Ok(());
        }
        for ancestor in path.levels()[..level].iter().rev() {
            let slot = ancestor.slot;
            self.edit(ancestor.block, |bytes| {
                extent::set_logical(bytes, slot, first)
            })?;
            if slot != 0 {
                break;
            }
        }
        Ok(())
    }

    /// Removes a node from the tree, and those ancestors that have no other child.
    fn drop_node(&mut self, path: &Path, level: usize) -> Result<()> {
        let Some(block) = path.level(level).block else {
            *self.root = extent::empty_root();
            return Ok(());
        };
        self.store.free(block)?;
        let parent = path.level(level - 1);
        if parent.entries == 1 {
            return self.drop_node(path, level - 1);
        }
        self.splice(path, level - 1, parent.slot..parent.slot + 1, &[])
    }

    /// Moves the entries of the root's only child into the root, repeatedly while there is only one
    /// child and its entries fit.
    pub fn collapse(&mut self) -> Result<()> {
        while let Some((block, depth, entries)) = self.only_child()? {
            extent::write_node(self.root, depth, &entries);
            self.store.free(block)?;
        }
        Ok(())
    }

    /// The root's only child, if it can be read and its entries would fit into the root.
    fn only_child(&self) -> Result<Option<(BlockNumber, u16, Vec<EntryBytes>)>> {
        let bounds = self.store.bounds();
        let node = parse_root(self.root, &bounds)?;
        if node.depth() == 0 || node.len() != 1 {
            return Ok(None);
        }
        let (index, depth) = (node.index(0, &bounds)?, node.depth() - 1);
        let end = u64::from(u32::MAX);
        let entries: Result<Option<Vec<EntryBytes>>> =
            self.store.read(index.child, depth, |bytes| {
                let child = parse_placed(bytes, depth, &index, end, &bounds)?;
                let fits = child.len() <= extent::capacity(ROOT_SIZE);
                Ok(fits.then(|| child.entries().to_vec()))
            });
        // A child that cannot be read may stay: who needs what it maps will report it.
        let entries = entries.ok().flatten();
        Ok(entries.map(|entries| (index.child, depth, entries)))
    }

    /// Changes the bytes of a node, be it the root or a block.
    pub fn edit<R>(
        &mut self,
        block: Option<BlockNumber>,
        change: impl FnOnce(&mut [u8]) -> std::result::Result<R, Corrupt>,
    ) -> Result<R> {
        match block {
            None => Ok(change(self.root)?),
            Some(block) => {
                let changed = self.store.edit(block, change)?;
                Ok(changed.map_err(|corrupt| corrupt.in_block(block))?)
            }
        }
    }
}

/// The first logical block of a node's first entry.
pub(super) fn first_of(bytes: &[u8]) -> std::result::Result<LogicalBlock, Corrupt> {
    let node = Node::parse(bytes)?;
    if node.is_empty() {
        return Err(Corrupt::new(
            "extent node",
            "lost its entries while it was changed",
        ));
    }
    Ok(node.logical(0))
}
