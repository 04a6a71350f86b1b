//! Quota files that are damaged.

use std::sync::Arc;

use pext4_block::fault::{FaultDevice, Operation};
use pext4_block::{Device, RamDevice};
use pext4_fs::{MountOptions, Volume};

use super::{ROOT, change_everything, create, owned_by};
use crate::images::Image;

/// Usage could not be kept right in a quota file that is none: reading goes on.
#[test]
fn a_quota_file_that_cannot_be_true_prevents_writing() {
    for (request, problem) in [
        ("set_inode_field <3> size 5120", "6 blocks in 5120 bytes"),
        ("set_inode_field <4> links_count 0", "is no regular file"),
        ("zap_block -f <3> -p 0x55 0", "magic is 0x55555555"),
        (
            "zap_block -f <4> -o 1024 -l 4 -p 0x11 0",
            "leads to its block 286331153 of 6",
        ),
        (
            "zap_block -f <4> -o 2048 -l 1 -p 1 0",
            "block 1 has two parents",
        ),
        (
            "zap_block -f <3> -o 0 -l 1 -p 2 1",
            "block 2 is a node and a leaf",
        ),
        (
            "zap_block -f <3> -o 1176 -l 1 -p 1 1",
            "two entries for number 0",
        ),
        ("set_inode_field <3> block[1] 1", "own structures"),
    ] {
        let arguments = ["-O", "quota,^metadata_csum,^extent,^64bit", "-b", "4096"];
        let Some(image) = Image::make(&arguments) else {
            return;
        };
        image.debugfs_write(request);
        let device = || Arc::new(RamDevice::load(&image.path).expect("the image"));
        let refused = Volume::open(device(), MountOptions::default());
        let text = refused.expect_err("usage cannot be counted").to_string();
        assert!(
            text.contains(problem) && text.contains("-o ro"),
            "{request}: {text}"
        );
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let volume = Volume::open(device(), options).expect("reading needs no quota");
        assert!(volume.lookup(ROOT, b"lost+found").is_ok());
    }
}

/// Opens an image in memory, for which usage cannot be counted; returns why.
fn refused(image: &Image) -> String {
    let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let before = contents(&device);
    let refused = Volume::open(Arc::<RamDevice>::clone(&device), MountOptions::default());
    let text = refused.expect_err("usage cannot be counted").to_string();
    assert!(contents(&device) == before, "something was written: {text}");
    text
}

fn contents(device: &RamDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.size()).expect("64 MiB")];
    device.read_at(0, &mut bytes).expect("memory");
    bytes
}

fn blocks_of(image: &Image, inode: u32) -> Vec<usize> {
    let told = image.debugfs(&format!("blocks <{inode}>"));
    let words = told.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// What is stored in one file would change the other.
#[test]
fn quota_files_share_no_blocks() {
    let arguments = ["-O", "quota,^metadata_csum,^extent,^64bit", "-b", "4096"];
    for (file, other) in [(3, 4), (4, 3)] {
        let Some(image) = Image::make(&arguments) else {
            return;
        };
        let block = blocks_of(&image, other)[1];
        image.debugfs_write(&format!("set_inode_field <{file}> block[1] {block}"));
        let text = refused(&image);
        assert!(text.contains("shares it with another"), "{file}: {text}");
    }
}

#[test]
fn a_quota_file_of_an_absurd_size_is_refused() {
    let Some(image) = Image::make(&["-O", "quota", "-b", "1024"]) else {
        return;
    };
    for (size, problem) in [
        (u64::MAX, "absurdly large"),
        (i64::MAX as u64, "absurdly large"),
        (u64::MAX - 1023, "absurdly large"),
        (1 << 60, "absurdly large"),
        (0, "hole"),
    ] {
        image.debugfs_write(&format!("set_inode_field <4> size {size}"));
        let text = refused(&image);
        assert!(text.contains(problem), "{size}: {text}");
    }
}

/// A journal that waits to be replayed stays as it is.
#[test]
fn nothing_is_replayed_for_a_quota_file_that_cannot_be_true() {
    let Some(image) = Image::make(&["-O", "quota,^metadata_csum", "-b", "1024"]) else {
        return;
    };
    let (device, volume) = image.load();
    create(&volume, ROOT, b"file", &owned_by(0, 0));
    volume.sync().expect("durable");
    std::fs::write(&image.path, contents(&device)).expect("the image");
    drop(volume);
    let log = image.debugfs("logdump -c");
    assert!(log.contains("commit block"), "it has a transaction: {log}");
    let leaf = blocks_of(&image, 3)[0];
    image.change(|bytes| bytes[leaf * 1024] ^= 1);
    assert!(refused(&image).contains("magic"));
}

/// A number in a field that is not in use without the feature is no quota file.
#[test]
fn a_project_quota_file_without_projects_is_none() {
    let Some(image) = Image::make(&["-O", "quota,^project"]) else {
        return;
    };
    image.debugfs_write("set_super_value prj_quota_inum 12");
    let volume = image.open();
    assert!(!volume.is_read_only(), "{:?}", volume.notes());
    create(&volume, ROOT, b"file", &owned_by(7, 8));
    volume.close().expect("it closes");
    image.debugfs_write("set_super_value prj_quota_inum 0");
    image.assert_clean();
}

/// Usage whose block cannot be read when the transaction closes: nothing of that is committed.
#[test]
fn usage_that_cannot_be_stored_stops_writing() {
    let Some(image) = Image::make(&["-O", "quota", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    let names = || (0..3000).map(|number| format!("a-name-that-takes-some-room-{number:060}"));
    names().for_each(|name| create(&volume, ROOT, name.as_bytes(), &owned_by(0, 0)));
    volume.close().expect("it closes");
    let ram = Arc::new(RamDevice::load(&image.path).expect("the image"));
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&ram)));
    let options = MountOptions {
        cache_size: 128 << 10,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::<FaultDevice>::clone(&device), options).expect("it is sound");
    for name in names() {
        let found = volume.lookup(ROOT, name.as_bytes()).expect("it is there");
        volume.forget(found.inode, 1);
    }
    let leaf = *blocks_of(&image, 3).last().expect("it has blocks") as u64 * 1024;
    device.fail_touching(Operation::Read, leaf..leaf + 1024);
    create(&volume, ROOT, b"file", &owned_by(0, 0));
    volume.sync().expect_err("usage cannot be stored");
    assert!(volume.is_read_only());
    assert!(device.failures() > 0, "its block was in the cache");
    drop(volume);
    std::fs::write(&image.path, contents(&ram)).expect("the image");
    let volume = image.open();
    assert!(volume.lookup(ROOT, b"file").is_err());
    volume.close().expect("it closes");
    image.debugfs_write("set_super_value state 1");
    image.debugfs_write("set_super_value error_count 0");
    image.assert_clean();
}

/// Random bytes in quota files: a mount refuses them or works with them; nothing panics.
#[test]
fn random_quota_files_are_refused_or_used() {
    let Some(image) = Image::make(&["-O", "quota,project,^metadata_csum", "-b", "1024"]) else {
        return;
    };
    let volume = image.open();
    change_everything(&volume);
    volume.close().expect("it closes");
    let blocks = [3, 4].map(|file| blocks_of(&image, file)).concat();
    assert!(blocks.len() > 12, "{blocks:?}");
    let bytes = std::fs::read(&image.path).expect("the image");
    let (mut refused, mut used) = (0, 0);
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let start = blocks[random.usize(..blocks.len())] * 1024;
            let at = start + random.usize(..256) * 4;
            let most = if random.bool() { 20 } else { u32::MAX };
            let word = random.u32(..most);
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let device = Arc::new(RamDevice::new(bytes.len() as u64));
        device.write_at(0, &bytes).expect("memory");
        let Ok(volume) = Volume::open(device, MountOptions::default()) else {
            refused += 1;
            continue;
        };
        used += 1;
        for owner in 0..40 {
            let name = format!("new-{owner}");
            // It may fail, and by damage end all writing.
            let _ = volume.create(ROOT, name.as_bytes(), &owned_by(owner * 999, owner));
        }
        let _ = volume.paths().remove_dir_all("/top");
        let _ = volume.close();
    }
    assert!(refused > 3 && used > 3, "{refused} refused, {used} used");
}
