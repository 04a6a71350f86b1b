//! Images that reserve more numbers than their first group has.

use std::collections::BTreeSet;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_ondisk::InodeNumber;
use pext4_ondisk::superblock::{OFFSET, SIZE, Superblock};

use super::super::Placement;
use crate::error::Refusal;
use crate::groups::testing::{Ground, image, settings};
use crate::options::MountOptions;

/// Four groups of four lines each.
const SHAPE: [&str; 8] = [
    "-b",
    "4096",
    "-g",
    "4096",
    "-N",
    "8192",
    "-E",
    "lazy_itable_init=0",
];
/// All numbers of two groups are reserved, and those of more than a line of the third.
const FIRST: u32 = 2 * 2048 + 600;

fn reserve(device: &Arc<RamDevice>) {
    let mut bytes = [0; SIZE];
    device.read_at(OFFSET, &mut bytes).expect("it is there");
    let mut superblock = Superblock::decode(&bytes).expect("mke2fs made it");
    superblock.first_inode = FIRST;
    let bytes = superblock.encode();
    device.write_at(OFFSET, &bytes).expect("it is there");
}

#[test]
fn reserved_numbers_of_later_groups_are_not_given_out() {
    for scaling in settings() {
        let Some(device) = image(&SHAPE, "64M") else {
            return;
        };
        reserve(&device);
        println!("setting {scaling}");
        let options = MountOptions {
            scaling,
            ..MountOptions::default()
        };
        let ground = Ground::open(device, options).expect("a fresh image");
        let geometry = &ground.store.geometry;
        let mut seen = BTreeSet::new();
        for round in 0.. {
            // Of all groups.
            let parent = InodeNumber(1 + round % geometry.inodes_count);
            let home = ground.groups.home_of(parent);
            let mut handle = ground.handle();
            if round % 3 == 0 {
                // As if it had lost a race.
                ground.groups.hints.lane().1.seek(home, handle.tid());
            }
            let placement = match round % 5 {
                0 => Placement::Directory,
                _ => Placement::File,
            };
            match ground.groups.allocate_inode(&mut handle, parent, placement) {
                Ok(inode) => {
                    assert!(inode.get() >= FIRST, "{inode}");
                    assert!(seen.insert(inode), "{inode} twice");
                }
                Err(error) => {
                    assert!(error.is(Refusal::NoInodes), "{error}");
                    break;
                }
            }
        }
        assert_eq!(seen.len(), 8192 - FIRST as usize + 1);
        assert_eq!(
            ground.store.superblock(|superblock| superblock.error_count),
            0
        );
    }
}
