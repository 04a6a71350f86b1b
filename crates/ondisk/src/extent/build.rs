//! Builds a whole extent tree of minimal height from the runs of blocks of a file.
//!
//! Every node except the last of its level is full. The caller provides the blocks for nodes,
//! lowest level first, in the order of the file.

use super::{ENTRY_SIZE, EntryBytes, Extent, Index, MAX_DEPTH, ROOT_SIZE, capacity, write_node};
use crate::checksum::InodeSeed;
use crate::number::{BlockNumber, LogicalBlock};

/// Number of entries in the root.
const ROOT_CAPACITY: usize = (ROOT_SIZE - super::HEADER_SIZE) / ENTRY_SIZE;

/// A run of blocks of a file, like an extent but of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block in the file.
    pub logical: LogicalBlock,
    /// The first block on the device.
    pub start: BlockNumber,
    /// Number of blocks.
    pub length: u32,
    /// Allocated but never written.
    pub unwritten: bool,
}

/// A tree; its nodes have no checksums yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The root, for the inode's `i_block`.
    pub root: [u8; ROOT_SIZE],
    /// The nodes below the root, each with its block.
    pub nodes: Vec<(BlockNumber, Vec<u8>)>,
}

impl Built {
    /// Stores the checksum of every node.
    pub fn stamp(&mut self, seed: InodeSeed) {
        for (_, node) in &mut self.nodes {
            super::stamp_node(seed, node);
        }
    }
}

/// The extents for the runs of a file: runs that are too long are divided, a run that continues the
/// one before is joined. `None` if a run is empty, overlaps the one before or reaches beyond the
/// last logical block.
#[must_use]
pub fn extents_of(runs: &[Run]) -> Option<Vec<Extent>> {
    let mut extents: Vec<Extent> = Vec::new();
    for run in runs {
        let behind = extents.last().map_or(0, Extent::end);
        if run.length == 0 || u64::from(run.logical.get()) < behind {
            return None;
        }
        let mut done = 0;
        while done < run.length {
            let piece = Extent {
                logical: run.logical.checked_add(done)?,
                start: run.start.checked_add(done)?,
                length: 1,
                unwritten: run.unwritten,
            };
            let length = piece.limit().min(run.length - done);
            push(&mut extents, Extent { length, ..piece })?;
            done += length;
        }
    }
    Some(extents)
}

fn push(extents: &mut Vec<Extent>, extent: Extent) -> Option<()> {
    if !extent.is_valid() {
        return None;
    }
    match extents
        .last_mut()
        .and_then(|last| Some((last.joined(&extent)?, last)))
    {
        Some((joined, last)) => *last = joined,
        None => extents.push(extent),
    }
    Some(())
}

/// Number of blocks for the nodes below the root, for `extents` extents.
#[must_use]
pub fn nodes_needed(extents: usize, block_size: usize) -> usize {
    let room = capacity(block_size).max(2);
    let (mut nodes, mut width) = (0, extents);
    while width > ROOT_CAPACITY {
        width = width.div_ceil(room);
        nodes += width;
    }
    nodes
}

/// Builds a tree of extents that are in order. `allocate` returns a block for each of the
/// [`nodes_needed`]; `None` if it does not, or if the tree would be too high.
///
/// # Panics
///
/// If the block size is below 1024.
#[must_use]
pub fn build(
    extents: &[Extent],
    block_size: usize,
    mut allocate: impl FnMut() -> Option<BlockNumber>,
) -> Option<Built> {
    assert!(block_size >= 1024, "the smallest block has 1024 bytes");
    let mut level: Vec<EntryBytes> = extents.iter().map(Extent::encode).collect();
    let (mut nodes, mut depth) = (Vec::new(), 0);
    while level.len() > ROOT_CAPACITY {
        let mut above = Vec::new();
        for entries in level.chunks(capacity(block_size)) {
            let child = allocate()?;
            let mut bytes = vec![0; block_size];
            write_node(&mut bytes, depth, entries);
            above.push(
                Index {
                    logical: Index::decode(&entries[0]).logical,
                    child,
                }
                .encode(),
            );
            nodes.push((child, bytes));
        }
        level = above;
        depth += 1;
    }
    if depth > MAX_DEPTH {
        return None;
    }
    let mut root = [0; ROOT_SIZE];
    write_node(&mut root, depth, &level);
    Some(Built { root, nodes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Bounds, Node};
    use super::*;

    const BOUNDS: Bounds = Bounds {
        first: BlockNumber(1),
        end: BlockNumber(1 << 40),
    };

    fn run(logical: u32, start: u64, length: u32, unwritten: bool) -> Run {
        Run {
            logical: LogicalBlock(logical),
            start: BlockNumber(start),
            length,
            unwritten,
        }
    }

    /// The extents below a node, each level checked.
    fn walk(built: &Built, bytes: &[u8]) -> Vec<Extent> {
        let node = Node::parse(bytes).expect("sound");
        node.check_entries(&BOUNDS).expect("sound");
        let mut extents = Vec::new();
        for slot in 0..node.len() {
            if node.depth() == 0 {
                extents.push(node.extent(slot, &BOUNDS).expect("sound"));
                continue;
            }
            let Index { child, logical } = node.index(slot, &BOUNDS).expect("sound");
            let (_, below) = built
                .nodes
                .iter()
                .find(|(block, _)| *block == child)
                .expect("a child");
            let own = Node::parse(below).expect("sound");
            assert_eq!((own.depth() + 1, own.logical(0)), (node.depth(), logical));
            extents.extend(walk(built, below));
        }
        extents
    }

    #[test]
    fn long_runs_are_cut_and_neighbours_joined() {
        let extents = extents_of(&[
            run(0, 100, 40000, false),
            run(40000, 40100, 5, false),
            run(50000, 90000, 40000, true),
        ]);
        let lengths: Option<Vec<(u32, u32)>> = extents.map(|list| {
            list.iter()
                .map(|extent| (extent.logical.get(), extent.length))
                .collect()
        });
        let expected = vec![(0, 32768), (32768, 7237), (50000, 32767), (82767, 7233)];
        assert_eq!(lengths, Some(expected));
    }

    #[test]
    fn impossible_runs_are_refused() {
        assert_eq!(extents_of(&[run(0, 100, 0, false)]), None);
        assert_eq!(
            extents_of(&[run(5, 100, 5, false), run(9, 200, 1, false)]),
            None
        );
        assert_eq!(extents_of(&[run(u32::MAX, 100, 1, false)]), None);
        assert_eq!(extents_of(&[run(0, (1 << 48) - 1, 2, false)]), None);
    }

    proptest! {
        #[test]
        fn every_extent_is_found_again(count in 0usize..3000, power in 10u32..13) {
            let extents: Vec<Extent> = (0..count)
                .map(|i| {
                    let i = u32::try_from(i).expect("small");
                    let start = BlockNumber(1000 + 3 * u64::from(i));
                    let logical = LogicalBlock(i * 2);
                    Extent { logical, start, length: 1, unwritten: i % 7 == 0 }
                })
                .collect();
            let block_size = 1 << power;
            let mut next = 1_000_000;
            let allocate = || {
                next += 1;
                Some(BlockNumber(next))
            };
            let built = build(&extents, block_size, allocate).expect("low enough");
            prop_assert_eq!(built.nodes.len(), nodes_needed(count, block_size));
            prop_assert_eq!(walk(&built, &built.root), extents);
        }
    }
}
