//! Where runs lie: at goals, beside others of the file, and behind those of the shard.

use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};
use pext4_sync::topology;

use super::{GROUPS_OF_16_MIB, blocks_of, data, free_all};
use crate::groups::testing::Ground;
use crate::mballoc::{Preallocation, Request, Run};
use crate::options::Scaling;
use crate::statistics::Event;

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
    for preallocation in state.iter().filter_map(|(_, left)| left.as_ref()) {
        ground.groups.discard(preallocation);
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
