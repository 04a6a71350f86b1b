//! A node store in memory, for tests: it counts reservations, detects nodes that are used after
//! they were freed, and can run out of space or fail to be read.

use std::collections::BTreeMap;

use pext4_ondisk::extent::{Bounds, Index, LOGICAL_END, Node, ROOT_SIZE};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use super::{Extent, NodeStore, check_node};
use crate::error::{Refusal, Result};

/// Tests map data below this block; nodes are from here on.
pub(super) const FIRST_NODE: u64 = 1 << 40;

#[derive(Clone)]
pub(super) struct MemoryStore {
    block_size: usize,
    pub nodes: BTreeMap<BlockNumber, Vec<u8>>,
    next: u64,
    reserved: u32,
    /// How many more nodes may be reserved.
    pub space: u32,
    /// Changes of any kind since the store was made.
    pub changes: u64,
    /// Returns an error, instead of failing the test, if a missing node is read.
    pub tolerant: bool,
    /// The most nodes that one operation reserved since this was last reset.
    pub most_reserved: u32,
}

impl MemoryStore {
    pub fn new(block_size: usize) -> Self {
        Self {
            block_size,
            nodes: BTreeMap::new(),
            next: FIRST_NODE,
            reserved: 0,
            space: u32::MAX,
            changes: 0,
            tolerant: false,
            most_reserved: 0,
        }
    }

    /// Drops the nodes that an operation reserved and did not use.
    pub fn end_operation(&mut self) {
        self.reserved = 0;
        self.most_reserved = 0;
    }

    /// The extents of a tree, after checking all its invariants.
    pub fn check(&self, root: &[u8; ROOT_SIZE]) -> Vec<Extent> {
        let mut extents = Vec::new();
        let node = Node::parse(root).expect("a sound root");
        let mut seen = 0;
        self.check_subtree(node, u64::from(u32::MAX), &mut extents, &mut seen);
        assert_eq!(seen, self.nodes.len(), "every node has one parent");
        let mut least = 0;
        for extent in &extents {
            assert!(
                u64::from(extent.logical.get()) >= least,
                "{extent} overlaps"
            );
            least = extent.end();
        }
        extents
    }

    fn check_subtree(&self, node: Node<'_>, end: u64, extents: &mut Vec<Extent>, seen: &mut usize) {
        node.check_entries(&self.bounds()).expect("sound entries");
        for slot in 0..node.len() {
            if node.depth() == 0 {
                let extent = node.extent(slot, &self.bounds()).expect("sound extent");
                assert!(extent.end() <= end, "{extent} reaches into the next node");
                extents.push(extent);
                continue;
            }
            let index = node.index(slot, &self.bounds()).expect("sound index entry");
            let following = slot + 1 < node.len();
            let child_end = if following {
                u64::from(node.logical(slot + 1).get())
            } else {
                end
            };
            let bytes = self.nodes.get(&index.child).expect("a child that exists");
            let child = Node::parse(bytes).expect("a sound child");
            assert_eq!(child.depth() + 1, node.depth());
            assert!(!child.is_empty(), "an empty node");
            assert_eq!(
                child.logical(0),
                index.logical,
                "the key is the child's first block"
            );
            *seen += 1;
            self.check_subtree(child, child_end, extents, seen);
        }
    }

    fn absent(&self, block: BlockNumber) -> Corrupt {
        assert!(self.tolerant, "{block} is no node in use");
        Corrupt::new("extent node", "is no node").in_block(block)
    }

    /// The node that maps `logical`, by its block.
    pub fn leaf_of(&self, root: &[u8; ROOT_SIZE], logical: LogicalBlock) -> Option<BlockNumber> {
        let mut node = Node::parse(root).expect("a sound root");
        let mut block = None;
        while node.depth() > 0 {
            let slot = node.count_up_to(logical).saturating_sub(1);
            let Index { child, .. } = node.index(slot, &self.bounds()).expect("sound");
            block = Some(child);
            node = Node::parse(&self.nodes[&child]).expect("sound");
        }
        block
    }
}

impl NodeStore for MemoryStore {
    fn bounds(&self) -> Bounds {
        Bounds {
            first: BlockNumber(1),
            end: BlockNumber(FIRST_NODE + LOGICAL_END),
        }
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let bytes = self.nodes.get(&block).ok_or_else(|| self.absent(block))?;
        check_node(bytes, depth, &self.bounds())?;
        look(bytes)
    }

    fn edit<R>(&mut self, block: BlockNumber, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.changes += 1;
        if !self.nodes.contains_key(&block) {
            return Err(self.absent(block).into());
        }
        Ok(change(
            self.nodes.get_mut(&block).expect("seen the line before"),
        ))
    }

    fn reserve(&mut self, nodes: u32) -> Result<()> {
        if nodes > self.space {
            return Err(Refusal::NoSpace.into());
        }
        self.reserved = self.reserved.max(nodes);
        self.most_reserved = self.most_reserved.max(nodes);
        Ok(())
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        self.changes += 1;
        self.reserved = self
            .reserved
            .checked_sub(1)
            .expect("the operation reserved enough");
        let block = BlockNumber(self.next);
        self.next += 1;
        self.nodes.insert(block, vec![0; self.block_size]);
        Ok(block)
    }

    fn free(&mut self, block: BlockNumber) -> Result<()> {
        self.changes += 1;
        self.nodes
            .remove(&block)
            .ok_or_else(|| self.absent(block))?;
        Ok(())
    }
}
