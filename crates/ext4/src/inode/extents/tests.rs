//! Compares the tree with a plain map of blocks under random operations; and tests special shapes.

use fastrand::Rng;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use pext4_ondisk::extent::{self, Node, ROOT_SIZE, empty_root};

use super::memory::{FIRST_NODE, MemoryStore};
use super::*;
use crate::error::{Error, Refusal};

/// Nodes with room for four entries: trees get deep with few extents.
const TINY: usize = 12 + 4 * 12 + 4;

fn extent(logical: u32, start: u64, length: u32, unwritten: bool) -> Extent {
    Extent {
        logical: LogicalBlock(logical),
        start: BlockNumber(start),
        length,
        unwritten,
    }
}

/// A tree and its model: for each mapped block, its location and whether it is unwritten.
struct Case {
    root: [u8; ROOT_SIZE],
    store: MemoryStore,
    model: BTreeMap<u32, (u64, bool)>,
}

impl Case {
    fn new(block_size: usize) -> Self {
        Self {
            root: empty_root(),
            store: MemoryStore::new(block_size),
            model: BTreeMap::new(),
        }
    }

    /// Maximum number of nodes that an operation that splits this many leaves may reserve: one per
    /// level for each of them, one for a new level, and with tiny nodes one for a split there.
    fn most_nodes(&self, leaves: u32) -> u32 {
        let depth = u32::from(Node::parse(&self.root).expect("sound").depth());
        leaves * depth + 1 + u32::from(self.store.block_size() == TINY)
    }

    fn insert(&mut self, extent: Extent) {
        let needed = self.most_nodes(1);
        insert(&mut self.root, &mut self.store, extent).expect("there is a hole");
        assert!(
            self.store.most_reserved <= needed,
            "more nodes than the path has levels"
        );
        self.store.end_operation();
        for step in 0..extent.length {
            let to = (extent.start.get() + u64::from(step), extent.unwritten);
            assert_eq!(self.model.insert(extent.logical.get() + step, to), None);
        }
    }

    fn convert(&mut self, logical: u32, length: u32, state: BlockState) {
        let needed = self.most_nodes(2);
        convert(
            &mut self.root,
            &mut self.store,
            LogicalBlock(logical),
            length,
            state,
        )
        .expect("there is space");
        assert!(
            self.store.most_reserved <= needed,
            "more nodes than the path has levels"
        );
        self.store.end_operation();
        for (_, to) in self.model.range_mut(logical..logical + length) {
            to.1 = state == BlockState::Unwritten;
        }
    }

    /// Removes a range in as many calls as the budget requires.
    fn remove(&mut self, range: Range<u32>, budget: u32) {
        let mut freed = Vec::new();
        let mut rest = u64::from(range.start)..u64::from(range.end);
        loop {
            let needed = self.most_nodes(1);
            let left = remove(
                &mut self.root,
                &mut self.store,
                rest.clone(),
                budget,
                &mut |start, length| freed.extend((0..u64::from(length)).map(|i| start.get() + i)),
            )
            .expect("there is space");
            assert!(
                self.store.most_reserved <= needed,
                "more nodes than the path has levels"
            );
            self.store.end_operation();
            let Some(end) = left else { break };
            assert!(end < rest.end, "progress");
            rest.end = end;
            self.store.check(&self.root);
        }
        let mut expected = Vec::new();
        for logical in range {
            expected.extend(self.model.remove(&logical).map(|(block, _)| block));
        }
        freed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(freed, expected, "exactly the unmapped blocks are told");
    }

    /// Checks the tree's invariants and that it maps what the model maps.
    fn check(&self) {
        let extents = self.store.check(&self.root);
        let mut mapped = BTreeMap::new();
        for extent in &extents {
            for step in 0..extent.length {
                let to = (extent.start.get() + u64::from(step), extent.unwritten);
                mapped.insert(extent.logical.get() + step, to);
            }
        }
        assert_eq!(mapped, self.model);
    }

    fn check_lookup(&self, logical: u32) {
        let found = lookup(&self.root, &self.store, LogicalBlock(logical)).expect("sound");
        match (found, self.model.get(&logical)) {
            (Mapping::Mapped(extent), Some(&(block, unwritten))) => {
                let into = u64::from(logical - extent.logical.get());
                assert!(extent.covers(LogicalBlock(logical)));
                assert_eq!(
                    (extent.start.get() + into, extent.unwritten),
                    (block, unwritten)
                );
            }
            (Mapping::Hole(hole), None) => {
                assert_eq!(hole.logical, LogicalBlock(logical));
                let next = self.model.range(logical..).next();
                let end = next.map_or(1 << 32, |(&next, _)| u64::from(next));
                let expected = u32::try_from(end - u64::from(logical)).unwrap_or(u32::MAX);
                assert_eq!(hole.length, expected, "up to the next extent");
                self.check_neighbours(&hole);
            }
            (found, expected) => panic!("{logical}: {found:?}, expected {expected:?}"),
        }
    }

    /// The extents around a hole are the next ones, or another leaf has those.
    fn check_neighbours(&self, hole: &Hole) {
        let logical = hole.logical.get();
        let before = self.model.range(..logical).next_back();
        let after = self.model.range(logical..).next();
        let edge = |at: u64, start: u64| Some((at, start));
        let ends = hole.before.map(|extent| {
            let last = extent.start.get() + u64::from(extent.length) - 1;
            (extent.end() - 1, last)
        });
        let begins = hole
            .after
            .map(|extent| (u64::from(extent.logical.get()), extent.start.get()));
        for (found, expected) in [(ends, before), (begins, after)] {
            let expected = expected.and_then(|(&at, &(block, _))| edge(u64::from(at), block));
            let is_in_root = Node::parse(&self.root).expect("sound").depth() == 0;
            assert!(
                found == expected || (found.is_none() && !is_in_root),
                "{hole:?}"
            );
        }
    }

    fn check_walk(&self, range: Range<u32>) {
        let mut walked = Vec::new();
        let bounds = u64::from(range.start)..u64::from(range.end);
        walk(&self.root, &self.store, bounds, &mut |extent| {
            walked.push(extent);
            ControlFlow::Continue(())
        })
        .expect("sound");
        let inside = |extent: &Extent| {
            extent
                .part(u64::from(range.start), u64::from(range.end))
                .is_some()
        };
        let expected: Vec<_> = self
            .store
            .check(&self.root)
            .into_iter()
            .filter(inside)
            .collect();
        assert_eq!(walked, expected);
    }
}

/// The location of a random extent's blocks: each part of the device belongs to one part of the
/// file, so that neighbours are often contiguous in both.
fn random_extent(random: &mut Rng, case: &Case, span: u32) -> Option<Extent> {
    let logical = random.u32(..span);
    if case.model.contains_key(&logical) {
        return None;
    }
    let hole = case
        .model
        .range(logical..)
        .next()
        .map_or(span, |(&next, _)| next)
        - logical;
    let length = 1 + random.u32(..hole.min(12));
    let zone = if random.u32(..3) == 0 {
        1 + random.u32(..7)
    } else {
        0
    };
    let start = 100 + u64::from(zone) * 1_000_000 + u64::from(logical);
    Some(extent(logical, start, length, random.u32(..2) == 0))
}

fn random_range(random: &mut Rng, span: u32, most: u32) -> Range<u32> {
    let start = random.u32(..span);
    start..(start + 1 + random.u32(..most)).min(span)
}

fn run(seed: u64, block_size: usize, span: u32, steps: u32) -> u16 {
    println!("seed {seed}, nodes of {block_size} bytes");
    let mut random = Rng::with_seed(seed);
    let mut case = Case::new(block_size);
    let mut deepest = 0;
    for step in 0..steps {
        let growing = (step / 200) % 2 == 0;
        match random.u32(..10) {
            0..6 if growing => {
                if let Some(extent) = random_extent(&mut random, &case, span) {
                    case.insert(extent);
                }
            }
            0..4 => {
                let range = random_range(&mut random, span, 16);
                case.remove(range, 1 + random.u32(..8));
            }
            9 if random.u32(..20) == 0 => {
                let start = random.u32(..span);
                case.remove(start..span, 1 + random.u32(..40));
            }
            _ => {
                let range = random_range(&mut random, span, 24);
                let state = match random.u32(..3) {
                    0 => BlockState::Unwritten,
                    _ => BlockState::Written,
                };
                case.convert(range.start, range.end - range.start, state);
            }
        }
        case.check();
        for _ in 0..4 {
            case.check_lookup(random.u32(..span + 10));
        }
        let range = random_range(&mut random, span, 60);
        case.check_walk(range);
        deepest = deepest.max(Node::parse(&case.root).expect("sound").depth());
    }
    case.remove(0..span, 5);
    assert_eq!(case.root, empty_root(), "nothing is left but an empty root");
    assert!(case.store.nodes.is_empty());
    deepest
}

#[test]
fn agrees_with_a_plain_map_with_tiny_nodes() {
    for seed in 1..=12 {
        let deepest = run(seed, TINY, 600, 1500);
        assert!(
            deepest >= 3,
            "the trees of seed {seed} were too flat: {deepest}"
        );
    }
}

#[test]
fn agrees_with_a_plain_map_with_blocks() {
    for seed in 100..=103 {
        let deepest = run(seed, 1024, 4000, 1200);
        assert!(deepest >= 1, "the trees of seed {seed} were too flat");
    }
    run(200, 4096, 6000, 800);
}

/// A tree of single blocks with holes between, in the order of `logicals`.
fn scattered(block_size: usize, logicals: impl IntoIterator<Item = u32>) -> Case {
    let mut case = Case::new(block_size);
    for logical in logicals {
        case.insert(extent(logical, 1000 + u64::from(logical), 1, false));
    }
    case
}

#[test]
fn files_written_in_order_have_full_nodes() {
    let case = scattered(1024, (0..84 * 10).map(|i| i * 2));
    case.check();
    assert_eq!(
        case.store.nodes.len(),
        11,
        "ten full leaves and a node above them"
    );
}

/// As when several threads write back what one process wrote in order.
#[test]
fn files_written_nearly_in_order_have_nearly_full_nodes() {
    // Runs of so many are reversed. A leaf, which holds 84, ends at the end of one, or inside it.
    for run in [4, 5] {
        let reversed = |i: u32| (i / run * run + run - 1 - i % run) * 2;
        let case = scattered(1024, (0..84 * 10).map(reversed));
        case.check();
        let nodes = case.store.nodes.len();
        assert!(nodes <= 12, "{nodes} with runs of {run}");
    }
}

#[test]
fn files_written_backwards_keep_their_keys() {
    let case = scattered(TINY, (0..100).rev().map(|i| i * 2));
    case.check();
}

#[test]
fn neighbours_become_one_extent_up_to_the_limit() {
    let mut case = Case::new(1024);
    for (logical, length) in [(0, 100), (200, 100), (100, 100)] {
        case.insert(extent(logical, 5000 + u64::from(logical), length, false));
    }
    assert_eq!(case.store.check(&case.root), [extent(0, 5000, 300, false)]);
    case.insert(extent(300, 5300, 32468, false));
    case.insert(extent(32768, 5000 + 32768, 1, false));
    assert_eq!(
        case.store.check(&case.root).len(),
        2,
        "32768 blocks are the most"
    );
}

#[test]
fn converting_the_head_of_a_preallocation_moves_the_border() {
    use BlockState::Written;
    let mut case = Case::new(1024);
    case.insert(extent(0, 1000, 1000, true));
    for logical in 0..10 {
        case.convert(logical, 1, Written);
    }
    let expected = [extent(0, 1000, 10, false), extent(10, 1010, 990, true)];
    assert_eq!(case.store.check(&case.root), expected);
    case.convert(500, 5, Written);
    assert_eq!(case.store.check(&case.root).len(), 4);
    case.convert(0, 1000, Written);
    assert_eq!(case.store.check(&case.root), [extent(0, 1000, 1000, false)]);
}

/// As many extents as the root cannot hold, which one more block makes one.
#[test]
fn extents_that_merge_return_to_the_root() {
    let depth = |case: &Case| Node::parse(&case.root).expect("sound").depth();
    let mut case = Case::new(1024);
    for number in 0..5 {
        case.insert(extent(2 * number, u64::from(1000 + 2 * number), 1, false));
    }
    assert_eq!(depth(&case), 1);
    case.insert(extent(1, 1001, 1, false));
    assert_eq!(
        (depth(&case), case.store.nodes.len()),
        (0, 0),
        "four are left"
    );
    case.check();
    let mut case = Case::new(1024);
    case.insert(extent(0, 1000, 5, true));
    for number in [1, 3] {
        case.convert(number, 1, BlockState::Written);
    }
    assert_eq!(depth(&case), 1);
    case.convert(2, 1, BlockState::Written);
    assert_eq!(
        (depth(&case), case.store.nodes.len()),
        (0, 0),
        "three are left"
    );
    case.check();
}

#[test]
fn converting_beside_a_damaged_leaf_changes_nothing() {
    let mut case = Case::new(TINY);
    for logical in (0..100).step_by(2) {
        case.insert(extent(logical, 5000 + u64::from(logical), 1, true));
    }
    let damaged = case.store.leaf_of(&case.root, LogicalBlock(90));
    let bytes = case.store.nodes.get_mut(&damaged.expect("not in the root"));
    bytes.expect("there")[0] ^= 1;
    let (root, nodes) = (case.root, case.store.nodes.clone());
    let whole = convert(
        &mut case.root,
        &mut case.store,
        LogicalBlock(0),
        100,
        BlockState::Written,
    );
    assert!(matches!(whole, Err(Error::Corrupt(_))), "{whole:?}");
    assert!(case.root == root && case.store.nodes == nodes);
    convert(
        &mut case.root,
        &mut case.store,
        LogicalBlock(0),
        50,
        BlockState::Written,
    )
    .expect("it ends before");
    assert!(case.store.nodes != nodes);
}

/// Damages each node in turn, and walks through the tree as one who passes what is damaged.
#[test]
fn damage_ends_where_the_next_node_begins() {
    let sound = scattered(TINY, (0..100).map(|i| i * 2));
    for &node in sound.store.nodes.keys() {
        let mut case = scattered(TINY, (0..100).map(|i| i * 2));
        case.store
            .nodes
            .get_mut(&node)
            .expect("it is there")
            .fill(0);
        let is_lost = |logical| {
            let looked_up = lookup(&case.root, &case.store, LogicalBlock(logical));
            looked_up.is_err()
        };
        let (mut logical, mut passed) = (0, 0);
        while logical < 250 {
            if !is_lost(logical) {
                logical += 1;
                continue;
            }
            let end = end_of_damage(&case.root, &case.store, LogicalBlock(logical));
            let end = u32::try_from(end.min(250)).expect("small");
            assert!((logical..end).all(is_lost), "up to {end}");
            (logical, passed) = (end, passed + 1);
        }
        assert_eq!(passed, 1, "a node has one place");
    }
}

#[test]
fn removing_the_first_extent_of_a_leaf_tells_all_ancestors() {
    let mut case = scattered(TINY, (0..200).map(|i| i * 2));
    assert!(Node::parse(&case.root).expect("sound").depth() >= 3);
    for logical in 0..150 {
        case.remove(logical * 2..logical * 2 + 1, 1);
        case.check();
    }
}

#[test]
fn holes_reach_across_leaves() {
    let mut case = scattered(TINY, (0..40).map(|i| i * 10));
    case.remove(55..295, 100);
    case.check();
    case.check_lookup(51);
    case.check_lookup(200);
    case.check_lookup(399);
}

#[test]
fn refuses_what_is_mapped_or_impossible() {
    let mut case = scattered(TINY, (0..20).map(|i| i * 10));
    let root = case.root;
    for bad in [
        extent(10, 9, 1, false),
        extent(5, 9, 6, false),
        extent(45, 9, 100, true),
    ] {
        let error = insert(&mut case.root, &mut case.store, bad).expect_err("mapped already");
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    }
    let beyond = extent(5, FIRST_NODE + u64::from(u32::MAX), 1, false);
    for bad in [extent(5, 9, 0, false), extent(5, 0, 1, false), beyond] {
        let error = insert(&mut case.root, &mut case.store, bad).expect_err("impossible");
        assert!(error.is(Refusal::Invalid), "{error}");
    }
    assert_eq!(case.root, root);
    case.check();
}

/// A change that may fail for lack of space.
type Attempt = fn(&mut [u8; ROOT_SIZE], &mut MemoryStore, u32) -> crate::error::Result<()>;

#[test]
fn without_space_nothing_changes() {
    let mut case = Case::new(TINY);
    for logical in 0..64 {
        case.insert(extent(
            logical * 20,
            1000 + u64::from(logical) * 20,
            10,
            true,
        ));
    }
    let attempts: [Attempt; 4] = [
        |root, store, base| insert(root, store, extent(base + 15, 9, 1, false)),
        |root, store, base| convert(root, store, LogicalBlock(base + 3), 3, BlockState::Written),
        |root, store, base| {
            convert(
                root,
                store,
                LogicalBlock(base + 15),
                50,
                BlockState::Written,
            )
        },
        |root, store, base| {
            let range = u64::from(base) + 3..u64::from(base) + 6;
            remove(root, store, range, 9, &mut |_, _| ()).map(drop)
        },
    ];
    for attempt in attempts {
        let mut refused = 0;
        for base in (0..40).map(|step| step * 20) {
            let (mut root, mut store) = (case.root, case.store.clone());
            store.space = 0;
            if let Err(error) = attempt(&mut root, &mut store, base) {
                assert!(error.is(Refusal::NoSpace), "{error}");
                assert_eq!(
                    store.changes, case.store.changes,
                    "not one node was touched"
                );
                assert_eq!(root, case.root);
                refused += 1;
            }
        }
        assert!(refused > 0, "some leaf is full");
    }
}

#[test]
fn the_tallest_tree_refuses_to_grow() {
    let mut case = scattered(TINY, (0..).map(|i| i * 2).take(2000));
    let mut logical = 4000;
    let refused = loop {
        let (root, changes) = (case.root, case.store.changes);
        match insert(
            &mut case.root,
            &mut case.store,
            extent(logical, 9, 1, false),
        ) {
            Ok(()) => logical += 2,
            Err(error) => {
                assert_eq!((root, changes), (case.root, case.store.changes));
                break error;
            }
        }
        assert!(logical < 20_000, "4^6 entries are the most");
    };
    assert!(refused.is(Refusal::FileTooLarge), "{refused}");
    assert_eq!(case.store.check(&case.root).len(), 4096);
}

/// Runs every operation on a tree that may be corrupt. The results do not matter, only that each
/// returns.
fn try_everything(case: &Case) {
    let (root, store) = (&case.root, &case.store);
    for logical in (0..500).step_by(7) {
        let _ = lookup(root, store, LogicalBlock(logical));
    }
    let _ = walk(root, store, 0..u64::MAX, &mut |_| ControlFlow::Continue(()));
    for change in 0..4 {
        let (mut root, mut store) = (case.root, case.store.clone());
        let _ = match change {
            0 => insert(&mut root, &mut store, extent(101, 9, 1, false)),
            1 => convert(
                &mut root,
                &mut store,
                LogicalBlock(33),
                200,
                BlockState::Written,
            ),
            2 => remove(&mut root, &mut store, 44..203, 1000, &mut |_, _| ()).map(drop),
            _ => remove(&mut root, &mut store, 0..u64::MAX, 1000, &mut |_, _| ()).map(drop),
        };
    }
}

#[test]
fn survives_any_byte_of_any_node() {
    let seed = 77;
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let whole = scattered(TINY, (0..200).map(|i| i * 2));
    let blocks: Vec<_> = whole.store.nodes.keys().copied().collect();
    for _ in 0..3000 {
        let mut case = Case {
            root: whole.root,
            store: whole.store.clone(),
            model: BTreeMap::new(),
        };
        case.store.tolerant = true;
        let pick = random.u32(..u32::try_from(blocks.len()).expect("few") + 1) as usize;
        let value = random.u64(..).to_le_bytes()[0];
        match blocks.get(pick) {
            Some(block) => {
                let at = random.u32(..TINY as u32) as usize;
                case.store.nodes.get_mut(block).expect("there")[at] = value;
            }
            None => case.root[random.u32(..60) as usize] = value,
        }
        try_everything(&case);
    }
}

#[test]
fn a_node_in_the_wrong_place_is_corrupt() {
    let case = scattered(TINY, (0..100).map(|i| i * 2));
    let depth = Node::parse(&case.root).expect("sound").depth();
    assert!(depth >= 2);
    let leaves = [LogicalBlock(10), LogicalBlock(150)].map(|logical| {
        case.store
            .leaf_of(&case.root, logical)
            .expect("not in the root")
    });
    let mut swapped = case.store.clone();
    let copy = swapped.nodes[&leaves[1]].clone();
    swapped.nodes.insert(leaves[0], copy);
    let error = lookup(&case.root, &swapped, LogicalBlock(10)).expect_err("another key");
    assert!(matches!(&error, Error::Corrupt(corrupt) if corrupt.block() == Some(leaves[0])));

    let mut reaching = case.store.clone();
    let bytes = reaching.nodes.get_mut(&leaves[0]).expect("there");
    let node = Node::parse(bytes).expect("sound");
    let last = node.len() - 1;
    let long = node.extent(last, &reaching_bounds()).expect("sound");
    let entry = Extent {
        length: 100,
        ..long
    }
    .encode();
    extent::splice(bytes, last..last + 1, &[entry]).expect("as many as before");
    let error = lookup(&case.root, &reaching, LogicalBlock(10)).expect_err("reaches too far");
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
}

fn reaching_bounds() -> Bounds {
    MemoryStore::new(TINY).bounds()
}
