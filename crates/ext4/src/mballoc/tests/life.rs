//! Random lives of runs, by one thread and by several: no block belongs to two, and the bitmaps on
//! the device say what is owned.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fastrand::Rng;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};
use pext4_sync::{thread, topology};

use super::{GROUPS_OF_16_MIB, GROUPS_OF_512_KIB, blocks_of, check_disk, data, free_all, metadata};
use crate::groups::index::{By, Orders, orders};
use crate::groups::info::mark;
use crate::groups::testing::{Ground, image, settings};
use crate::mballoc::{Request, Run};
use crate::options::{MountOptions, Scaling};

#[test]
fn random_life_matches_a_model_and_the_disk() {
    for scaling in settings() {
        let Some(ground) = Ground::set(GROUPS_OF_16_MIB, "96M", scaling) else {
            return;
        };
        live_randomly(&ground);
    }
}

fn live_randomly(ground: &Ground) {
    let groups = &ground.groups;
    let mut random = Rng::with_seed(20);
    let initial = metadata(ground);
    let mut runs: Vec<Run> = Vec::new();
    let (mut owned, mut unsettled) = (BTreeSet::new(), BTreeSet::new());
    for step in 0..900u32 {
        if step % 100 == 99 {
            check_index(ground);
            groups.set_optimize_scan(!groups.optimizes_scan());
        }
        let mut handle = ground.handle();
        if random.u32(..5) < 3 || runs.is_empty() {
            let goal = BlockNumber(u64::from(random.u32(..24_000)));
            let length = 1 + random.u32(..if step % 10 == 0 { 3000 } else { 40 });
            let request = Request {
                length,
                ..Request::one(InodeNumber(12), goal)
            };
            if let Ok(run) = groups.allocate(&mut handle, &request) {
                assert!(run.length >= 1 && run.length <= length);
                for block in blocks_of(run) {
                    assert!(!initial.contains(&block), "block {block} is metadata");
                    assert!(owned.insert(block), "block {block} was given out twice");
                    assert!(
                        !unsettled.contains(&block),
                        "block {block} is reused before its commit"
                    );
                }
                runs.push(run);
            }
        } else {
            let at = random.u32(..u32::try_from(runs.len()).expect("small")) as usize;
            let run = runs.swap_remove(at);
            groups
                .free(&mut handle, run.start, run.length)
                .expect("ours");
            blocks_of(run).for_each(|block| {
                owned.remove(&block);
                unsettled.insert(block);
            });
        }
        drop(handle);
        assert_eq!(groups.has_pending_frees(), !unsettled.is_empty());
        if random.u32(..40) == 0 {
            ground.commit();
            unsettled.clear();
            check_disk(ground, &initial, &owned);
        }
    }
    free_all(ground, &runs);
    check_index(ground);
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

/// Every group is filed according to its free runs, in an index that is in use. While it is not,
/// groups only leave it, and none is where it does not belong. No group is changing.
fn check_index(ground: &Ground) {
    let groups = &ground.groups;
    for number in ground.store.geometry.groups() {
        let expected = true_orders(ground, number);
        for order in orders() {
            for (by, expected) in [
                (By::Largest, expected.largest),
                (By::Average, expected.average),
            ] {
                let is_right = expected == Some(order);
                let is_filed = groups.index.has(by, order, number);
                let is_allowed = is_filed == is_right || is_right && !groups.optimizes_scan();
                assert!(
                    is_allowed,
                    "{number:?} {by:?} {order}: {is_filed}, {expected:?}"
                );
            }
        }
    }
}

/// The orders of a group by its free runs themselves. Of a group that is not in memory only the
/// hints are known, and reading it would file it anew.
fn true_orders(ground: &Ground, number: GroupNumber) -> Orders {
    let info = ground.groups.info(number);
    if !info.is(mark::BLOCKS_LOADED) {
        return info.orders();
    }
    let mut held = ground.groups.lock(number);
    let buddy = &held.blocks().buddy;
    Orders::of(buddy.free(), buddy.fragments(), buddy.largest_order())
}

#[test]
fn threads_never_share_a_block() {
    for scaling in settings() {
        let Some(ground) = Ground::set(GROUPS_OF_16_MIB, "96M", scaling) else {
            return;
        };
        live_together(&ground);
        check_index(&ground);
    }
}

/// Threads move groups between orders before, while and after the index is off; afterwards they do
/// not change so many that each group is filed once more.
#[test]
fn an_index_that_was_off_while_threads_allocated_is_right_afterwards() {
    for design in ["full", "seeds", "base"] {
        let scaling = Scaling::parse(design).expect("a setting");
        let Some(ground) = Ground::set(GROUPS_OF_512_KIB, "64M", scaling) else {
            return;
        };
        let mut files: [Vec<Run>; 4] = Default::default();
        for round in 0..50 {
            let steps = AtomicU32::new(0);
            let wait_for = |count| {
                while steps.load(Ordering::Relaxed) < count {
                    thread::yield_now();
                }
            };
            thread::scope(|scope| {
                for (shard, runs) in (0..).zip(&mut files) {
                    let (ground, steps) = (&ground, &steps);
                    scope.spawn(move || grow_and_shrink(ground, runs, shard + 4 * round, steps));
                }
                wait_for(40);
                ground.groups.set_optimize_scan(false);
                wait_for(80 + round % 30);
                ground.groups.set_optimize_scan(true);
            });
            ground.commit();
            check_index(&ground);
        }
        free_all(&ground, &files.concat());
        check_index(&ground);
        assert_eq!(ground.complaints_of_e2fsck(), "");
    }
}

/// Allocates 30 runs of all lengths and frees as many, in groups that other threads use as well.
fn grow_and_shrink(ground: &Ground, runs: &mut Vec<Run>, seed: u32, steps: &AtomicU32) {
    let _pin = topology::pin(seed as usize);
    let mut random = Rng::with_seed(seed.into());
    for _ in 0..30 {
        let mut handle = ground.handle();
        if runs.len() > 20 {
            let run = runs.swap_remove(random.usize(..runs.len()));
            let freed = ground.groups.free(&mut handle, run.start, run.length);
            freed.expect("ours");
        }
        let request = Request {
            length: 1 << random.u32(..9),
            ..Request::one(InodeNumber(12), BlockNumber(random.u64(..65_000)))
        };
        let run = ground.groups.allocate(&mut handle, &request);
        // Even on a full volume the others go on.
        runs.extend(run.ok());
        steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// More groups than stay in memory: they are evicted and loaded while other threads free blocks
/// there.
#[test]
fn threads_never_share_a_block_while_groups_are_evicted() {
    let Some(device) = image(GROUPS_OF_512_KIB, "64M") else {
        return;
    };
    let cache_size = 1 << 20;
    let options = MountOptions {
        cache_size,
        ..MountOptions::default()
    };
    let ground = Ground::open(device, options).expect("sound");
    live_together(&ground);
    ground.groups.evict();
    assert!(ground.groups.resident() <= 64);
}

fn live_together(ground: &Ground) {
    let initial = metadata(ground);
    let blocks = ground.store.geometry.blocks_count;
    let taken: Vec<AtomicBool> = (0..blocks).map(|_| AtomicBool::new(false)).collect();
    let worker = |number: u32| {
        let _pin = topology::pin(number as usize);
        let mut random = Rng::with_seed(u64::from(number) + 70);
        let (mut runs, mut preallocation, mut logical) = (Vec::new(), None, 0);
        for _ in 0..400 {
            let mut handle = ground.handle();
            if random.u32(..3) > 0 {
                let length = 1 + random.u32(..20);
                let goal = BlockNumber(u64::from(random.u32(..60_000)) % blocks);
                let request = data(12 + number, logical, length, goal);
                let Ok(run) =
                    ground
                        .groups
                        .allocate_for_file(&mut handle, &request, &mut preallocation)
                else {
                    continue;
                };
                logical += run.length;
                for block in blocks_of(run) {
                    let before =
                        taken[usize::try_from(block).expect("small")].swap(true, Ordering::SeqCst);
                    assert!(!before, "block {block} has two owners");
                }
                runs.push(run);
            } else if !runs.is_empty() {
                let at = random.u32(..u32::try_from(runs.len()).expect("small")) as usize;
                let run: Run = runs.swap_remove(at);
                blocks_of(run).for_each(|block| {
                    taken[usize::try_from(block).expect("small")].store(false, Ordering::SeqCst)
                });
                ground
                    .groups
                    .free(&mut handle, run.start, run.length)
                    .expect("ours");
            }
            if random.u32(..50) == 0 {
                drop(handle);
                ground.commit();
            }
        }
        if let Some(preallocation) = preallocation {
            ground.groups.discard(&preallocation);
        }
        runs
    };
    let runs: Vec<Run> = thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|number| scope.spawn(move || worker(number)))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("no thread fails"))
            .collect()
    });
    ground.commit();
    check_disk(
        ground,
        &initial,
        &runs.iter().flat_map(|&run| blocks_of(run)).collect(),
    );
    free_all(ground, &runs);
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

#[test]
fn blocks_that_no_file_may_own_cannot_be_freed() {
    let Some(ground) = Ground::make(GROUPS_OF_16_MIB, "64M") else {
        return;
    };
    let mut handle = ground.handle();
    let end = ground.store.geometry.blocks_count;
    let table = ground.on_disk()[0].descriptor.inode_table.get();
    for (start, length) in [
        (0, 1),
        (table, 1),
        (table - 1, 5),
        (end - 1, 2),
        (end, 1),
        (u64::MAX, 7),
    ] {
        let refused = ground.groups.free(&mut handle, BlockNumber(start), length);
        assert!(
            matches!(refused, Err(crate::Error::Corrupt(_))),
            "{start} {length}"
        );
    }
    assert!(!ground.groups.has_pending_frees());
}
