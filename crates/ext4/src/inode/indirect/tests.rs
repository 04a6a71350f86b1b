//! Block maps in memory: compared with a plain map under random changes, and at the limits of their
//! levels.

use std::collections::{BTreeMap, BTreeSet};

use pext4_ondisk::extent::Bounds;
use pext4_ondisk::indirect::{DIRECT, entry, set_entry};
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use super::{
    Extent, Hole, Limit, Mapping, NodeStore, Root, end_of_damage, insert, largest_size, lookup,
    remove, room, root_runs,
};
use crate::error::{Error, Refusal, Result};

/// Small blocks, so that maps are deep soon: 16 pointers each.
const BLOCK: usize = 64;
const FAN_OUT: u64 = 16;
/// Pointer blocks are from here on, data below.
const FIRST_NODE: u64 = 1 << 30;
const ALL: Limit = Limit {
    entries: u32::MAX,
    blocks: u64::MAX,
};

#[derive(Default)]
struct Memory {
    nodes: BTreeMap<BlockNumber, Vec<u8>>,
    made: u64,
    reserved: u32,
    space: u32,
}

impl NodeStore for Memory {
    fn bounds(&self) -> Bounds {
        Bounds {
            first: BlockNumber(1),
            end: BlockNumber(1 << 32),
        }
    }

    fn block_size(&self) -> usize {
        BLOCK
    }

    fn read<R>(
        &self,
        block: BlockNumber,
        _: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        match self.nodes.get(&block) {
            Some(page) => look(page),
            None => Err(Corrupt::new("test", "is no pointer block").into()),
        }
    }

    fn edit<R>(&mut self, block: BlockNumber, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Ok(change(self.nodes.get_mut(&block).expect("a pointer block")))
    }

    fn reserve(&mut self, nodes: u32) -> Result<()> {
        if nodes > self.space {
            return Err(Refusal::NoSpace.into());
        }
        self.reserved = nodes;
        Ok(())
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        self.reserved = self.reserved.checked_sub(1).expect("it was reserved");
        self.made += 1;
        let block = BlockNumber(FIRST_NODE + self.made);
        self.nodes.insert(block, vec![0; BLOCK]);
        Ok(block)
    }

    fn free(&mut self, block: BlockNumber) -> Result<()> {
        self.nodes.remove(&block).expect("it was in use");
        Ok(())
    }
}

fn memory() -> (Root, Memory) {
    let memory = Memory {
        space: u32::MAX,
        ..Memory::default()
    };
    ([0; 60], memory)
}

fn extent(logical: u64, start: u64, length: u32) -> Extent {
    Extent {
        logical: LogicalBlock(u32::try_from(logical).expect("small")),
        start: BlockNumber(start),
        length,
        unwritten: false,
    }
}

fn at(root: &Root, memory: &Memory, logical: u64) -> Option<u64> {
    match look(root, memory, logical) {
        Mapping::Mapped(extent) => Some(extent.start.get()),
        Mapping::Hole(_) => None,
    }
}

fn look(root: &Root, memory: &Memory, logical: u64) -> Mapping {
    let logical = LogicalBlock(u32::try_from(logical).expect("small"));
    lookup(root, memory, logical).expect("a sound map")
}

#[test]
fn levels_begin_where_the_format_says() {
    let (mut root, mut memory) = memory();
    let ends = [0, 12, 12 + 16, 12 + 16 + 256, 12 + 16 + 256 + 4096 - 1];
    for (number, logical) in (1..).zip(ends) {
        insert(&mut root, &mut memory, extent(logical, number * 10, 1)).expect("room");
        assert_eq!(at(&root, &memory, logical), Some(number * 10));
    }
    assert_eq!(
        memory.nodes.len(),
        1 + 2 + 3 + 2,
        "of three levels, with two leaves"
    );
    assert!(matches!(
        look(&root, &memory, 1),
        Mapping::Hole(Hole { length: 11, .. })
    ));
    assert!(matches!(
        look(&root, &memory, 13),
        Mapping::Hole(Hole { length: 15, .. })
    ));
    assert!(matches!(
        look(&root, &memory, 44),
        Mapping::Hole(Hole { length: 240, .. })
    ));
    assert!(matches!(look(&root, &memory, 4379), Mapping::Mapped(_)));
    let Mapping::Hole(Hole { length, .. }) = look(&root, &memory, 4380) else {
        panic!("past the map is a hole");
    };
    assert_eq!(u64::from(length), (1 << 32) - 4380);
    let error = insert(&mut root, &mut memory, extent(4380, 99, 1)).expect_err("past the map");
    assert!(error.is(Refusal::FileTooLarge));
    assert_eq!(room(LogicalBlock(3), 64), Some(9));
    assert_eq!(room(LogicalBlock(30), 64), Some(14));
    assert_eq!(room(LogicalBlock(4380), 64), None);
    let left = remove(&mut root, &mut memory, 0..u64::MAX, ALL, &mut Vec::new());
    assert_eq!(left.expect("sound"), None);
    assert!(memory.nodes.is_empty() && root == [0; 60]);
}

/// So a walk passes few holes, and one that passes many is in a damaged map.
#[test]
fn a_walk_passes_fewer_holes_than_twice_the_blocks() {
    let (mut root, mut memory) = memory();
    let first = 12 + 16 + 256;
    for piece in 0..8 {
        let run = extent(first + piece * 512, 10 + piece * 10, 1);
        insert(&mut root, &mut memory, run).expect("room");
    }
    let blocks = 8 + memory.nodes.len();
    let (mut logical, mut holes) = (0, 0);
    while logical < first + 4096 {
        logical += match look(&root, &memory, logical) {
            Mapping::Mapped(extent) => u64::from(extent.length),
            Mapping::Hole(Hole { length, .. }) => {
                holes += 1;
                u64::from(length)
            }
        };
    }
    assert!(holes <= 2 * blocks, "{holes} holes, {blocks} blocks");
}

#[test]
fn a_full_disk_changes_nothing() {
    let (mut root, mut memory) = memory();
    memory.space = 2;
    let error = insert(&mut root, &mut memory, extent(300, 5, 1)).expect_err("it needs three");
    assert!(error.is(Refusal::NoSpace));
    assert!(memory.nodes.is_empty() && root == [0; 60]);
    insert(&mut root, &mut memory, extent(30, 5, 4)).expect("two are enough");
    let beyond = extent(0, u64::from(u32::MAX) - 1, 3);
    let error = insert(&mut root, &mut memory, beyond).expect_err("wider than a pointer");
    assert!(error.is(Refusal::NoSpace));
}

#[test]
fn what_cannot_be_is_corrupt() {
    let (mut root, mut memory) = memory();
    insert(&mut root, &mut memory, extent(20, 50, 2)).expect("room");
    let twice = insert(&mut root, &mut memory, extent(19, 70, 2));
    assert!(matches!(twice, Err(Error::Corrupt(_))));
    // A pointer block that points to itself, and a pointer outside the file system.
    let node = *memory.nodes.keys().next().expect("one");
    let pointer = u32::try_from(node.get()).expect("small");
    set_entry(&mut root, DIRECT + 2, pointer);
    memory
        .edit(node, |page| set_entry(page, 3, pointer))
        .expect("there");
    let mut freed = Vec::new();
    let limit = Limit {
        entries: 8,
        blocks: u64::MAX,
    };
    let _ = remove(
        &mut root.clone(),
        &mut clone(&memory),
        284..u64::MAX,
        limit,
        &mut freed,
    );
    let narrow = |memory: &Memory| Narrow(clone(memory));
    let lost = lookup(&root, &narrow(&memory), LogicalBlock(20));
    assert!(matches!(lost, Err(Error::Corrupt(_))));
    let mut narrow = narrow(&memory);
    let lost = remove(&mut root, &mut narrow, 0..100, ALL, &mut freed);
    assert!(matches!(lost, Err(Error::Corrupt(_))));
}

/// Removes each pointer block in turn, and walks through the map as one who passes what is damaged.
#[test]
fn damage_ends_where_the_next_pointer_block_begins() {
    let (mut root, mut memory) = memory();
    for logical in [0, 13, 30, 45, 61, 290, 310, 600, 4000] {
        insert(&mut root, &mut memory, extent(logical, 1000 + logical, 1)).expect("room");
    }
    for node in memory.nodes.keys() {
        let mut damaged = clone(&memory);
        damaged.nodes.remove(node);
        let is_lost = |logical: &u64| {
            let logical = LogicalBlock(u32::try_from(*logical).expect("small"));
            lookup(&root, &damaged, logical).is_err()
        };
        let (mut logical, mut passed) = (0, 0);
        while logical < 5000 {
            if !is_lost(&logical) {
                logical += 1;
                continue;
            }
            let lost = LogicalBlock(u32::try_from(logical).expect("small"));
            let end = end_of_damage(&root, &damaged, lost);
            assert!(
                (logical..end).all(|logical| is_lost(&logical)),
                "up to {end}"
            );
            (logical, passed) = (end, passed + 1);
        }
        assert_eq!(passed, 1, "a pointer block has one place");
    }
    // A pointer that leads out of the file system, to all of a level.
    let narrow = Narrow(memory);
    assert!(lookup(&root, &narrow, LogicalBlock(17)).is_err());
    assert_eq!(end_of_damage(&root, &narrow, LogicalBlock(17)), 28);
}

fn clone(memory: &Memory) -> Memory {
    Memory {
        nodes: memory.nodes.clone(),
        ..*memory
    }
}

/// A smaller file system.
struct Narrow(Memory);

impl NodeStore for Narrow {
    fn bounds(&self) -> Bounds {
        Bounds {
            first: BlockNumber(1),
            end: BlockNumber(40),
        }
    }

    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn read<R>(
        &self,
        block: BlockNumber,
        depth: u16,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        self.0.read(block, depth, look)
    }

    fn edit<R>(&mut self, block: BlockNumber, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.0.edit(block, change)
    }

    fn reserve(&mut self, nodes: u32) -> Result<()> {
        self.0.reserve(nodes)
    }

    fn allocate(&mut self) -> Result<BlockNumber> {
        self.0.allocate()
    }

    fn free(&mut self, block: BlockNumber) -> Result<()> {
        self.0.free(block)
    }
}

#[test]
fn agrees_with_a_plain_map() {
    let seed = 11;
    println!("seed {seed}");
    let mut state: u64 = seed;
    let mut below = |end: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let (mut root, mut memory) = memory();
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 1;
    let mut steps = 0;
    for _ in 0..6000 {
        let reach = if below(3) == 0 { 4380 } else { 60 };
        let start = below(reach);
        if below(3) == 0 {
            let range = start..start + 1 + below(400);
            let mut end = Some(range.end);
            while let Some(until) = end {
                let limit = Limit {
                    entries: 1 + u32::try_from(below(5)).expect("small"),
                    blocks: 1 + below(20),
                };
                let mut freed = Vec::new();
                let range = range.start..until;
                let left = remove(&mut root, &mut memory, range.clone(), limit, &mut freed);
                end = left.expect("sound");
                assert!(end.is_none_or(|end| end < until || freed.is_empty()));
                assert!(freed.len() <= limit.entries as usize);
                let mut gone: BTreeSet<u64> = freed
                    .iter()
                    .flat_map(|&(start, length)| start.get()..start.get() + u64::from(length))
                    .collect();
                assert!(gone.len() as u64 <= limit.blocks);
                let cut = end.unwrap_or(range.start);
                model.retain(|logical, block| {
                    !(cut..until).contains(logical) || !gone.remove(block)
                });
                assert!(
                    model.range(cut..until).next().is_none(),
                    "all of it is gone"
                );
                assert!(gone.is_empty(), "nothing else was freed");
                steps += 1;
            }
        } else {
            let logical = LogicalBlock(u32::try_from(start).expect("small"));
            let most = u64::from(room(logical, BLOCK as u32).expect("inside"));
            let free = (start..start + most.min(1 + below(9)))
                .take_while(|logical| !model.contains_key(logical))
                .count() as u64;
            if free > 0 {
                next += below(2);
                let run = extent(start, next, u32::try_from(free).expect("small"));
                insert(&mut root, &mut memory, run).expect("room");
                model.extend((start..start + free).zip(next..));
                next += free;
            }
        }
        check(&root, &memory, &model, below(4380));
    }
    assert!(steps > 3000 && memory.made > 500);
}

/// Checks that lookups return what the model contains, and no more, and that no pointer block is
/// empty.
fn check(root: &Root, memory: &Memory, model: &BTreeMap<u64, u64>, logical: u64) {
    let expected = model.get(&logical).copied();
    match look(root, memory, logical) {
        Mapping::Mapped(found) => {
            for step in 0..u64::from(found.length) {
                let block = model.get(&(logical + step)).copied();
                assert_eq!(block, Some(found.start.get() + step));
            }
        }
        Mapping::Hole(Hole { length, .. }) => {
            assert_eq!(expected, None);
            let end = logical + u64::from(length);
            assert!(model.range(logical..end).next().is_none());
        }
    }
    let used = |page: &Vec<u8>| (0..FAN_OUT as usize).any(|index| entry(page, index) != 0);
    assert!(memory.nodes.values().all(used));
}

#[test]
fn runs_of_a_map_in_the_inode_are_counted() {
    let (mut root, _) = memory();
    assert_eq!(root_runs(&root), Some(0));
    for (slot, block) in [(0, 7), (1, 8), (3, 9), (4, 20), (11, 19), (10, u32::MAX)] {
        set_entry(&mut root, slot, block);
    }
    assert_eq!(root_runs(&root), Some(4));
    set_entry(&mut root, DIRECT + 1, 5);
    assert_eq!(root_runs(&root), None);
}

#[test]
fn the_largest_file_is_what_map_and_count_allow() {
    assert_eq!(
        largest_size(1024, false),
        1024 * (12 + 256 + 65536 + 16_777_216)
    );
    assert_eq!(
        largest_size(4096, true),
        4096 * (12 + 1024 + (1 << 20) + (1 << 30))
    );
    // As Linux has it.
    assert_eq!(largest_size(4096, false), 2_196_873_666_560);
}
