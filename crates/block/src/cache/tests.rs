use std::io;
use std::sync::Arc;
use std::time::Duration;

use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::thread;

use super::{Cache, MIN_SHARD};
use crate::device::Device;
use crate::fault::{FaultDevice, Operation};
use crate::page::Page;
use crate::ram::RamDevice;
use crate::slow::{Latency, SlowDevice};

const BLOCK: u32 = 1024;
const BLOCKS: u64 = 10_000;

/// Blocks that begin with their number.
fn numbered() -> Arc<RamDevice> {
    let device = RamDevice::new(BLOCKS * u64::from(BLOCK));
    for block in 0..BLOCKS {
        device
            .write_at(block * u64::from(BLOCK), &block.to_le_bytes())
            .expect("it fits");
    }
    Arc::new(device)
}

fn faulty() -> Arc<FaultDevice> {
    Arc::new(FaultDevice::new(numbered()))
}

/// A cache of `blocks` blocks.
fn cache(device: Arc<dyn Device>, blocks: u64) -> Cache {
    Cache::new(device, BLOCK, blocks * u64::from(BLOCK))
}

fn get(cache: &Cache, block: u64) -> Arc<crate::Buffer> {
    let buffer = cache
        .get(BlockNumber(block))
        .expect("the block can be read");
    assert_eq!(
        buffer.page()[..8],
        block.to_le_bytes(),
        "it is the right block"
    );
    buffer
}

fn used_blocks(cache: &Cache) -> u64 {
    cache.used() / u64::from(BLOCK)
}

#[test]
fn a_block_has_one_buffer_and_one_read() {
    let cache = cache(numbered(), 100);
    let first = get(&cache, 7);
    assert!(Arc::ptr_eq(&first, &get(&cache, 7)));
    assert_eq!(cache.reads(), 1);
    assert!(!first.is_verified());
    first.set_verified();
    assert!(
        cache
            .peek(BlockNumber(7))
            .is_some_and(|buffer| buffer.is_verified())
    );
    assert!(cache.peek(BlockNumber(8)).is_none());
}

#[test]
fn getters_at_the_same_time_share_one_read() {
    let latency = Latency {
        read: Duration::from_millis(2),
        ..Latency::default()
    };
    let cache = cache(Arc::new(SlowDevice::new(numbered(), latency)), 1000);
    for block in 0..20 {
        let start = std::sync::Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    get(&cache, block);
                });
            }
        });
        assert_eq!(cache.reads(), block + 1);
    }
}

#[test]
fn what_does_not_fit_is_evicted() {
    for blocks in [1, 10, 64 * MIN_SHARD as u64] {
        let cache = cache(numbered(), blocks);
        assert_eq!(cache.capacity(), blocks * u64::from(BLOCK));
        for block in (0..BLOCKS).chain(0..BLOCKS) {
            get(&cache, block);
            assert!(used_blocks(&cache) <= blocks);
        }
    }
}

#[test]
fn what_is_used_stays_longer() {
    let cache = cache(numbered(), 10);
    get(&cache, 0);
    for block in 1..1000 {
        get(&cache, block);
        get(&cache, 0);
    }
    assert_eq!(
        cache.reads(),
        1000,
        "the block that is used again is read once"
    );
}

#[test]
fn pinned_dirty_and_held_buffers_stay() {
    let cache = cache(numbered(), 10);
    let held = get(&cache, 0);
    get(&cache, 1).pin();
    get(&cache, 2).write().dirty_in = Some(Tid(5));
    for block in 3..500 {
        get(&cache, block);
    }
    for block in 0..3 {
        assert!(
            cache.peek(BlockNumber(block)).is_some(),
            "block {block} is needed"
        );
    }
    assert_eq!(cache.pinned(), u64::from(BLOCK));
    drop(held);
    get(&cache, 1).unpin();
    get(&cache, 2).write().dirty_in = None;
    for block in 500..600 {
        get(&cache, block);
    }
    for block in 0..3 {
        assert!(
            cache.peek(BlockNumber(block)).is_none(),
            "block {block} may go"
        );
    }
}

#[test]
fn it_grows_rather_than_fail_and_shrinks_again() {
    let cache = cache(numbered(), 10);
    let held: Vec<_> = (0..200).map(|block| get(&cache, block)).collect();
    assert_eq!(used_blocks(&cache), 200);
    drop(held);
    for block in 1000..1200 {
        get(&cache, block);
    }
    assert_eq!(used_blocks(&cache), 10);
}

#[test]
fn idle_buffers_go_when_asked() {
    let cache = cache(numbered(), 1000);
    let held = get(&cache, 3);
    (0..100).for_each(|block| drop(get(&cache, block)));
    assert_eq!(cache.evict_idle(), 99);
    assert!(Arc::ptr_eq(&held, &get(&cache, 3)));
    assert_eq!(cache.reads(), 100);
}

#[test]
fn a_new_block_is_zero_and_not_read() {
    let device = faulty();
    let cache = cache(device.clone(), 100);
    let buffer = cache.get_zeroed(BlockNumber(4));
    assert!(buffer.page().iter().all(|byte| *byte == 0));
    assert!(buffer.is_verified());
    assert_eq!(device.calls(Operation::Read), 0);

    let old = get(&cache, 5);
    let version = old.page();
    let new = cache.get_zeroed(BlockNumber(5));
    assert!(Arc::ptr_eq(&old, &new));
    assert!(new.page().iter().all(|byte| *byte == 0));
    assert_eq!(version[0], 5, "a captured version stays");
}

#[test]
fn a_discarded_block_is_read_again() {
    let cache = cache(numbered(), 100);
    let old = get(&cache, 6);
    cache.discard(BlockNumber(6));
    cache.discard(BlockNumber(7));
    assert!(old.is_discarded());
    assert!(cache.peek(BlockNumber(6)).is_none());
    assert!(!Arc::ptr_eq(&old, &get(&cache, 6)));
    assert_eq!(used_blocks(&cache), 1);
}

#[test]
fn a_block_with_a_new_use_is_not_discarded() {
    let cache = cache(numbered(), 100);
    let buffer = get(&cache, 6);
    buffer.write().dirty_in = Some(Tid(1));
    cache.discard(BlockNumber(6));
    assert!(!buffer.is_discarded());
    assert!(Arc::ptr_eq(&buffer, &get(&cache, 6)));
}

#[test]
fn a_failed_read_leaves_nothing_behind() {
    let device = faulty();
    let cache = cache(device.clone(), 100);
    device.fail_nth(Operation::Read, 0);
    assert!(cache.get(BlockNumber(1)).is_err());
    assert_eq!(cache.used(), 0);
    get(&cache, 1);
    assert!(cache.get(BlockNumber(BLOCKS)).is_err());
    let error = cache
        .get(BlockNumber(u64::MAX))
        .expect_err("no device is that large");
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn every_waiter_of_a_failed_read_gets_an_answer() {
    let device = faulty();
    let latency = Latency {
        read: Duration::from_millis(2),
        ..Latency::default()
    };
    let cache = cache(Arc::new(SlowDevice::new(device.clone(), latency)), 1000);
    device.fail_from(Operation::Read, 0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(cache.get(BlockNumber(9)).is_err()));
        }
    });
    assert_eq!(cache.used(), 0);
    device.heal();
    get(&cache, 9);
}

#[test]
fn one_failed_read_fails_one_getter() {
    let device = faulty();
    let latency = Latency {
        read: Duration::from_millis(2),
        ..Latency::default()
    };
    let cache = cache(Arc::new(SlowDevice::new(device.clone(), latency)), 1000);
    for block in 0..20 {
        device.fail_nth(Operation::Read, 0);
        let failures: usize = thread::scope(|scope| {
            let getters: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| usize::from(cache.get(BlockNumber(block)).is_err())))
                .collect();
            getters
                .into_iter()
                .map(|getter| getter.join().expect("it does not panic"))
                .sum()
        });
        assert_eq!(failures, 1);
        assert!(cache.peek(BlockNumber(block)).is_some());
    }
}

#[test]
fn replaced_pages_are_seen_and_old_versions_stay() {
    let cache = cache(numbered(), 100);
    let buffer = get(&cache, 3);
    let version = buffer.page();
    buffer.write().dirty_in = Some(Tid(8));
    buffer.replace_page(Page::from(vec![9; BLOCK as usize]));
    assert_eq!((version[0], buffer.page()[0]), (3, 9));
    assert_eq!(buffer.read().dirty_in, Some(Tid(8)));
}

/// Threads that get, change, pin and drop buffers of a cache far too small; every change must be
/// there in the end, which it is not if a dirty buffer is ever evicted or a block has two buffers.
#[test]
fn no_change_is_lost_under_pressure() {
    const SEED: u64 = 0x5EED_CAFE;
    println!("seed {SEED:#x}");
    let cache = cache(numbered(), 16);
    let each = 5000;
    thread::scope(|scope| {
        for number in 1..=4u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = SEED * number;
                for _ in 0..each {
                    random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                    let changed = cache
                        .get(BlockNumber((random >> 33) % 8))
                        .expect("it can be read");
                    let mut state = changed.write();
                    state.dirty_in = Some(Tid(1));
                    let count = &mut state.page_mut().make_mut()[8..16];
                    let value = u64::from_le_bytes(count.try_into().expect("eight bytes"));
                    count.copy_from_slice(&(value + 1).to_le_bytes());
                    drop(state);
                    drop(changed);
                    get(cache, 8 + (random >> 20) % 200);
                }
            });
        }
    });
    let counts = (0..8).map(|block| {
        let page = get(&cache, block).page();
        u64::from_le_bytes(page[8..16].try_into().expect("eight bytes"))
    });
    assert_eq!(counts.sum::<u64>(), 4 * each);
}
