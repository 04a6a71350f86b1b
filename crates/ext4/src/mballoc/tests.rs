//! Allocation on images of mke2fs, compared with a plain model and with the state on disk.

mod full;
mod life;
mod placement;

use std::collections::BTreeSet;

use pext4_ondisk::group_descriptor::GroupFlags;
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock, bitmap};

use super::{Purpose, Request, Run, Zone};
use crate::groups::testing::Ground;

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

/// Frees all runs, after which everything is free that was at first.
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
