//! Groups whose descriptors or bitmaps are wrong.

use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber, LogicalBlock};
use pext4_sync::atomic::Ordering;

use super::file_with_preallocation;
use crate::groups::info::mark;
use crate::groups::testing::{Ground, image, settings};
use crate::mballoc::Request;
use crate::options::MountOptions;

/// The descriptor of a group, changed on the device without regard for checksums.
fn spoil(ground: &Ground, group: u32, change: impl FnOnce(&mut GroupDescriptor)) {
    let geometry = &ground.store.geometry;
    let group = GroupNumber(group);
    let (block, offset) = geometry.descriptor_location(group);
    let mut bytes = ground.block(block);
    let start = offset as usize;
    let slot = &mut bytes[start..start + usize::from(geometry.descriptor_size)];
    let mut descriptor = GroupDescriptor::decode(slot, geometry, group).expect("sound so far");
    change(&mut descriptor);
    descriptor.encode(slot, geometry, group);
    let at = block.get() * u64::from(geometry.block_size);
    ground.device.write_at(at, &bytes).expect("inside");
}

fn reopened(ground: &Ground) -> String {
    match Ground::open(Arc::clone(&ground.device), MountOptions::default()) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn structures_on_top_of_each_other_are_refused() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let other = ground.on_disk()[2].descriptor.inode_table;
    spoil(&ground, 1, |descriptor| descriptor.block_bitmap = other);
    let refusal = reopened(&ground);
    assert!(
        refusal.contains("overlap") && refusal.contains(&format!("block {other}")),
        "{refusal}"
    );
    spoil(&ground, 1, |descriptor| {
        descriptor.block_bitmap = BlockNumber(1)
    });
    assert!(
        reopened(&ground).contains("overlap"),
        "the descriptors themselves are metadata too"
    );
}

#[test]
fn a_flipped_bit_in_a_descriptor_is_refused() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let (block, offset) = ground.store.geometry.descriptor_location(GroupNumber(3));
    let mut bytes = ground.block(block);
    bytes[offset as usize + 12] ^= 4;
    ground
        .device
        .write_at(block.get() * 4096, &bytes)
        .expect("inside");
    let refusal = reopened(&ground);
    assert!(
        refusal.contains("group 3") && refusal.contains("checksum"),
        "{refusal}"
    );
}

#[test]
fn more_never_used_inodes_than_free_ones_are_refused() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    spoil(&ground, 2, |descriptor| {
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        descriptor.free_inodes = 5;
        descriptor.unused_inodes = 6;
    });
    assert!(
        reopened(&ground).contains("never used"),
        "{}",
        reopened(&ground)
    );
}

#[test]
fn a_corrupt_group_is_left_alone_and_reported_once() {
    let Some(device) = image(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let ground = Ground::open(device, MountOptions::default()).expect("sound");
    let victim = GroupNumber(0);
    let descriptor = &ground.on_disk()[0].descriptor;
    let free_there = descriptor.free_clusters;
    let mut bytes = ground.block(descriptor.block_bitmap);
    bytes[100] ^= 0x10;
    ground
        .device
        .write_at(descriptor.block_bitmap.get() * 4096, &bytes)
        .expect("inside");
    let goal = ground.groups.goal_of(InodeNumber(12));
    assert_eq!(ground.store.geometry.group_of(goal), Some(victim));
    let mut handle = ground.handle();
    let before = ground.groups.free_blocks();
    for _ in 0..3 {
        let run = ground
            .groups
            .allocate(&mut handle, &Request::one(InodeNumber(12), goal))
            .expect("elsewhere");
        assert_ne!(ground.store.geometry.group_of(run.start), Some(victim));
    }
    assert!(ground.groups.lock(victim).loaded().is_none(), "of no use");
    let lost = u64::from(free_there) + 3;
    assert_eq!(ground.groups.free_blocks(), before - lost);
    ground
        .groups
        .free(&mut handle, BlockNumber(4000), 2)
        .expect("blocks are lost, nothing else");
    assert_eq!(ground.groups.free_blocks(), before - lost);
    drop(handle);
    let errors = ground.store.superblock(|superblock| superblock.error_count);
    assert_eq!(errors, 1);
}

#[test]
fn free_blocks_of_a_corrupt_group_are_not_counted() {
    for scaling in settings() {
        let Some(ground) = Ground::set(&["-b", "4096", "-g", "4096"], "64M", scaling) else {
            return;
        };
        let groups = &ground.groups;
        let group = GroupNumber(1);
        let fresh = ground.on_disk()[1].descriptor.clone();
        let (blocks, inodes) = (groups.free_blocks(), groups.free_inodes());
        let corrupt = || Corrupt::new("a test", "it says so").in_group(group);

        // Eight of its blocks are freed, but not allocatable yet, when it is marked corrupt.
        let mut handle = ground.handle();
        let request = Request {
            length: 8,
            ..Request::one(InodeNumber(12), ground.store.geometry.first_block(group))
        };
        let run = groups.allocate(&mut handle, &request).expect("space");
        assert_eq!(ground.store.geometry.group_of(run.start), Some(group));
        drop(handle);
        ground.commit();
        let mut handle = ground.handle();
        groups
            .free(&mut handle, run.start, run.length)
            .expect("used");
        drop(handle);
        groups
            .lock(group)
            .mark_corrupt(mark::BLOCKS_CORRUPT, corrupt().into());
        ground.commit();
        ground.commit();
        let lost = u64::from(fresh.free_clusters);
        assert_eq!(groups.free_blocks(), blocks - lost, "{scaling:?}");

        let lost = u64::from(fresh.free_inodes);
        groups.mark_inodes_corrupt(group, 7);
        assert_eq!(groups.free_inodes(), inodes - lost, "{scaling:?}");
        groups.mark_inodes_corrupt(group, 8);
        groups.count_freed(group, false);
        assert_eq!(groups.free_inodes(), inodes - lost, "{scaling:?}");
    }
}

#[test]
fn a_double_free_is_detected_and_damages_nothing_else() {
    let Some(ground) = Ground::make(&["-b", "4096", "-g", "4096"], "64M") else {
        return;
    };
    let groups = &ground.groups;
    let free_there = ground.on_disk()[1].descriptor.free_clusters;
    let mut handle = ground.handle();
    let run = groups
        .allocate(
            &mut handle,
            &Request::one(InodeNumber(12), BlockNumber(5000)),
        )
        .expect("space");
    let before = groups.free_blocks();
    groups.free(&mut handle, run.start, 1).expect("ours");
    groups
        .free(&mut handle, run.start, 1)
        .expect("noticed later");
    drop(handle);
    ground.commit();
    // The group is marked corrupt, so its free blocks cannot be allocated any more.
    assert_eq!(
        ground.store.geometry.group_of(run.start),
        Some(GroupNumber(1))
    );
    assert_eq!(groups.free_blocks(), before + 1 - u64::from(free_there));
    assert!(!groups.has_pending_frees());
    assert_eq!(
        ground.store.superblock(|superblock| superblock.error_count),
        1
    );
    let mut handle = ground.handle();
    let next = groups
        .allocate(
            &mut handle,
            &Request::one(InodeNumber(12), BlockNumber(5000)),
        )
        .expect("space");
    assert_ne!(
        ground.store.geometry.group_of(next.start),
        ground.store.geometry.group_of(run.start)
    );
}

#[test]
fn preallocations_of_a_corrupt_group_are_not_used() {
    for scaling in settings() {
        let Some(ground) = Ground::set(&["-b", "4096", "-g", "4096"], "64M", scaling) else {
            return;
        };
        let groups = &ground.groups;
        let (preallocation, group, _) = file_with_preallocation(&ground);
        let info = groups.info(group);
        let [free, aside] = [&info.written.free_clusters, &info.written.aside]
            .map(|count| count.load(Ordering::Relaxed));
        assert!(aside > 0 && free > 0);
        let healthy = groups.free_blocks() - u64::from(free + aside);
        let corrupt = Corrupt::new("a test", "it says so").in_group(group);
        groups
            .lock(group)
            .mark_corrupt(mark::BLOCKS_CORRUPT, corrupt.into());
        let mut handle = ground.handle();
        let used = groups.use_preallocation(&mut handle, &preallocation, LogicalBlock(20), 5);
        assert!(used.is_none(), "{scaling:?}");
        drop(handle);
        groups.discard(&preallocation);
        assert_eq!(groups.free_blocks(), healthy, "{scaling:?}");
    }
}
