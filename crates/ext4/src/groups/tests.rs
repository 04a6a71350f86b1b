//! Groups on images of mke2fs: opening, validation, captures, eviction.

mod damage;

use std::collections::BTreeSet;
use std::sync::Arc;

use pext4_block::{Device, Stamp};
use pext4_jbd2::{Capture, Handle, Owing};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber, LogicalBlock, bitmap};
use pext4_sync::atomic::Ordering;

use super::Preallocation;
use super::buddy::Span;
use super::freed::{FreedExtent, Reuse};
use super::info::mark;
use super::testing::{Ground, image};
use crate::mballoc::{Purpose, Request};
use crate::options::MountOptions;
use crate::statistics::GroupBlocks;

/// Common shapes of images.
const SHAPES: [&[&str]; 6] = [
    &["-b", "4096"],
    &["-b", "1024", "-g", "1024", "-N", "2048"],
    &[
        "-b",
        "4096",
        "-O",
        "^64bit,^metadata_csum,uninit_bg",
        "-g",
        "4096",
    ],
    &["-b", "1024", "-O", "^flex_bg,^64bit", "-g", "2048"],
    &["-b", "4096", "-O", "meta_bg,^resize_inode", "-g", "1024"],
    &[
        "-b",
        "2048",
        "-O",
        "sparse_super2,^metadata_csum,^uninit_bg",
        "-g",
        "4096",
        "-G",
        "4",
    ],
];

/// The sums of a histogram's rows, by the word that they begin with.
fn groups_in(section: &crate::statistics::Section, kind: &str) -> u64 {
    let rows = section.values.iter();
    let rows = rows.filter(|(name, _)| name.starts_with(&format!("groups with {kind} ")));
    rows.map(|(_, count)| count).sum()
}

#[test]
fn groups_are_shown_by_their_free_runs_without_locks_or_reads() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let groups = &ground.groups;
    let count = u64::from(groups.count());
    let mut handle = ground.handle();
    // It would wait for itself, if it took the locks.
    let mut held = groups.lock(GroupNumber(1));
    let unread = groups.section();
    let before = groups.free_runs_section();
    assert_eq!(groups_in(&before, "a longest"), count);
    assert_eq!(groups_in(&before, "an average"), count);
    assert_eq!(groups.section(), unread, "no bitmap is read for it");
    assert!(held.load_blocks());
    let free = groups.info(GroupNumber(1)).free_hint();
    held.take(
        &mut handle,
        Span {
            start: 4000,
            length: 1,
        },
        1,
    );
    drop(held);
    assert_eq!(groups.info(GroupNumber(1)).free_hint(), free - 1);
    let after = groups.free_runs_section();
    assert_eq!(groups_in(&after, "a longest"), count);
    let short = |section: &crate::statistics::Section| {
        let name = "groups with a longest of 4096 blocks";
        let mut rows = section.values.iter();
        rows.find(|(found, _)| found == name)
            .map_or(0, |(_, count)| *count)
    };
    assert!(short(&after) <= short(&before));
    assert_ne!(after, before, "a group's average run is shorter");
}

/// A volume whose space is allocated in clusters of four blocks.
const BIGALLOC: &[&str] = &["-b", "1024", "-O", "bigalloc", "-C", "4096"];

#[test]
fn a_group_is_reported_by_its_free_runs_if_it_is_in_memory() {
    for (shape, bits) in [(SHAPES[2], 0), (BIGALLOC, 2)] {
        let Some(ground) = Ground::make(shape, "64M") else {
            return;
        };
        let (groups, number) = (&ground.groups, GroupNumber(1));
        let free = ground.on_disk()[1].descriptor.free_clusters;
        let unread = groups.report_on(number);
        assert_eq!(unread.free_blocks, u64::from(free) << bits);
        assert_eq!(unread.blocks, GroupBlocks::NotLoaded);
        assert_eq!(groups.resident(), 0, "no bitmap is read for it");

        let mut handle = ground.handle();
        let mut held = groups.lock(number);
        assert!(held.load_blocks());
        let start = held.blocks().buddy.find_run(0, 100).expect("room").start;
        let (taken, length) = (start + 7, 10);
        let span = Span {
            start: taken,
            length,
        };
        held.take(&mut handle, span, length);
        let clusters = ground.store.geometry.clusters_in(number);
        let buddy = &held.blocks().buddy;
        let is_free: Vec<bool> = (0..clusters).map(|bit| buddy.is_free(bit)).collect();
        drop(held);

        let report = groups.report_on(number);
        assert_eq!(report.free_blocks, u64::from(free - length) << bits);
        let GroupBlocks::Loaded(runs) = report.blocks else {
            panic!("{report:?}");
        };
        let count = is_free
            .chunk_by(|one, next| one == next)
            .filter(|run| run[0]);
        assert_eq!(runs.count as usize, count.count());
        let first = is_free.iter().position(|free| *free).expect("room") as u64;
        assert_eq!(runs.first, Some(first << bits));
        let blocks = (0..)
            .zip(&runs.by_order)
            .map(|(order, &count)| u64::from(count) << order);
        assert_eq!(blocks.sum::<u64>(), report.free_blocks);
        let whole_group = ground.store.geometry.clusters_per_group << bits;
        assert_eq!(runs.by_order.len() as u32, whole_group.ilog2() + 1);
        assert!(runs.by_order[..bits].iter().all(|count| *count == 0));
    }
}

#[test]
fn a_corrupt_group_is_reported_as_one() {
    let Some(ground) = Ground::make(SHAPES[2], "64M") else {
        return;
    };
    let (groups, number) = (&ground.groups, GroupNumber(1));
    let corrupt = || Corrupt::new("inode bitmap", "is wrong").into();
    let mut held = groups.lock(number);
    assert!(held.load_blocks());
    held.mark_corrupt(mark::INODES_CORRUPT, corrupt());
    drop(held);
    let report = groups.report_on(number);
    assert!(report.has_corrupt_inodes && matches!(report.blocks, GroupBlocks::Loaded(_)));
    groups
        .lock(number)
        .mark_corrupt(mark::BLOCKS_CORRUPT, corrupt());
    let report = groups.report_on(number);
    assert_eq!(
        (report.free_blocks, report.blocks),
        (0, GroupBlocks::Corrupt)
    );
}

#[test]
fn every_group_of_a_fresh_image_is_sound() {
    for shape in SHAPES {
        let Some(ground) = Ground::make(shape, "64M") else {
            return;
        };
        let superblock = ground.store.superblock(Clone::clone);
        assert_eq!(
            ground.groups.free_blocks(),
            superblock.free_blocks,
            "{shape:?}"
        );
        assert_eq!(
            ground.groups.free_inodes(),
            u64::from(superblock.free_inodes),
            "{shape:?}"
        );
        for number in ground.store.geometry.groups() {
            let mut held = ground.groups.lock(number);
            assert!(
                held.load_blocks() && held.load_inodes(),
                "{shape:?} {number:?}"
            );
            held.blocks().buddy.check().expect("built whole");
        }
        assert!(ground.groups.deferred_errors.is_empty(), "{shape:?}");
    }
}

#[test]
fn frees_of_an_older_transaction_stay_out_of_the_next_and_the_next_out_of_them() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let groups = &ground.groups;
    let mut handle = ground.handle();
    let request = Request {
        length: 8,
        ..Request::one(InodeNumber(12), BlockNumber(2000))
    };
    let run = groups.allocate(&mut handle, &request).expect("space");
    drop(handle);
    ground.commit();
    let group = ground.store.geometry.group_of(run.start).expect("inside");
    let first = ground
        .store
        .geometry
        .offset_in_group(run.start)
        .expect("inside");

    // As if the previous transaction had freed and its committer had not captured the group yet.
    let mut handle = ground.handle();
    let older = handle.tid().previous();
    groups.counts.pending_clusters.add(4);
    groups.counts.free_clusters.add(4);
    let span = Span {
        start: first,
        length: 4,
    };
    groups.info(group).written.freed.push(FreedExtent {
        tid: older,
        span,
        reuse: Reuse::OnceDurable,
    });
    let next = Request {
        length: 8,
        ..Request::one(InodeNumber(12), BlockNumber(run.start.get() + 8))
    };
    let next = groups.allocate(&mut handle, &next).expect("space");
    assert_eq!(
        next.start.get(),
        run.start.get() + 8,
        "behind, not where it was freed"
    );
    groups
        .free(&mut handle, BlockNumber(run.start.get() + 6), 2)
        .expect("allocated above");

    let older_bytes = bitmap_of(&*groups.owing(group), older);
    assert_eq!(
        bits(&older_bytes, first, 16),
        "0000111100000000",
        "frees of the older alone"
    );
    assert_eq!(
        bitmap_of(&*groups.owing(group), older),
        Vec::<u8>::new(),
        "the debt is paid once"
    );
    let newer_bytes = bitmap_of(&*groups.owing(group), handle.tid());
    assert_eq!(bits(&newer_bytes, first, 16), "0000110011111111");
}

/// A committed file of 20 blocks whose preallocation has more, and its first block in the group.
fn file_with_preallocation(ground: &Ground) -> (Arc<Preallocation>, GroupNumber, u32) {
    let mut preallocation = None;
    let mut handle = ground.handle();
    let request = Request {
        length: 20,
        size: 20 << 12,
        purpose: Purpose::Data,
        ..Request::one(InodeNumber(12), BlockNumber(2000))
    };
    let groups = &ground.groups;
    let run = groups.allocate_for_file(&mut handle, &request, &mut preallocation);
    let start = run.expect("space").start;
    drop(handle);
    ground.commit();
    let geometry = &ground.store.geometry;
    let place = geometry
        .group_of(start)
        .zip(geometry.offset_in_group(start));
    let (group, first) = place.expect("inside");
    (preallocation.expect("it grows"), group, first)
}

/// Uses blocks of the preallocation for a position in the file; returns their span in the group.
fn use_up(
    ground: &Ground,
    handle: &mut Handle<'_>,
    of: &Preallocation,
    at: u32,
    length: u32,
) -> u32 {
    let run = ground
        .groups
        .use_preallocation(handle, of, LogicalBlock(at), length);
    let run = run.expect("it has more");
    assert_eq!(run.length, length);
    ground
        .store
        .geometry
        .offset_in_group(run.start)
        .expect("inside")
}

#[test]
fn uses_of_an_older_transaction_stay_out_of_the_next_and_the_next_out_of_them() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let (preallocation, group, first) = file_with_preallocation(&ground);
    let groups = &ground.groups;
    let free = groups.free_blocks();
    let mut handle = ground.handle();
    let tid = handle.tid();

    // As if the previous transaction had used two and its committer had not captured the group yet.
    assert_eq!(
        use_up(&ground, &mut handle, &preallocation, 20, 2),
        first + 20
    );
    preallocation.front.advance(tid.previous(), first + 22);
    assert_eq!(
        use_up(&ground, &mut handle, &preallocation, 22, 3),
        first + 22
    );
    assert_eq!(groups.free_blocks(), free - 5, "counted at once");

    let older = bitmap_of(&*groups.owing(group), tid.previous());
    assert_eq!(
        bits(&older, first + 18, 8),
        "11110000",
        "uses of the older alone"
    );
    let again = bitmap_of(&*groups.owing(group), tid.previous());
    assert_eq!(again, Vec::<u8>::new(), "the debt is paid once");

    // The next change of the group sees them, and so does the version of their own transaction.
    let beside = Request::one(InodeNumber(13), BlockNumber(3000));
    groups.allocate(&mut handle, &beside).expect("space");
    assert_eq!(
        use_up(&ground, &mut handle, &preallocation, 25, 1),
        first + 25
    );
    let newer = bitmap_of(&*groups.owing(group), tid);
    assert_eq!(bits(&newer, first + 18, 10), "1111111100");
}

#[test]
fn a_change_of_the_group_keeps_a_version_with_the_uses_of_the_transaction_before() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let (preallocation, group, first) = file_with_preallocation(&ground);
    let groups = &ground.groups;
    let aside = || groups.info(group).written.aside.load(Ordering::Relaxed);
    let aside_at_first = aside();
    let mut handle = ground.handle();
    let tid = handle.tid();
    use_up(&ground, &mut handle, &preallocation, 20, 2);
    preallocation.front.advance(tid.previous(), first + 22);

    let beside = Request::one(InodeNumber(13), BlockNumber(3000));
    let beside = groups.allocate(&mut handle, &beside).expect("space");
    assert_eq!(aside(), aside_at_first - 2, "what is folded is not aside");
    let geometry = &ground.store.geometry;
    let beside = geometry.offset_in_group(beside.start).expect("inside");

    let older = bitmap_of(&*groups.owing(group), tid.previous());
    assert_eq!(bits(&older, first + 18, 6), "111100");
    assert_eq!(bits(&older, beside, 1), "0");
    let newer = bitmap_of(&*groups.owing(group), tid);
    assert_eq!(bits(&newer, first + 18, 6), "111100");
    assert_eq!(bits(&newer, beside, 1), "1");
}

/// Otherwise a search that finds no free block by the hints, and then nothing that has changed,
/// would report a full disk while a holder was preempted.
#[test]
fn sums_change_when_the_hints_show_what_became_free() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let (preallocation, group, first) = file_with_preallocation(&ground);
    let groups = &ground.groups;
    let info = groups.info(group);
    let seen = || {
        let aside = info.written.aside.load(Ordering::Relaxed);
        let (activity, pending) = (
            groups.counts.activity.sum(),
            groups.counts.pending_clusters.sum(),
        );
        (info.free_hint(), aside, activity, pending)
    };
    let (free, aside, activity, pending) = seen();
    let left = preallocation.end() - first - 20;
    let mut held = groups.lock(group);
    held.release(Span {
        start: first + 20,
        length: left,
    });
    held.unlist(&preallocation);
    assert_eq!(seen(), (free, aside, activity, pending), "the hold goes on");
    drop(held);
    let after = (free + left, aside - left, activity + 1, pending);
    assert_eq!(seen(), after);

    // A block whose life began and ends in one transaction is free at once.
    let mut handle = ground.handle();
    let block = groups
        .allocate(&mut handle, &Request::one(InodeNumber(13), BlockNumber(0)))
        .expect("space");
    handle.create(block.start, Stamp::NONE);
    let before = seen();
    groups
        .free_metadata(&mut handle, block.start)
        .expect("ours");
    let home = groups.store.geometry.group_of(block.start);
    assert_eq!(home, Some(group), "it lies beside the file");
    let (free, aside, activity, pending) = seen();
    assert_eq!(pending, before.3 + 1, "it is not folded yet");
    let mut held = groups.lock(group);
    held.capture(handle.tid(), &mut Vec::new());
    assert_eq!(seen(), (free, aside, activity, pending), "the hold goes on");
    drop(held);
    assert_eq!(seen(), (free + 1, aside, activity + 1, pending - 1));
}

#[test]
fn the_last_of_what_was_set_aside_is_used_while_others_hold_the_group_and_leaves_the_list_when_folded()
 {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let (preallocation, group, first) = file_with_preallocation(&ground);
    let groups = &ground.groups;
    let left = preallocation.end() - first - 20;
    let listed = || groups.lock(group).expect_loaded().preallocations.len();
    let held = groups.lock(group);
    let use_all = || {
        let mut handle = ground.handle();
        use_up(&ground, &mut handle, &preallocation, 20, left)
    };
    let start = std::thread::scope(|scope| scope.spawn(use_all).join()).expect("it does not wait");
    drop(held);
    assert_eq!(start, first + 20);
    assert!(!groups.is_left(&preallocation), "its owner drops it");
    assert_eq!(listed(), 1, "nobody has folded it");
    assert!(
        groups.lock(group).any_preallocation().is_none(),
        "there is nothing to discard"
    );
    ground.commit();
    assert_eq!(listed(), 0);
    assert_eq!(groups.info(group).written.aside.load(Ordering::Relaxed), 0);

    let start = BlockNumber(ground.store.geometry.first_block(group).get() + u64::from(first));
    groups
        .free(&mut ground.handle(), start, 20 + left)
        .expect("allocated above");
    ground.commit();
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

#[test]
fn what_a_transaction_used_it_may_free_and_others_may_discard() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let groups = &ground.groups;
    let at_first = groups.free_blocks();
    let (preallocation, group, first) = file_with_preallocation(&ground);
    let mut handle = ground.handle();
    use_up(&ground, &mut handle, &preallocation, 20, 4);
    let start = groups.block_at(group, first);
    groups
        .free(&mut handle, start, 24)
        .expect("all are the file's");
    drop(handle);
    groups.discard(&preallocation);
    ground.commit();
    assert_eq!(groups.free_blocks(), at_first);
    assert_eq!(
        ground.store.superblock(|superblock| superblock.error_count),
        0
    );
    assert_eq!(groups.info(group).written.aside.load(Ordering::Relaxed), 0);
    let free = groups.lock(group).blocks().buddy.free();
    let on_disk = ground.on_disk();
    assert_eq!(free, on_disk[group.get() as usize].descriptor.free_clusters);
}

fn bitmap_of(group: &dyn Owing, tid: pext4_ondisk::Tid) -> Vec<u8> {
    let mut captures = Vec::new();
    group.capture(tid, &mut captures);
    let blocks = captures.iter().filter_map(|capture| match capture {
        Capture::Block { page, .. } => Some(page.to_vec()),
        Capture::Piece { .. } => None,
    });
    let blocks: Vec<_> = blocks.collect();
    assert!(blocks.len() <= 1, "only the block bitmap changed");
    blocks.into_iter().next().unwrap_or_default()
}

fn bits(bitmap: &[u8], first: u32, count: u32) -> String {
    (first..first + count)
        .map(|bit| if bitmap::test(bitmap, bit) { '1' } else { '0' })
        .collect()
}

#[test]
fn groups_leave_memory_only_when_nothing_is_lost() {
    let Some(device) = image(&["-b", "1024", "-g", "512", "-N", "1024"], "64M") else {
        return;
    };
    let options = MountOptions {
        cache_size: 1 << 20,
        ..MountOptions::default()
    };
    let ground = Ground::open(device, options).expect("sound");
    let groups = &ground.groups;
    let mut handle = ground.store.start(600).expect("granted");
    let mut runs = Vec::new();
    for number in ground.store.geometry.groups() {
        let goal = ground.store.geometry.first_block(number);
        runs.push(
            groups
                .allocate(&mut handle, &Request::one(InodeNumber(12), goal))
                .expect("space"),
        );
    }
    assert!(runs.len() >= 128);
    let geometry = &ground.store.geometry;
    let owing: BTreeSet<_> = runs
        .iter()
        .map(|run| geometry.group_of(run.start).expect("inside").get())
        .collect();
    let loaded = groups.resident();
    assert!(loaded > 100 && owing.len() > 100);
    groups.evict();
    assert_eq!(groups.resident(), owing.len(), "these owe their bytes");
    drop(handle);
    ground.commit();
    assert!(
        groups.resident() <= 64,
        "{} of {loaded} are left",
        groups.resident()
    );
    let mut handle = ground.store.start(600).expect("granted");
    for run in &runs {
        groups
            .free(&mut handle, run.start, run.length)
            .expect("they were allocated");
    }
    drop(handle);
    ground.commit();
    assert!(!groups.has_pending_frees());
    assert!(groups.resident() <= 64);
    assert_eq!(ground.complaints_of_e2fsck(), "");
}

#[test]
fn with_discard_the_device_forgets_freed_blocks_once_that_is_durable() {
    let Some(device) = image(&["-b", "4096"], "64M") else {
        return;
    };
    let options = MountOptions {
        discard: Some(true),
        ..MountOptions::default()
    };
    let ground = Ground::open(device, options).expect("sound");
    let mut handle = ground.handle();
    let request = Request::one(InodeNumber(12), BlockNumber(9000));
    let run = ground
        .groups
        .allocate(&mut handle, &request)
        .expect("space");
    let at = run.start.get() * 4096;
    ground.device.write_at(at, &[7; 4096]).expect("inside");
    ground
        .groups
        .free(&mut handle, run.start, 1)
        .expect("allocated above");
    drop(handle);
    assert_eq!(ground.block(run.start), [7; 4096]);
    ground.commit();
    assert_eq!(ground.block(run.start), [0; 4096]);
}

#[test]
fn trimming_forgets_free_runs_and_nothing_else() {
    let Some(ground) = Ground::make(&["-b", "4096"], "64M") else {
        return;
    };
    let mut handle = ground.handle();
    let taken = |handle: &mut _, goal| {
        let request = Request::one(InodeNumber(12), BlockNumber(goal));
        let run = ground.groups.allocate(handle, &request);
        run.expect("space").start.get()
    };
    let own = taken(&mut handle, 9000);
    let other = taken(&mut handle, own + 3);
    assert_eq!(other, own + 3, "two blocks between them");
    let freed = taken(&mut handle, own + 20);
    drop(handle);
    ground.commit();
    let mut handle = ground.handle();
    let free = ground.groups.free(&mut handle, BlockNumber(freed), 1);
    free.expect("allocated above");
    drop(handle);
    for block in own - 1..own + 22 {
        let written = ground.device.write_at(block * 4096, &[7; 4096]);
        written.expect("inside");
    }
    let trimmed = ground.groups.trim(&(own - 1..own + 22), 3);
    let kept = |block: u64| ground.block(BlockNumber(block)) == [7; 4096];
    let expected = |block: &u64| {
        let short = own - 1..own + 4;
        // Blocks of a transaction that is not durable would be needed after a power cut.
        short.contains(block) || *block == freed || *block == freed + 1
    };
    for block in own - 1..own + 22 {
        assert_eq!(kept(block), expected(&block), "block {block}");
    }
    assert_eq!(trimmed.expect("the device can"), 16);
    ground.commit();
    assert_eq!(ground.groups.trim(&(own..own + 22), 1).expect("it can"), 20);
    assert!(kept(own) && kept(other) && !kept(freed));
    assert_eq!(
        ground.groups.trim(&(0..u64::MAX), 32768).expect("it can"),
        0
    );
}
