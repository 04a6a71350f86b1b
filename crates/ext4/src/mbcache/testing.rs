//! Blocks that are found, referenced, released and changed as by the file system, without the rest
//! of it.
//!
//! A freed block keeps its bytes, as on a disk: only the missing entry says that it must not be
//! used.

use pext4_ondisk::BlockNumber;
use pext4_ondisk::xattr::{self, Attribute, Block, Content};
use pext4_sync::{Class, Mutex, thread};

use super::{Counting, Leaving, SharedBlocks, Table, Taking, buckets, global, sharded, split};
use crate::options::AttributeCache;

/// Every setting with a table.
pub(super) const SETTINGS: [AttributeCache; 4] = [
    AttributeCache::Global,
    AttributeCache::Split,
    AttributeCache::Buckets,
    AttributeCache::Sharded,
];

/// Bytes in a block.
const SIZE: usize = 96;

/// A cache of its own, in which all entries collide.
pub(super) fn tiny(setting: AttributeCache) -> SharedBlocks {
    let table: Box<dyn Table> = match setting {
        AttributeCache::Off => unreachable!("it has no table"),
        AttributeCache::Global => Box::new(global::Volume::alone(4)),
        AttributeCache::Split => Box::new(split::Split::with_locks(4, 1, 1)),
        AttributeCache::Buckets => Box::new(buckets::Buckets::with_buckets(4, 1)),
        AttributeCache::Sharded => Box::new(sharded::Words::new(8)),
    };
    SharedBlocks::over(Some(table), Counting::InBlock)
}

/// One attribute in a block, which one inode uses.
pub(super) fn content(value: u8) -> Content {
    content_of(Attribute::new(1, b"a", &[value; 5]))
}

/// This attribute in a block.
pub(super) fn content_of(attribute: Attribute) -> Content {
    let block = Block {
        references: 1,
        attributes: vec![attribute],
    };
    block.content(SIZE).expect("it fits")
}

/// The block of a content.
pub(super) fn bytes_of(content: &Content) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    content.put_into(&mut bytes);
    bytes
}

/// A few blocks and their cache.
pub(super) struct Disk {
    pub cache: SharedBlocks,
    blocks: Vec<Mutex<State>>,
}

/// One block.
#[derive(Clone)]
pub(super) struct State {
    pub bytes: Vec<u8>,
    pub in_use: bool,
}

impl State {
    pub fn references(&self) -> u32 {
        xattr::references(&self.bytes).expect("a sound block")
    }
}

impl Disk {
    pub fn new(cache: SharedBlocks, count: usize) -> Self {
        let unused = State {
            bytes: vec![0; SIZE],
            in_use: false,
        };
        Self {
            cache,
            blocks: (0..count)
                .map(|_| Mutex::new(Class::Buffer, unused.clone()))
                .collect(),
        }
    }

    /// The content of a block now.
    pub fn state(&self, block: usize) -> State {
        self.blocks[block].lock().clone()
    }

    fn number(block: usize) -> BlockNumber {
        BlockNumber(block as u64 + 1)
    }

    /// Allocates a block.
    pub fn make(&self, block: usize, content: &Content) {
        let mut state = self.blocks[block].lock();
        assert!(!state.in_use, "a block has one life at a time");
        *state = State {
            bytes: bytes_of(content),
            in_use: true,
        };
        self.cache.insert(Self::number(block), &state.bytes);
    }

    /// A read by an owner, which inserts an entry.
    pub fn read(&self, block: usize) {
        let state = self.blocks[block].lock();
        assert!(state.in_use, "its owner reads it");
        self.cache.insert(Self::number(block), &state.bytes);
    }

    /// Shares a block of this content, if one is found.
    pub fn share(&self, content: &Content) -> Option<usize> {
        let mut next = self.cache.first(content);
        while let Some(candidate) = next {
            let block = usize::try_from(candidate.block().get() - 1).expect("small");
            let mut state = self.blocks[block].lock();
            if self.cache.judge_taking(&candidate, &state.bytes, content) == Taking::Take {
                assert!(state.in_use, "a block that was freed is not brought back");
                self.cache.take(&candidate, &mut state.bytes);
                return Some(block);
            }
            drop(state);
            next = self.cache.next(content, candidate);
        }
        None
    }

    /// Drops one reference; true if it was the last.
    pub fn leave(&self, block: usize) -> bool {
        loop {
            let mut state = self.blocks[block].lock();
            assert!(state.in_use, "its owner leaves it");
            let leaving = self
                .cache
                .judge_leaving(Self::number(block), &state.bytes)
                .expect("a sound block");
            match leaving {
                Leaving::Left => {
                    self.cache.leave(Self::number(block), &mut state.bytes);
                    return false;
                }
                Leaving::Last => {
                    state.in_use = false;
                    return true;
                }
                Leaving::Held => {
                    drop(state);
                    thread::yield_now();
                }
            }
        }
    }

    /// Changes a block in place, if its owner may.
    pub fn change(&self, block: usize, content: &Content) -> bool {
        let mut state = self.blocks[block].lock();
        let number = Self::number(block);
        let may = self.cache.judge_change(number, &state.bytes);
        let may = may.expect("a sound block");
        if may {
            content.put_into(&mut state.bytes);
            self.cache.insert(number, &state.bytes);
        }
        may
    }

    /// Sets the reference count of a block.
    pub fn set_references(&self, block: usize, count: u32) {
        xattr::set_references(&mut self.blocks[block].lock().bytes, count);
    }
}
