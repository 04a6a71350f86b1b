//! Images with multiple mount protection: the block moves with the rest, and keeps other machines
//! away meanwhile.

use std::fs;
use std::path::Path;

use pext4_block::{Device, RamDevice};
use pext4_image::resize::{Options, Plan, Resize, Target};
use pext4_ondisk::mmp::{Mmp, Use};

use super::rig::{
    MIB, assert_clean, assert_holds, field, image, open, protect_mounts, resize, scratch, source,
    tools,
};

/// Who uses the image, as its block says.
fn mount_protection(path: &Path) -> Use {
    let block: u64 = field(path, "MMP block number:").parse().expect("a number");
    let mut bytes = [0; 1024];
    let device = RamDevice::load(path).expect("an image");
    let read = device.read_at(block * 1024, &mut bytes);
    read.expect("it lies within");
    Mmp::decode(&bytes, None).expect("it is sound").usage()
}

#[test]
fn the_block_of_mount_protection_moves() {
    if !tools() {
        return;
    }
    for options in ["-t ext4", "-t ext4 -O ^metadata_csum"] {
        let folder = scratch();
        let tree = source(folder.path(), 100 << 10);
        let options = format!("{options} -g 2048 -N 640 -b 1024");
        let path = image(folder.path(), &options, 36 * MIB, &tree);
        protect_mounts(&path, 34_000);
        assert_clean(&path, "with mount protection");
        resize(&path, Target::Bytes(25 * MIB), false).expect("it can be smaller");
        assert_clean(&path, "smaller, with mount protection");
        assert_holds(&path, &tree, "smaller, with mount protection");
        let block: u64 = field(&path, "MMP block number:").parse().expect("a number");
        assert!((1..25 * 1024).contains(&block), "{options}: {block}");
        assert_eq!(mount_protection(&path), Use::Clean, "{options}");
    }
}

/// A machine that mounted the image meanwhile would have it changed under it.
#[test]
fn an_image_with_mount_protection_is_claimed_for_the_resize() {
    if !tools() {
        return;
    }
    for (in_place, bytes) in [(false, 40 * MIB), (false, 30 * MIB), (true, 30 * MIB)] {
        let folder = scratch();
        let tree = source(folder.path(), 100 << 10);
        let path = image(folder.path(), "-t ext4 -b 1024 -O mmp", 36 * MIB, &tree);
        let before = fs::read(&path).expect("an image");
        let options = Options {
            in_place,
            ..Options::default()
        };
        let prepare = || Resize::prepare(open(&path), Target::Bytes(bytes), options.clone());
        let resize = prepare().expect("nobody uses it");
        assert_eq!(mount_protection(&path), Use::Checking);
        let device = RamDevice::load(&path).expect("an image");
        let told = Plan::make(&device, Target::Bytes(bytes)).expect_err("it is claimed");
        assert!(told.to_string().contains("clear_mmp"), "{told}");
        drop(resize);
        assert!(fs::read(&path).expect("an image") == before, "given back");
        prepare().expect("nobody uses it").run().expect("room");
        assert_eq!(mount_protection(&path), Use::Clean);
        assert_clean(&path, "resized, with mount protection");
        assert_holds(&path, &tree, "resized, with mount protection");
    }
}
