//! The last blocks: of a zone, of the volume, of the reserve, and those that were preallocated.

use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::{GROUPS_OF_16_MIB, GROUPS_OF_512_KIB, blocks_of, data, free_all};
use crate::error::Refusal;
use crate::groups::testing::{Ground, settings};
use crate::mballoc::scan::PASSED;
use crate::mballoc::{Purpose, Request, Run, Zone};

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

/// Where every free run is short, a search for a longer one asks the index and not all groups.
#[test]
fn a_crowded_volume_is_not_searched_group_by_group() {
    for scaling in settings() {
        let Some(ground) = Ground::set(GROUPS_OF_512_KIB, "64M", scaling) else {
            return;
        };
        let runs = fill(&ground, Purpose::Data);
        let mut kept = 0;
        for run in runs {
            for block in blocks_of(run).map(BlockNumber) {
                kept += 1;
                if kept % 5 == 0 {
                    let mut handle = ground.handle();
                    let freed = ground.groups.free(&mut handle, block, 1);
                    freed.expect("it is in use");
                }
            }
        }
        ground.commit();
        let count = u64::from(ground.groups.count());
        assert!(count > 100, "{count} groups");
        PASSED.set(0);
        for number in 0..50 {
            let mut handle = ground.handle();
            let request = data(12 + number, 0, 64, BlockNumber(9000));
            let found = ground
                .groups
                .allocate_for_file(&mut handle, &request, &mut None)
                .expect("space");
            assert_eq!(found.length, 1);
        }
        let passed = PASSED.get();
        let has_index = ground.groups.index.is_in_use();
        assert_eq!(passed == 0, has_index, "{passed} groups");
    }
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
