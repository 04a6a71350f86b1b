//! The path from the root down to one leaf, and what was read from each node on it.
//!
//! Each node is checked against its parent on the way: its depth is one less, its first entry
//! starts where the parent says, its last entry is before the parent's next one.

use pext4_ondisk::extent::{Bounds, EntryBytes, Extent, Index, MAX_DEPTH, Node, ROOT_SIZE};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use super::NodeStore;
use crate::error::Result;

/// Logical block numbers end here; extents end one earlier.
const NUMBERS_END: u64 = 1 << 32;
const LEVELS: usize = MAX_DEPTH as usize + 1;

/// One node of a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Level {
    /// Its block; `None` for the root.
    pub block: Option<BlockNumber>,
    /// Entries in use.
    pub entries: usize,
    /// Room for entries.
    pub max: usize,
    /// In an index node the entry that was followed; in a leaf the number of entries that start at
    /// or before the target.
    pub slot: usize,
    /// The logical block of its first entry; 0 in an empty root.
    pub first: LogicalBlock,
}

/// What a descent keeps of the nodes it passes.
trait Trail {
    fn push(&mut self, block: Option<BlockNumber>, node: &Node<'_>, slot: usize);
}

/// Keeps nothing, for those who only look.
struct NoTrail;

impl Trail for NoTrail {
    fn push(&mut self, _: Option<BlockNumber>, _: &Node<'_>, _: usize) {}
}

/// The nodes from the root to a leaf, for those who change the tree.
#[derive(Clone, Debug)]
pub(super) struct Path {
    levels: [Level; LEVELS],
    count: usize,
}

/// The leaf at the end of a path, with its bytes.
pub(super) struct Leaf<'a> {
    node: Node<'a>,
    bounds: Bounds,
    /// Entries that start at or before the target.
    pub slot: usize,
    /// The end of the logical blocks that this leaf may map.
    pub end: u64,
}

impl Path {
    /// The level of the leaf, which is the depth of the tree.
    pub fn leaf(&self) -> usize {
        self.count - 1
    }

    /// A level; 0 is the root.
    pub fn level(&self, level: usize) -> &Level {
        &self.levels[..self.count][level]
    }

    /// All levels, from the root down.
    pub fn levels(&self) -> &[Level] {
        &self.levels[..self.count]
    }

    /// A path without nodes, for [`descend`].
    pub fn start() -> Self {
        Self {
            levels: [Level::default(); LEVELS],
            count: 0,
        }
    }

    /// Adds a new root above the nodes, after the old root's entries were moved to `block`.
    pub fn push_root(&mut self, root: Level, block: BlockNumber, max: usize) {
        self.levels.copy_within(..LEVELS - 1, 1);
        self.levels[1].block = Some(block);
        self.levels[1].max = max;
        self.levels[0] = root;
        self.count += 1;
    }
}

impl Trail for Path {
    fn push(&mut self, block: Option<BlockNumber>, node: &Node<'_>, slot: usize) {
        self.levels[self.count] = Level {
            block,
            entries: node.len(),
            max: usize::from(node.header().max),
            slot,
            first: if node.is_empty() {
                LogicalBlock(0)
            } else {
                node.logical(0)
            },
        };
        self.count += 1;
    }
}

/// The end of the logical blocks below the last node that was reached, or below the entry of it
/// that was followed.
struct Reached {
    end: u64,
}

impl Trail for Reached {
    fn push(&mut self, _: Option<BlockNumber>, node: &Node<'_>, slot: usize) {
        // The entry behind the target.
        let next = slot + usize::from(node.depth() > 0);
        if next < node.len() {
            self.end = self.end.min(u64::from(node.logical(next).get()));
        }
    }
}

/// A descent to the leaf of one logical block.
struct Descent<'t, T> {
    target: LogicalBlock,
    bounds: Bounds,
    /// The end of the logical blocks that the nodes below may map.
    end: u64,
    trail: &'t mut T,
}

impl<T: Trail> Descent<'_, T> {
    /// Passes an index node; returns the entry to follow.
    fn enter_index(&mut self, block: Option<BlockNumber>, node: &Node<'_>) -> Result<Index> {
        let slot = node.count_up_to(self.target).saturating_sub(1);
        if slot + 1 < node.len() {
            self.end = self.end.min(u64::from(node.logical(slot + 1).get()));
        }
        self.trail.push(block, node, slot);
        Ok(node.index(slot, &self.bounds)?)
    }

    /// Arrives at the leaf.
    fn enter_leaf<'a>(&mut self, block: Option<BlockNumber>, node: Node<'a>) -> Leaf<'a> {
        let slot = node.count_up_to(self.target);
        self.trail.push(block, &node, slot);
        Leaf {
            node,
            bounds: self.bounds,
            slot,
            end: self.end,
        }
    }
}

impl<'a> Leaf<'a> {
    /// Extents in the leaf.
    pub fn len(&self) -> usize {
        self.node.len()
    }

    /// The extent in `slot`, which the leaf has.
    pub fn extent(&self, slot: usize) -> Result<Extent> {
        Ok(self.node.extent(slot, &self.bounds)?)
    }

    /// The extent in `slot`, if the leaf has one there.
    pub fn get(&self, slot: usize) -> Result<Option<Extent>> {
        if slot < self.len() {
            self.extent(slot).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The last extent that starts at or before the target.
    pub fn before(&self) -> Result<Option<Extent>> {
        self.slot
            .checked_sub(1)
            .map(|slot| self.extent(slot))
            .transpose()
    }

    /// The first mapped logical block after the target, in this leaf or the next.
    pub fn next_logical(&self) -> u64 {
        if self.slot < self.len() {
            u64::from(self.node.logical(self.slot).get())
        } else {
            self.end
        }
    }
}

/// The root, checked.
pub(super) fn parse_root<'a>(root: &'a [u8; ROOT_SIZE], bounds: &Bounds) -> Result<Node<'a>> {
    let node = Node::parse(root)?;
    node.check_entries(bounds)?;
    Ok(node)
}

/// A node to which an index entry of depth `depth + 1` refers, its header checked.
pub(super) fn parse_child(bytes: &[u8], depth: u16) -> std::result::Result<Node<'_>, Corrupt> {
    let node = Node::parse(bytes)?;
    if node.depth() != depth {
        let problem = format!("depth is {}, not {depth}", node.depth());
        return Err(Corrupt::new("extent node", problem));
    }
    if node.is_empty() {
        return Err(Corrupt::new(
            "extent node",
            "has no entries but is not the root",
        ));
    }
    Ok(node)
}

/// A node whose header and place under its parent are checked: the parent refers to it by `index`,
/// and the parent's next entry starts at `end`.
pub(super) fn parse_placed<'a>(
    bytes: &'a [u8],
    depth: u16,
    index: &Index,
    end: u64,
    bounds: &Bounds,
) -> Result<Node<'a>> {
    let node = parse_child(bytes, depth)?;
    let first = node.logical(0);
    if first != index.logical {
        let problem = format!("begins at {first}, its index entry says {}", index.logical);
        return Err(Corrupt::new("extent node", problem).into());
    }
    let last = node.len() - 1;
    let reach = if depth == 0 {
        node.extent(last, bounds)?.end()
    } else {
        u64::from(node.logical(last).get()) + 1
    };
    if reach > end {
        let problem = format!("reaches block {reach} of the file, the next node begins at {end}");
        return Err(Corrupt::new("extent node", problem).into());
    }
    Ok(node)
}

/// Calls `look` with the leaf that maps `target` or would map it.
pub(super) fn find<S: NodeStore, R>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    target: LogicalBlock,
    look: impl FnOnce(&Leaf<'_>) -> Result<R>,
) -> Result<R> {
    follow(root, store, target, &mut NoTrail, look)
}

/// As [`find`], for a caller that will change the tree and needs the nodes on the way, which
/// replace those of `path`.
pub(super) fn descend<S: NodeStore, R>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    target: LogicalBlock,
    path: &mut Path,
    look: impl FnOnce(&Leaf<'_>) -> Result<R>,
) -> Result<R> {
    path.count = 0;
    follow(root, store, target, path, look)
}

/// Where `target` cannot be looked up because a node is damaged: the end of the logical blocks for
/// which the same is true.
pub fn end_of_damage<S: NodeStore>(root: &[u8; ROOT_SIZE], store: &S, target: LogicalBlock) -> u64 {
    let mut reached = Reached { end: NUMBERS_END };
    // What is wrong was told by the lookup.
    let _ = follow(root, store, target, &mut reached, |_| Ok(()));
    reached.end.max(u64::from(target.get()) + 1)
}

fn follow<S: NodeStore, R>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    target: LogicalBlock,
    trail: &mut impl Trail,
    look: impl FnOnce(&Leaf<'_>) -> Result<R>,
) -> Result<R> {
    let bounds = store.bounds();
    let mut descent = Descent {
        target,
        bounds,
        end: NUMBERS_END,
        trail,
    };
    let node = parse_root(root, &bounds)?;
    let mut depth = node.depth();
    if depth == 0 {
        return look(&descent.enter_leaf(None, node));
    }
    let mut index = descent.enter_index(None, &node)?;
    loop {
        depth -= 1;
        let (block, end) = (index.child, descent.end);
        if depth == 0 {
            let seen = store.read(block, 0, |bytes| {
                let node = parse_placed(bytes, 0, &index, end, &bounds)?;
                look(&descent.enter_leaf(Some(block), node))
            });
            return seen.map_err(|error| error.in_block(block));
        }
        index = store
            .read(block, depth, |bytes| {
                let node = parse_placed(bytes, depth, &index, end, &bounds)?;
                descent.enter_index(Some(block), &node)
            })
            .map_err(|error| error.in_block(block))?;
    }
}

/// All entries of a node, undecoded.
pub(super) fn entries_of<S: NodeStore>(
    root: &[u8; ROOT_SIZE],
    store: &S,
    block: Option<BlockNumber>,
    depth: u16,
) -> Result<Vec<EntryBytes>> {
    match block {
        None => Ok(Node::parse(root)?.entries().to_vec()),
        Some(block) => store
            .read(block, depth, |bytes| {
                Ok(parse_child(bytes, depth)?.entries().to_vec())
            })
            .map_err(|error| error.in_block(block)),
    }
}
