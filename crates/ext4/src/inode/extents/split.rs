//! Splitting full nodes, and growing the tree.
//!
//! A full node splits into itself and a new one to its right, whose entry is added to the parent,
//! which may split in turn. If all nodes of the path are full, the root's entries first move to a
//! new node, and the tree gets one level deeper. If the new entries are at the node's end, the node
//! stays full and only they move to the right; if they are close to it, a small part of the node
//! does, which leaves room for others that come late. So files written more or less in order have
//! full nodes. Otherwise each side gets half. (An extent for the end of a full leaf goes to the
//! next leaf if there is room: `insert`.)
//!
//! An operation adds at most two entries to a leaf. After a split both sides have room for them, so
//! one operation splits each node of a path at most once.

use std::ops::Range;

use pext4_ondisk::extent::{self, ENTRY_SIZE, EntryBytes, Index, MAX_DEPTH, ROOT_SIZE};
use pext4_ondisk::{Corrupt, LogicalBlock};

use super::NodeStore;
use super::edit::{Editor, first_of};
use super::path::{Level, Path, entries_of};
use crate::error::{Refusal, Result};

/// Entries are close to the end of a node if they are in the last part of so many. Files whose
/// blocks are written back by several threads grow there.
const CLOSE_TO_END: usize = 16;

/// Maximum number of entries that one replacement adds to a leaf.
const MAX_ADDED: usize = 2;

/// Maximum number of nodes for two replacements that each add one entry and split leaves of a tree
/// of this depth: nodes of this capacity may split twice in each level, and the tree grows once.
pub(super) fn nodes_for_two_splits(depth: u32, capacity: usize) -> u32 {
    let grown_splits = extent::capacity(ROOT_SIZE) + MAX_ADDED > capacity;
    2 * depth + 1 + u32::from(grown_splits)
}

/// The changes that a replacement needs if it does not fit into its leaf.
struct Plan {
    nodes: u32,
    grows: bool,
}

/// Computes which nodes of the path split when its leaf gets `added` more entries.
fn plan(path: &Path, capacity: usize, added: usize) -> Result<Plan> {
    let mut added = added;
    let mut nodes = 0;
    for level in path.levels()[1..].iter().rev() {
        if level.entries + added <= level.max {
            return Ok(Plan {
                nodes,
                grows: false,
            });
        }
        nodes += 1;
        added = 1;
    }
    let root = path.level(0);
    if root.entries + added <= root.max {
        return Ok(Plan {
            nodes,
            grows: false,
        });
    }
    if path.leaf() >= usize::from(MAX_DEPTH) {
        return Err(Refusal::FileTooLarge.into());
    }
    let grown_splits = root.entries + added > capacity;
    Ok(Plan {
        nodes: nodes + 1 + u32::from(grown_splits),
        grows: true,
    })
}

impl<S: NodeStore> Editor<'_, S> {
    /// Replaces entries of the leaf, which has no room for the new ones.
    pub fn replace_and_split(
        &mut self,
        path: &mut Path,
        slots: Range<usize>,
        entries: &[EntryBytes],
    ) -> Result<()> {
        let added = entries.len() - slots.len();
        let plan = plan(path, extent::capacity(self.store.block_size()), added)?;
        self.store.reserve(plan.nodes)?;
        if plan.grows {
            self.grow(path)?;
        }
        let leaf = path.leaf();
        self.put_entries(path, leaf, slots, entries)
    }

    /// Replaces entries of the node at `level`, splitting it if it has no room for the new ones.
    fn put_entries(
        &mut self,
        path: &Path,
        level: usize,
        slots: Range<usize>,
        entries: &[EntryBytes],
    ) -> Result<()> {
        let node = path.level(level);
        if node.entries - slots.len() + entries.len() <= node.max {
            return self.splice(path, level, slots, entries);
        }
        let index = self.split(path, level, slots, entries)?;
        let behind = path.level(level - 1).slot + 1;
        self.put_entries(path, level - 1, behind..behind, &[index.encode()])
    }

    /// Divides a node, with the replacement done, between itself and a new node to its right.
    /// Returns the index entry of the new one.
    fn split(
        &mut self,
        path: &Path,
        level: usize,
        slots: Range<usize>,
        entries: &[EntryBytes],
    ) -> Result<Index> {
        let node = path.level(level);
        let depth = depth_of(path, level);
        let behind = node.entries - slots.end;
        let mut all = entries_of(self.root, self.store, node.block, depth)?;
        if all.len() != node.entries {
            let problem = "changed while it was looked at";
            return Err(Corrupt::new("extent node", problem).into());
        }
        let last = all.last().copied();
        all.splice(slots, entries.iter().copied());
        let part = node.max / CLOSE_TO_END;
        let cut = if all.last().copied() != last {
            node.max
        } else if behind <= part {
            node.max.min(all.len() - part)
        } else {
            all.len() / 2
        };
        let (left, right) = all.split_at(cut);

        let block = self.store.allocate()?;
        self.edit(Some(block), |bytes| {
            extent::write_node(bytes, depth, right);
            Ok(())
        })?;
        let first = self.edit(node.block, |bytes| {
            extent::splice(bytes, 0..node.entries, left)?;
            first_of(bytes)
        })?;
        self.announce_first(path, level, first)?;
        Ok(Index {
            logical: logical_of(&right[0]),
            child: block,
        })
    }

    /// Moves the root's entries into a new node, which becomes the root's only child.
    fn grow(&mut self, path: &mut Path) -> Result<()> {
        let depth = depth_of(path, 0);
        let entries = entries_of(self.root, self.store, None, depth)?;
        let block = self.store.allocate()?;
        self.edit(Some(block), |bytes| {
            extent::write_node(bytes, depth, &entries);
            Ok(())
        })?;
        let first = path.level(0).first;
        let index = Index {
            logical: first,
            child: block,
        };
        extent::write_node(self.root, depth + 1, &[index.encode()]);
        let root = Level {
            block: None,
            entries: 1,
            max: extent::capacity(ROOT_SIZE),
            slot: 0,
            first,
        };
        path.push_root(root, block, extent::capacity(self.store.block_size()));
        Ok(())
    }
}

/// Number of levels below a level of the path.
fn depth_of(path: &Path, level: usize) -> u16 {
    u16::try_from(path.leaf() - level).expect("a path has at most six levels")
}

fn logical_of(entry: &[u8; ENTRY_SIZE]) -> LogicalBlock {
    Index::decode(entry).logical
}
