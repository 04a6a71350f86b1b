//! Allocation on images of mke2fs, compared with a plain model and with the state on disk.

use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, LogicalBlock, bitmap};
use pext4_sync::{thread, topology};

use super::{Preallocation, Purpose, Request, Run, Zone};
use crate::error::Refusal;
use crate::groups::index::{By, Orders, orders};
use crate::groups::info::mark;
use crate::groups::testing::{Ground, image, settings};
use crate::options::{MountOptions, Scaling};
use crate::statistics::Event;

const GROUPS_OF_512_KIB: &[&str] = &["-b", "1024", "-g", "512", "-N", "1024", "-m", "0"];
const GROUPS_OF_16_MIB: &[&str] = &["-b", "4096", "-g", "4096", "-m", "0"];

fn data(inode: u32, logical: u32, length: u32, goal: BlockNumber) -> Request {
    let size = u64::from(logical) << 12;
    let (inode, logical, purpose) = (InodeNumber(inode), LogicalBlock(logical), Purpose::Data);
    Request {
        inode,
        logical,
        length,
        goal,
        purpose,
        may_use_reserve: false,
        size,
        stream_goal: None,
        zone: Zone::Anywhere,
    }
}

fn blocks_of(run: Run) -> std::ops::Range<u64> {
    run.start.get()..run.start.get() + u64::from(run.length)
}

/// Every used block according to the bitmaps on the device.
fn used_on_disk(ground: &Ground) -> BTreeSet<u64> {
    let geometry = &ground.store.geometry;
    let mut used = BTreeSet::new();
    for (group, on_disk) in geometry.groups().zip(ground.on_disk()) {
        if on_disk.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            continue;
        }
        let first = geometry.first_block(group).get();
        let bits = 0..geometry.blocks_in(group);
        used.extend(
            bits.filter(|&bit| bitmap::test(&on_disk.blocks, bit))
                .map(|bit| first + u64::from(bit)),
        );
    }
    used
}

/// Blocks that are used in an image before any allocation, including bitmaps that are not written
/// yet.
fn metadata(ground: &Ground) -> BTreeSet<u64> {
    let mut used = used_on_disk(ground);
    used.extend(
        (0..ground.store.geometry.blocks_count)
            .filter(|&block| ground.groups.is_metadata(block..block + 1)),
    );
    used
}

fn check_disk(ground: &Ground, initial: &BTreeSet<u64>, owned: &BTreeSet<u64>) {
    let expected: BTreeSet<u64> = initial.union(owned).copied().collect();
    let on_disk = used_on_disk(ground);
    let missing: Vec<_> = owned.difference(&on_disk).collect();
    assert!(missing.is_empty(), "free on disk though owned: {missing:?}");
    let leaked: Vec<_> = on_disk.difference(&expected).collect();
    assert!(
        leaked.is_empty(),
        "used on disk though nobody's: {leaked:?}"
    );
}

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

fn free_all(ground: &Ground, runs: &[Run]) {
    for run in runs {
        let mut handle = ground.handle();
        ground
            .groups
            .free(&mut handle, run.start, run.length)
            .expect("ours");
    }
    ground.commit();
    assert!(!ground.groups.has_pending_frees());
    let free = ground.store.superblock(|superblock| superblock.free_blocks);
    assert_eq!(ground.groups.free_blocks(), free);
    for number in ground.store.geometry.groups() {
        let mut held = ground.groups.lock(number);
        assert!(held.load_blocks());
        held.blocks()
            .buddy
            .check()
            .expect("every change keeps the buddy whole");
    }
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

/// Allocates all blocks that requests of this purpose can get.
fn fill(ground: &Ground, purpose: Purpose) -> Vec<Run> {
    let mut runs = Vec::new();
    loop {
        let mut handle = ground.handle();
        let request = Request {
            purpose,
            ..data(12, 1000, 600, BlockNumber(3000))
        };
        match ground.groups.allocate(&mut handle, &request) {
            Ok(run) => runs.push(run),
            Err(error) => {
                assert!(error.is(Refusal::NoSpace), "{error}");
                return runs;
            }
        }
    }
}

/// Wherever the goal is, and whatever was preallocated for the file before.
#[test]
fn a_request_for_a_zone_gets_only_blocks_of_the_zone() {
    for scaling in settings() {
        let Some(ground) = Ground::set(GROUPS_OF_16_MIB, "96M", scaling) else {
            return;
        };
        let (groups, geometry) = (&ground.groups, &ground.store.geometry);
        let end = GroupNumber(2);
        let goal = geometry.first_block(GroupNumber(4));
        let mut handle = ground.handle();
        let mut aside = None;
        let wide = data(12, 100, 20, goal);
        let first = groups
            .allocate_for_file(&mut handle, &wide, &mut aside)
            .expect("there is room");
        assert!(aside.as_ref().is_some_and(|aside| aside.group() >= end));
        drop(handle);
        let mut runs = vec![first];
        let refused = loop {
            let mut handle = ground.handle();
            let request = Request {
                zone: Zone::Below(end),
                ..data(12, 120, 8, goal)
            };
            match groups.allocate_for_file(&mut handle, &request, &mut aside) {
                Ok(run) => {
                    assert!(geometry.group_of(run.start) < Some(end), "{run:?}");
                    runs.push(run);
                }
                Err(error) => break error,
            }
        };
        assert!(refused.is(Refusal::NoSpace), "{refused}");
        assert!(groups.free_blocks() > 8192);
        let used: u32 = runs[1..].iter().map(|run| run.length).sum();
        assert!(
            used > 4096,
            "the zone has two groups, and metadata in one: {used}"
        );
        assert!(
            geometry
                .groups()
                .take(2)
                .all(|group| groups.info(group).free_hint() == 0)
        );
        if let Some(aside) = aside {
            groups.discard(&aside);
        }
        free_all(&ground, &runs);
    }
}

#[test]
fn a_full_disk_is_full_to_the_last_block_and_the_reserve_is_kept() {
    for scaling in settings() {
        let shape = &["-b", "4096", "-g", "4096", "-m", "5"];
        let Some(ground) = Ground::set(shape, "64M", scaling) else {
            return;
        };
        fill_to_the_last_block(&ground);
    }
}

fn fill_to_the_last_block(ground: &Ground) {
    let groups = &ground.groups;
    let reserved = ground
        .store
        .superblock(|superblock| superblock.reserved_blocks);
    assert!(reserved > 100);
    let mut runs = fill(ground, Purpose::Data);
    assert_eq!(groups.free_blocks(), reserved);
    let mut handle = ground.handle();
    let roots = Request {
        may_use_reserve: true,
        ..data(12, 0, 3, BlockNumber(0))
    };
    let run = groups.allocate(&mut handle, &roots).expect("it is root's");
    assert!(groups.free_blocks() < reserved);
    runs.push(run);
    drop(handle);
    runs.extend(fill(ground, Purpose::Metadata));
    assert_eq!(groups.free_blocks(), 0);
    assert!(!groups.has_pending_frees());

    let mut handle = ground.handle();
    let back = runs.pop().expect("many");
    groups
        .free(&mut handle, back.start, back.length)
        .expect("ours");
    let refused = groups.allocate(&mut handle, &Request::one(InodeNumber(12), back.start));
    assert!(refused.expect_err("not durable yet").is(Refusal::NoSpace));
    assert!(groups.has_pending_frees());
    drop(handle);
    ground.commit();
    let mut handle = ground.handle();
    let again = groups
        .allocate(&mut handle, &Request::one(InodeNumber(12), back.start))
        .expect("durable now");
    assert_eq!(again.start, back.start);
    groups.free(&mut handle, again.start, 1).expect("ours");
    drop(handle);
    free_all(ground, &runs);
}

#[test]
fn preallocations_give_way_when_nothing_else_is_left() {
    let Some(ground) = Ground::make(GROUPS_OF_16_MIB, "64M") else {
        return;
    };
    let groups = &ground.groups;
    let mut preallocation = None;
    let mut handle = ground.handle();
    let request = data(12, 100, 30, BlockNumber(6000));
    let first = groups
        .allocate_for_file(&mut handle, &request, &mut preallocation)
        .expect("space");
    drop(handle);
    assert!(groups.is_left(preallocation.as_deref().expect("the file grows")));
    let before = groups.free_blocks();
    let mut runs = fill(&ground, Purpose::Data);
    let taken: u64 = runs.iter().map(|run| u64::from(run.length)).sum();
    assert_eq!((taken, groups.free_blocks()), (before, 0));
    assert!(!groups.is_left(preallocation.as_deref().expect("still the file's")));

    let mut handle = ground.handle();
    let refused = groups.allocate_for_file(
        &mut handle,
        &data(12, 130, 1, first.start),
        &mut preallocation,
    );
    assert!(refused.expect_err("it is gone").is(Refusal::NoSpace));
    drop(handle);
    runs.push(first);
    free_all(&ground, &runs);
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

/// Appends pieces to files in turn; returns each file's runs, with adjacent ones merged.
fn append_in_turns(ground: &Ground, files: u32, pieces: u32, length: u32) -> Vec<Vec<Run>> {
    let mut state: Vec<(Vec<Run>, Option<std::sync::Arc<Preallocation>>)> = Vec::new();
    state.resize_with(files as usize, Default::default);
    for piece in 0..pieces {
        for (file, (runs, preallocation)) in (0u32..).zip(&mut state) {
            let mut done = 0;
            while done < length {
                let mut handle = ground.handle();
                let goal = runs
                    .last()
                    .map_or(ground.groups.goal_of(InodeNumber(12)), |run| {
                        BlockNumber(blocks_of(*run).end)
                    });
                let request = data(12 + file, piece * length + done, length - done, goal);
                let run = ground
                    .groups
                    .allocate_for_file(&mut handle, &request, preallocation)
                    .expect("space");
                done += run.length;
                match runs.last_mut() {
                    Some(last) if blocks_of(*last).end == run.start.get() => {
                        last.length += run.length
                    }
                    _ => runs.push(run),
                }
            }
        }
    }
    for (_, preallocation) in &state {
        preallocation
            .iter()
            .for_each(|preallocation| drop(ground.groups.discard(preallocation)));
    }
    state.into_iter().map(|(runs, _)| runs).collect()
}

#[test]
fn files_that_grow_side_by_side_get_long_runs() {
    let Some(ground) = Ground::make(GROUPS_OF_16_MIB, "256M") else {
        return;
    };
    let files = append_in_turns(&ground, 8, 500, 2);
    for runs in &files {
        assert!(runs.len() <= 16, "{} runs for 1000 blocks", runs.len());
    }
    let runs: Vec<Run> = files.into_iter().flatten().collect();
    ground.commit();
    ground.groups.discard_preallocations(u32::MAX);
    assert_eq!(
        ground
            .groups
            .info(GroupNumber(1))
            .written
            .aside
            .load(pext4_sync::atomic::Ordering::Relaxed),
        0
    );
    free_all(&ground, &runs);
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

/// Files that are not small, with one common goal, each allocated by a thread that never waits.
#[test]
fn a_file_that_finds_its_goal_locked_stays_in_its_new_group() {
    let arguments = ["-b", "4096", "-g", "4096", "-m", "0"];
    let Some(ground) = Ground::set(&arguments, "64M", Scaling::FULL) else {
        return;
    };
    let groups = &ground.groups;
    // The goal's blocks are used, so that the remembered group decides.
    let grow = |inode: u32, stream_goal: Option<GroupNumber>| {
        let request = Request {
            stream_goal,
            ..data(inode, 100, 8, BlockNumber(1))
        };
        let run = groups
            .allocate_for_file(&mut ground.handle(), &request, &mut None)
            .expect("space");
        groups.own_stream_goal(&request, run).expect("not small")
    };
    let first = grow(20, Some(GroupNumber(2)));
    assert_eq!(first, GroupNumber(2));
    let held = groups.lock(first);
    let second = std::thread::scope(|scope| scope.spawn(|| grow(21, Some(first))).join())
        .expect("it does not wait");
    drop(held);
    assert_ne!(second, first, "the group was held");
    assert_eq!(grow(22, None), second, "new files begin where others were");
    assert_eq!(grow(20, Some(first)), first);
    assert_eq!(grow(21, Some(second)), second);
    assert_eq!(grow(23, None), second, "who stays tells nobody");
}

/// A large file that gets the blocks at its goal leaves its group as the stream goal, without
/// counting as a hit of one; reading the goal's bitmap is counted.
#[test]
fn blocks_at_the_goal_of_a_large_file_set_the_stream_goal() {
    let arguments = ["-b", "4096", "-g", "4096", "-m", "0"];
    for scaling in [Scaling::BASE, Scaling::SEEDS, Scaling::FULL] {
        let Some(ground) = Ground::set(&arguments, "64M", scaling) else {
            return;
        };
        let (groups, tally) = (&ground.groups, &ground.store.tally);
        let goal = GroupNumber(2);
        let first = ground.store.geometry.first_block(goal).get() + 2000;
        let grow = |logical, goal| {
            let request = data(20, logical, 8, BlockNumber(goal));
            let run = groups.allocate_for_file(&mut ground.handle(), &request, &mut None);
            ground.store.geometry.group_of(run.expect("space").start)
        };
        let read = tally.sum(Event::GroupsLoaded);
        assert_eq!(grow(100, first), Some(goal));
        assert_eq!(tally.sum(Event::GoalHits), 1);
        assert_eq!(tally.sum(Event::GroupsLoaded), read + 1, "{scaling}");
        assert_eq!(tally.sum(Event::StreamGoalHits), 0);
        let set = groups.stream_goal(InodeNumber(20));
        // In the default setting files remember goals of their own.
        let expected = (scaling != Scaling::FULL).then_some(goal);
        assert_eq!(set, expected, "{scaling}");
        if expected.is_some() {
            assert_eq!(
                grow(200, 1),
                Some(goal),
                "{scaling}: the goal's blocks are used"
            );
            assert_eq!(tally.sum(Event::StreamGoalHits), 1);
        }
    }
}

/// A request with a goal of its own, from a thread that waits for no group.
#[test]
fn a_goal_in_a_group_that_stays_held_is_given_up() {
    let Some(ground) = Ground::set(&["-b", "4096", "-g", "4096"], "64M", Scaling::FULL) else {
        return;
    };
    let groups = &ground.groups;
    let group_of = |run: Run| ground.store.geometry.group_of(run.start);
    let goal = GroupNumber(2);
    let grow = |inode: u32, from: u64| {
        let at = ground.store.geometry.first_block(goal).get() + from;
        let request = data(inode, 100, 8, BlockNumber(at));
        let run = groups.allocate_for_file(&mut ground.handle(), &request, &mut None);
        group_of(run.expect("space"))
    };
    assert_eq!(grow(20, 1000), Some(goal));
    let held = groups.lock(goal);
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| grow(21, 2000)).join());
    drop(held);
    assert_ne!(elsewhere.expect("it does not wait"), Some(goal));
    assert_eq!(grow(22, 2000), Some(goal));
}

#[test]
fn small_files_of_a_shard_lie_one_behind_the_other() {
    let Some(ground) = Ground::make(GROUPS_OF_16_MIB, "256M") else {
        return;
    };
    let make = |shard: usize| {
        let _pin = topology::pin(shard);
        let mut runs = Vec::new();
        for file in 0..50 {
            let mut handle = ground.handle();
            let goal = ground.groups.goal_of(InodeNumber(12));
            let run = ground.groups.allocate_for_file(
                &mut handle,
                &data(20 + file, 0, 3, goal),
                &mut None,
            );
            runs.push(run.expect("space"));
        }
        runs
    };
    let (first, second) = (make(0), make(1));
    for runs in [&first, &second] {
        let breaks = runs
            .windows(2)
            .filter(|pair| blocks_of(pair[0]).end != pair[1].start.get())
            .count();
        assert!(breaks <= 1, "{breaks} gaps between 50 files");
    }
    let geometry = &ground.store.geometry;
    assert_ne!(
        geometry.group_of(first[0].start),
        geometry.group_of(second[0].start)
    );
}

#[test]
fn a_preallocation_is_used_from_where_the_file_continues() {
    let Some(ground) = Ground::make(GROUPS_OF_16_MIB, "256M") else {
        return;
    };
    let groups = &ground.groups;
    let mut preallocation = None;
    let mut handle = ground.handle();
    let first = groups.allocate_for_file(
        &mut handle,
        &data(12, 100, 28, BlockNumber(20_000)),
        &mut preallocation,
    );
    let first = first.expect("space");
    let jump = groups
        .allocate_for_file(
            &mut handle,
            &data(12, 148, 4, first.start),
            &mut preallocation,
        )
        .expect("space");
    assert_eq!(
        jump.start.get(),
        first.start.get() + 48,
        "the blocks for the hole are passed over"
    );
    let back = groups.allocate_for_file(
        &mut handle,
        &data(12, 120, 4, BlockNumber(1)),
        &mut preallocation,
    );
    assert_ne!(
        back.expect("space").start.get(),
        first.start.get() + 20,
        "that block is taken"
    );
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
