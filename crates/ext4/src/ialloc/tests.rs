//! Inode allocation on images of mke2fs.

mod known;
mod reserved;

use fastrand::Rng;
use std::collections::BTreeSet;

use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};
use pext4_sync::atomic::Ordering;
use pext4_sync::{thread, topology};

use super::Placement;
use crate::error::Refusal;
use crate::groups::testing::{Ground, settings};
use crate::options::{InodeBits, Scaling};
use crate::statistics::Event;

const FOUR_GROUPS: &[&str] = &["-b", "4096", "-g", "4096", "-N", "2048"];

fn make(ground: &Ground, parent: InodeNumber, is_directory: bool) -> InodeNumber {
    let mut handle = ground.handle();
    let placement = match (is_directory, parent) {
        (false, _) => Placement::File,
        (true, InodeNumber::ROOT) => Placement::TopDirectory,
        (true, _) => Placement::Directory,
    };
    ground
        .groups
        .allocate_inode(&mut handle, parent, placement)
        .expect("there are inodes")
}

fn group(ground: &Ground, inode: InodeNumber) -> GroupNumber {
    ground
        .store
        .geometry
        .inode_group(inode)
        .expect("allocated")
        .0
}

fn free_all(ground: &Ground, inodes: impl IntoIterator<Item = (InodeNumber, bool)>) {
    for (inode, is_directory) in inodes {
        let mut handle = ground.handle();
        ground
            .groups
            .free_inode(&mut handle, inode, is_directory)
            .expect("ours");
    }
    ground.commit();
    let free = ground.store.superblock(|superblock| superblock.free_inodes);
    assert_eq!(ground.groups.free_inodes(), u64::from(free));
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

#[test]
fn every_inode_is_given_out_once() {
    for shape in [
        FOUR_GROUPS,
        &[
            "-b",
            "1024",
            "-g",
            "1024",
            "-N",
            "512",
            "-O",
            "^64bit,^metadata_csum,uninit_bg",
        ],
    ] {
        for scaling in settings() {
            let Some(ground) = Ground::set(shape, "64M", scaling) else {
                return;
            };
            give_every_inode(&ground);
        }
    }
}

fn give_every_inode(ground: &Ground) {
    let free = ground.groups.free_inodes();
    let mut seen = BTreeSet::new();
    let mut random = Rng::with_seed(5);
    let refused = loop {
        let mut handle = ground.handle();
        let parent = InodeNumber(1 + random.u32(..ground.store.geometry.inodes_count));
        let placement = match random.u32(..8) {
            0 => Placement::Directory,
            1 => Placement::TopDirectory,
            _ => Placement::File,
        };
        let is_directory = placement.is_directory();
        match ground.groups.allocate_inode(&mut handle, parent, placement) {
            Ok(inode) => {
                assert!(inode >= ground.store.geometry.first_inode);
                assert!(seen.insert((inode, is_directory)), "{inode:?} twice");
            }
            Err(error) => break error,
        }
    };
    assert!(refused.is(Refusal::NoInodes), "{refused}");
    assert_eq!((seen.len() as u64, ground.groups.free_inodes()), (free, 0));
    ground.commit();
    for on_disk in ground.on_disk() {
        assert_eq!(
            (
                on_disk.descriptor.free_inodes,
                on_disk.descriptor.unused_inodes
            ),
            (0, 0)
        );
        assert!(!on_disk.descriptor.flags.contains(GroupFlags::INODE_UNINIT));
    }
    free_all(ground, seen);
}

#[test]
fn files_follow_their_directory_and_directories_spread() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096", "-N", "16384"], "512M") else {
        return;
    };
    let tops: Vec<_> = (0..16)
        .map(|_| make(&ground, InodeNumber::ROOT, true))
        .collect();
    let groups: BTreeSet<_> = tops.iter().map(|&inode| group(&ground, inode)).collect();
    assert!(
        groups.len() >= 12,
        "16 directories in {} of 32 groups",
        groups.len()
    );
    for &top in &tops {
        assert_eq!(
            group(&ground, make(&ground, top, false)),
            group(&ground, top)
        );
    }
    let regions = |inode| group(&ground, inode).get() / ground.store.geometry.groups_per_flex;
    let children: Vec<_> = (0..8).map(|_| make(&ground, tops[0], true)).collect();
    assert!(
        children
            .iter()
            .all(|&child| regions(child) == regions(tops[0]))
    );
    let members: BTreeSet<_> = children
        .iter()
        .map(|&child| group(&ground, child))
        .collect();
    assert!(members.len() >= 6, "makers of files in siblings would meet");
}

/// That makers of files in several directories meet in one group is what the designs of ext4 are
/// compared for.
#[test]
fn where_numbers_are_claimed_under_locks_directories_meet() {
    for scaling in [Scaling::BASE, Scaling::SEEDS] {
        let format = &["-b", "4096", "-g", "4096", "-N", "16384"];
        let Some(ground) = Ground::set(format, "512M", scaling) else {
            return;
        };
        let top = make(&ground, InodeNumber::ROOT, true);
        let children = [(); 8].map(|()| make(&ground, top, true));
        let members = BTreeSet::from(children.map(|child| group(&ground, child)));
        assert_eq!(members.len(), 1, "{scaling}: {members:?}");
        // Those, their parent, the root, and lost+found.
        assert_eq!(ground.groups.directories(), 11);
        let made = children.into_iter().chain([top]);
        free_all(&ground, made.map(|inode| (inode, true)));
    }
}

#[test]
fn a_full_group_sends_files_on() {
    let Some(ground) = Ground::make(FOUR_GROUPS, "64M") else {
        return;
    };
    let parent = make(&ground, InodeNumber::ROOT, true);
    let home = group(&ground, parent);
    let files: Vec<_> = (0..700).map(|_| make(&ground, parent, false)).collect();
    let elsewhere = files
        .iter()
        .filter(|&&file| group(&ground, file) != home)
        .count();
    assert!((150..300).contains(&elsewhere), "{elsewhere}");
}

/// While one thread frees an inode and another claims one, the sum may read as 0.
#[test]
fn a_free_inode_is_found_whatever_hints_and_sum_say() {
    let Some(ground) = Ground::make(FOUR_GROUPS, "64M") else {
        return;
    };
    let groups = &ground.groups;
    let infos = || (0..4).map(|group| groups.info(GroupNumber(group)));
    let hide = || {
        let sum = i64::try_from(groups.free_inodes()).expect("a small volume");
        groups.counts.free_inodes.add(-sum);
        infos().for_each(|info| info.free_inodes.store(0, Ordering::Relaxed));
    };
    let mut handle = ground.handle();
    let mut claim = || groups.allocate_inode(&mut handle, InodeNumber::ROOT, Placement::File);
    let loaded = || infos().filter(|info| info.inodes.get().is_some()).count();
    hide();
    let refused = claim().expect_err("each descriptor says so");
    assert!(refused.is(Refusal::NoInodes), "{refused}");
    assert_eq!(loaded(), 0, "no bitmap is read for that");
    infos().for_each(|info| info.free_inodes.store(1, Ordering::Relaxed));
    claim().expect("there is one");
    assert_eq!(loaded(), 1);
    hide();
    claim().expect("there is one in the same bitmap");
}

#[test]
fn slots_are_unused_until_claimed() {
    let Some(ground) = Ground::make(FOUR_GROUPS, "64M") else {
        return;
    };
    let groups = &ground.groups;
    assert!(!groups.is_inode_slot_unused(InodeNumber::ROOT));
    assert!(!groups.is_inode_slot_unused(InodeNumber(11)), "lost+found");
    assert!(groups.is_inode_slot_unused(InodeNumber(12)));
    assert_eq!(make(&ground, InodeNumber::ROOT, false), InodeNumber(12));
    assert!(
        !groups.is_inode_slot_unused(InodeNumber(12))
            && groups.is_inode_slot_unused(InodeNumber(13))
    );
    let mut handle = ground.handle();
    groups
        .free_inode(&mut handle, InodeNumber(12), false)
        .expect("ours");
    assert!(
        !groups.is_inode_slot_unused(InodeNumber(12)),
        "used once is used for ever"
    );
    assert!(
        groups.is_inode_slot_unused(InodeNumber(0))
            && groups.is_inode_slot_unused(InodeNumber(u32::MAX))
    );
}

#[test]
fn a_slot_lies_where_the_table_says() {
    let Some(ground) = Ground::make(FOUR_GROUPS, "64M") else {
        return;
    };
    let table = ground.on_disk()[0].descriptor.inode_table;
    assert_eq!(ground.groups.slot_place(InodeNumber(1)), Some((table, 0)));
    let size = u32::from(ground.store.geometry.inode_size);
    assert_eq!(
        ground.groups.slot_place(InodeNumber(2)),
        Some((table, size))
    );
    let later = ground.groups.slot_place(InodeNumber(4096 / size + 2));
    assert_eq!(later, Some((BlockNumber(table.get() + 1), size)));
    assert_eq!(ground.groups.slot_place(InodeNumber(0)), None);
    assert_eq!(ground.groups.slot_place(InodeNumber(2049)), None);
}

#[test]
fn reserved_and_foreign_inodes_are_not_freed() {
    let Some(ground) = Ground::make(FOUR_GROUPS, "64M") else {
        return;
    };
    let mut handle = ground.handle();
    for inode in [0, 2, 8, 10, 2049, u32::MAX] {
        let refused = ground
            .groups
            .free_inode(&mut handle, InodeNumber(inode), false);
        assert!(matches!(refused, Err(crate::Error::Corrupt(_))), "{inode}");
    }
    ground
        .groups
        .free_inode(&mut handle, InodeNumber(500), false)
        .expect("reported, no failure");
    drop(handle);
    assert_eq!(
        ground.store.superblock(|superblock| superblock.error_count),
        1,
        "it was free already"
    );
}

#[test]
fn makers_on_many_threads_get_different_inodes() {
    for scaling in settings() {
        let Some(ground) = Ground::set(FOUR_GROUPS, "64M", scaling) else {
            return;
        };
        make_on_many_threads(&ground);
    }
}

#[test]
fn the_counter_of_claims_under_the_lock_leaves_out_frees() {
    for scaling in settings() {
        let Some(ground) = Ground::set(FOUR_GROUPS, "64M", scaling) else {
            return;
        };
        let tally = &ground.store.tally;
        let made = [(); 3].map(|()| make(&ground, InodeNumber::ROOT, false));
        let locked = match scaling.inode_bits {
            // The first claim opens the group.
            InodeBits::Atomic => 1,
            InodeBits::TestThenLock | InodeBits::FindUnderLock => 3,
        };
        assert_eq!(tally.sum(Event::InodesClaimed), 3);
        assert_eq!(tally.sum(Event::InodesLocked), locked, "{scaling}");
        ground.commit();
        free_all(&ground, made.map(|inode| (inode, false)));
        assert_eq!(tally.sum(Event::InodesFreed), 3);
        assert_eq!(tally.sum(Event::InodesLocked), locked, "{scaling}: frees");
    }
}

/// In the designs with the lock. Whoever holds the group while other threads free its inodes finds
/// as many free ones counted as there are.
#[test]
fn frees_are_counted_under_the_hold_that_clears_the_bit() {
    for design in ["base", "seeds"] {
        let scaling = Scaling::parse(design).expect("a setting");
        let Some(ground) = Ground::set(FOUR_GROUPS, "64M", scaling) else {
            return;
        };
        let made: Vec<InodeNumber> = (0..400)
            .map(|_| make(&ground, InodeNumber::ROOT, false))
            .collect();
        let home = group(&ground, made[0]);
        assert!(made.iter().all(|&inode| group(&ground, inode) == home));
        let counted = || ground.groups.free_inodes();
        let bits = ground.groups.info(home).inodes.get().expect("in use");
        let before = counted();
        let elsewhere = before - u64::from(bits.count_free());
        let free = &|inodes: &[InodeNumber]| {
            for &inode in inodes {
                let freed = ground.groups.free_inode(&mut ground.handle(), inode, false);
                freed.expect("ours");
            }
        };
        thread::scope(|scope| {
            let parts = made.chunks(100);
            let workers: Vec<_> = parts
                .map(|inodes| scope.spawn(move || free(inodes)))
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                let _held = ground.groups.lock(home);
                let there = u64::from(bits.count_free());
                assert_eq!(counted(), elsewhere + there, "{design}");
            }
        });
        assert_eq!(counted(), before + 400, "{design}");
    }
}

fn make_on_many_threads(ground: &Ground) {
    let parent = make(ground, InodeNumber::ROOT, true);
    let made: Vec<InodeNumber> = thread::scope(|scope| {
        let maker = |shard| {
            let _pin = topology::pin(shard);
            let mut mine: Vec<InodeNumber> = Vec::new();
            for step in 0..200 {
                mine.push(make(ground, parent, false));
                if step % 3 == 0 {
                    let gone = mine.swap_remove(step / 7 % mine.len());
                    let mut handle = ground.handle();
                    ground
                        .groups
                        .free_inode(&mut handle, gone, false)
                        .expect("ours");
                }
                if step % 40 == 0 {
                    ground.commit();
                }
            }
            mine
        };
        let makers: Vec<_> = (0..6)
            .map(|shard| scope.spawn(move || maker(shard)))
            .collect();
        makers
            .into_iter()
            .flat_map(|maker| maker.join().expect("no thread fails"))
            .collect()
    });
    let different: BTreeSet<_> = made.iter().collect();
    assert_eq!(different.len(), made.len());
    free_all(
        ground,
        made.into_iter()
            .map(|inode| (inode, false))
            .chain([(parent, true)]),
    );
}

/// Without a journal a freed number is not reused for a while, unless there is no other.
#[test]
fn a_number_freed_a_moment_ago_is_taken_last() {
    for scaling in settings() {
        let shape = &[
            "-b",
            "4096",
            "-g",
            "4096",
            "-N",
            "2048",
            "-O",
            "^has_journal",
        ];
        let Some(ground) = Ground::set(shape, "64M", scaling) else {
            return;
        };
        let file = make(&ground, InodeNumber::ROOT, false);
        let mut handle = ground.handle();
        ground
            .groups
            .free_inode(&mut handle, file, false)
            .expect("ours");
        drop(handle);
        let next = make(&ground, InodeNumber::ROOT, false);
        assert_ne!(next, file, "it rests");
        let free = ground.groups.free_inodes();
        let all: BTreeSet<_> = (0..free)
            .map(|_| make(&ground, InodeNumber::ROOT, false))
            .collect();
        assert_eq!(all.len() as u64, free);
        assert!(all.contains(&file), "nothing else was left");
    }
}

/// A volume whose groups have four lanes each, and a directory in it.
fn ground_with_lanes() -> Option<(Ground, InodeNumber)> {
    let shape = [
        &FOUR_GROUPS[..4],
        &["-N", "8192", "-E", "lazy_itable_init=0"],
    ]
    .concat();
    let ground = Ground::make(&shape, "64M")?;
    let parent = make(&ground, InodeNumber::ROOT, true);
    Some((ground, parent))
}

/// A shard that lost a race continues in a line of numbers that no other uses, and returns to the
/// lowest number when it has lost no race for a while.
#[test]
fn shards_that_raced_continue_in_lanes_of_their_own() {
    let Some((ground, parent)) = ground_with_lanes() else {
        return;
    };
    let home = group(&ground, parent);
    let meet = |shard| {
        let _pin = topology::pin(shard);
        let (_, lane) = ground.groups.hints.lane();
        lane.seek(home, ground.handle().tid());
    };
    let lines = |shard, count: u32| -> BTreeSet<u32> {
        let _pin = topology::pin(shard);
        let numbers = (0..count).map(|_| make(&ground, parent, false));
        let places = numbers.map(|file| ground.store.geometry.inode_group(file));
        let places = places.map(|place| place.expect("allocated"));
        places
            .map(|(group, index)| group.get() * 2048 / 512 + index / 512)
            .collect()
    };
    let dense = lines(0, 8);
    assert_eq!(dense.len(), 1, "nobody was met: the lowest numbers");
    meet(1);
    let others = lines(1, 512 + 512);
    assert_eq!(others.len(), 2, "two lines are filled one after the other");
    assert!(others.is_disjoint(&dense));
    assert_eq!(lines(0, 8), dense, "the first goes on where it was");
    for _ in 0..2 {
        lines(0, 1);
        ground.commit();
    }
    assert_eq!(lines(1, 8), dense, "nobody was met in two transactions");
}

/// A core that makes and removes more files than a lane has numbers cycles through lanes of its
/// own.
#[test]
fn a_shard_comes_back_to_lanes_where_it_has_freed_numbers() {
    let Some((ground, parent)) = ground_with_lanes() else {
        return;
    };
    let home = group(&ground, parent);
    let _pin = topology::pin(1);
    let (_, lane) = ground.groups.hints.lane();
    lane.seek(home, ground.handle().tid());
    let round = || {
        let files: Vec<_> = (0..1300).map(|_| make(&ground, parent, false)).collect();
        let mut handle = ground.handle();
        for &file in &files {
            ground
                .groups
                .free_inode(&mut handle, file, false)
                .expect("it was claimed");
        }
        drop(handle);
        ground.commit();
        files.into_iter().collect::<BTreeSet<_>>()
    };
    let first = round();
    for _ in 0..3 {
        // There are no races any more, and yet the shard takes no new lanes.
        let strange = round().difference(&first).count();
        assert!(
            strange <= 3 * 512 - 1300,
            "{strange} numbers of other lanes"
        );
    }
}
