//! What every table keeps, what each drops, and many threads on few blocks.

use std::sync::Arc;

use pext4_ondisk::BlockNumber;
use pext4_ondisk::xattr::{Attribute, MAX_REFERENCES};
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::{thread, topology};

use super::testing::{Disk, SETTINGS, bytes_of, content, content_of, tiny};
use super::{AttributeCacheStatistics, Counting, Leaving, SharedBlocks};
use crate::options::AttributeCache;

#[test]
fn blocks_are_found_by_content_until_they_go() {
    for setting in SETTINGS {
        let disk = Disk::new(tiny(setting), 3);
        assert_eq!(disk.share(&content(1)), None);
        disk.make(0, &content(1));
        disk.make(1, &content(2));
        assert_eq!(disk.share(&content(1)), Some(0), "{setting:?}");
        assert_eq!(disk.share(&content(2)), Some(1));
        assert!(!disk.leave(0));
        assert!(disk.leave(0), "the last of two owners");
        assert_eq!(disk.share(&content(1)), None, "{setting:?}");
        assert!(!disk.change(1, &content(3)), "it has two owners");
        assert!(!disk.leave(1));
        assert!(disk.change(1, &content(3)));
        assert_eq!(disk.share(&content(2)), None);
        assert_eq!(disk.share(&content(3)), Some(1));
    }
}

#[test]
fn several_blocks_of_one_content_come_one_after_another() {
    for setting in SETTINGS {
        let disk = Disk::new(tiny(setting), 3);
        for block in 0..3 {
            disk.make(block, &content(1));
        }
        let mut found = Vec::new();
        let wanted = content(1);
        let mut next = disk.cache.first(&wanted);
        while let Some(candidate) = next {
            found.push(candidate.block());
            next = disk.cache.next(&wanted, candidate);
        }
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3].map(BlockNumber), "{setting:?}");
        // A block with the maximum number of references is skipped.
        disk.set_references(0, MAX_REFERENCES);
        disk.set_references(1, MAX_REFERENCES);
        for _ in 0..5 {
            assert_eq!(disk.share(&wanted), Some(2), "{setting:?}");
        }
        assert!(!disk.leave(0));
        disk.set_references(2, MAX_REFERENCES);
        assert_eq!(disk.share(&wanted), Some(0), "{setting:?}: a place is free");
        assert_eq!(disk.share(&wanted), None);
    }
}

#[test]
fn a_content_without_a_hash_is_not_shared() {
    for setting in SETTINGS {
        let cache = tiny(setting);
        let unhashed = content_of(Attribute {
            hash: 0,
            ..Attribute::new(1, b"a", b"value")
        });
        cache.insert(BlockNumber(1), &bytes_of(&unhashed));
        assert!(cache.first(&unhashed).is_none());
    }
    let off = SharedBlocks::new(AttributeCache::Off, 1 << 20, Counting::InBlock);
    off.insert(BlockNumber(1), &bytes_of(&content(1)));
    assert!(off.first(&content(1)).is_none());
    assert!(
        off.judge_change(BlockNumber(1), &bytes_of(&content(1)))
            .expect("sound")
    );
    assert_eq!(off.statistics(), AttributeCacheStatistics::default());
}

#[test]
fn tables_stay_within_their_room_and_keep_what_is_in_use() {
    for setting in SETTINGS {
        let cache = SharedBlocks::with_room(setting, 64, Counting::InBlock);
        let mut bytes = bytes_of(&content(1));
        for number in 0..2000u64 {
            // The hash in the header is the key.
            bytes[12..16].copy_from_slice(&(number as u32 + 1).to_le_bytes());
            cache.insert(BlockNumber(number + 1), &bytes);
        }
        let table = cache.table.as_ref().expect("it has one");
        let most = match setting {
            // The global cache also has the room that volumes of other tests add.
            AttributeCache::Global => 100_000,
            _ => 64,
        };
        assert!(table.len() <= most, "{setting:?}: {}", table.len());
        assert!(table.len() > 30, "{setting:?}: {}", table.len());
    }
    for setting in [AttributeCache::Split, AttributeCache::Buckets] {
        let cache = tiny(setting);
        let mut bytes = bytes_of(&content(1));
        cache.insert(BlockNumber(1), &bytes);
        let wanted = content(1);
        let held = cache.first(&wanted).expect("it was put in");
        for number in 2..100u64 {
            bytes[12..16].copy_from_slice(&(number as u32).to_le_bytes());
            cache.insert(BlockNumber(number), &bytes);
        }
        let again = cache.first(&wanted).expect("what is held is not evicted");
        assert_eq!(again.block(), held.block());
    }
}

#[test]
fn what_is_held_is_not_withdrawn() {
    for setting in SETTINGS {
        let disk = Disk::new(tiny(setting), 1);
        disk.make(0, &content(1));
        let wanted = content(1);
        let held = disk.cache.first(&wanted).expect("it was put in");
        let may = disk.change(0, &content(2));
        assert_eq!(may, setting == AttributeCache::Sharded, "{setting:?}");
        drop(held);
        assert!(disk.change(0, &content(3)), "{setting:?}");
    }
}

#[test]
fn volumes_in_the_cache_of_all_do_not_see_each_other() {
    let [one, other] =
        [(); 2].map(|()| SharedBlocks::new(AttributeCache::Global, 1 << 20, Counting::InBlock));
    one.insert(BlockNumber(7), &bytes_of(&content(1)));
    assert!(other.first(&content(1)).is_none());
    other.insert(BlockNumber(7), &bytes_of(&content(1)));
    assert_eq!(other.table.as_ref().expect("it has one").len(), 1);
    drop(other);
    assert!(one.first(&content(1)).is_some());
}

#[test]
fn entries_are_counted_once() {
    for setting in SETTINGS {
        let cache = SharedBlocks::with_room(setting, 64, Counting::InBlock);
        let bytes = bytes_of(&content(1));
        cache.insert(BlockNumber(1), &bytes);
        cache.insert(BlockNumber(1), &bytes);
        for _ in 0..2 {
            let leaving = cache.judge_leaving(BlockNumber(1), &bytes);
            assert!(matches!(leaving, Ok(Leaving::Last)), "{setting:?}");
        }
        let counts = cache.statistics();
        assert_eq!((counts.inserted, counts.dropped), (1, 1), "{setting:?}");
    }
}

/// Threads have references to few blocks of few contents, and add, drop, change and read them.
#[test]
fn many_threads_at_few_blocks() {
    const BLOCKS: usize = 6;
    for setting in SETTINGS {
        let disk = Arc::new(Disk::new(tiny(setting), BLOCKS));
        let free = Arc::new([(); BLOCKS].map(|()| AtomicU64::new(0)));
        let seed = 99;
        println!("{setting:?}, seed {seed}");
        let workers: Vec<_> = (0..4u64)
            .map(|number| {
                let (disk, free) = (Arc::clone(&disk), Arc::clone(&free));
                thread::spawn("worker", move || {
                    let _pin = topology::pin(number as usize);
                    work(&disk, &free[..], seed + number)
                })
            })
            .collect();
        let mut done = Done::default();
        for worker in workers {
            done.add(worker.join().expect("a worker does not panic"));
        }
        for block in 0..BLOCKS {
            let count = done.own.iter().filter(|own| **own == block).count();
            let state = disk.state(block);
            assert_eq!(state.in_use, count > 0, "{setting:?}");
            if count > 0 {
                assert_eq!(state.references() as usize, count, "{setting:?}, {block}");
            }
        }
        for block in std::mem::take(&mut done.own) {
            done.ended += u64::from(disk.leave(block));
        }
        for value in 1..=3 {
            assert_eq!(disk.share(&content(value)), None, "{setting:?}");
        }
        // Blocks that have an entry are read again, and blocks whose entry made room are freed.
        let taken = disk.cache.statistics();
        assert!(taken.inserted <= done.inserted, "{setting:?}: {taken:?}");
        assert!(
            taken.dropped <= taken.inserted.min(done.changed + done.ended),
            "{setting:?}: {taken:?}"
        );
    }
}

/// What the workers did, and the blocks to which they have a reference at the end.
#[derive(Default)]
struct Done {
    own: Vec<usize>,
    inserted: u64,
    changed: u64,
    ended: u64,
}

impl Done {
    fn add(&mut self, other: Self) {
        self.own.extend(other.own);
        self.inserted += other.inserted;
        self.changed += other.changed;
        self.ended += other.ended;
    }
}

/// Works for a while.
fn work(disk: &Disk, free: &[AtomicU64], seed: u64) -> Done {
    let mut state = seed;
    let mut below = move |end: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut done = Done::default();
    for _ in 0..4000 {
        let wanted = content(below(3) as u8 + 1);
        match below(4) {
            0 if done.own.len() < 4 => {
                let found = disk.share(&wanted).or_else(|| {
                    let taken = free.iter().position(|place| {
                        place
                            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
                            .is_ok()
                    })?;
                    disk.make(taken, &wanted);
                    done.inserted += 1;
                    Some(taken)
                });
                done.own.extend(found);
            }
            1 if !done.own.is_empty() => {
                let place = below(done.own.len() as u64) as usize;
                let block = done.own.swap_remove(place);
                if disk.leave(block) {
                    done.ended += 1;
                    free[block].store(0, Ordering::Release);
                }
            }
            2 if !done.own.is_empty() => {
                let block = done.own[below(done.own.len() as u64) as usize];
                // A thread that has two references in one block is not its only owner.
                let is_changed = u64::from(disk.change(block, &wanted));
                done.changed += is_changed;
                done.inserted += is_changed;
            }
            _ => {
                if let Some(block) = done.own.first() {
                    disk.read(*block);
                    done.inserted += 1;
                }
            }
        }
    }
    done
}
