//! What a call that has returned promises of the image that a power cut leaves.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::RamDevice;
use pext4_fs::{AllocateMode, CreateAttributes, InodeNumber, MountOptions, SetAttributes, Volume};

use crate::images::Image;

const ROOT: InodeNumber = InodeNumber::ROOT;

fn file(volume: &Volume, name: &[u8]) -> InodeNumber {
    let made = volume.create(ROOT, name, &CreateAttributes::default());
    made.expect("room for a file").inode
}

/// What a volume is as a power cut leaves it, without any commit but those that are asked for.
struct Cut {
    device: Arc<RamDevice>,
    volume: Volume,
}

impl Cut {
    fn new() -> Option<Self> {
        let image = Image::make(&["-b", "4096"])?;
        let device = Arc::new(RamDevice::load(&image.path).expect("the image"));
        let options = MountOptions {
            commit_interval: Duration::from_secs(3600),
            ..MountOptions::default()
        };
        let volume = Volume::open(Arc::<RamDevice>::clone(&device), options).expect("a mount");
        Some(Self { device, volume })
    }

    fn content(&self, path: &str) -> Vec<u8> {
        let after = Arc::new(self.device.fork());
        let volume = Volume::open(after, MountOptions::default()).expect("a mount");
        volume.paths().read(path).expect("it is there")
    }
}

/// Where a file has many extents, only a node of its map changes, and not the inode itself.
#[test]
fn fdatasync_covers_the_use_of_space_that_was_set_aside() {
    let Some(cut) = Cut::new() else {
        return;
    };
    let (volume, inode) = (&cut.volume, file(&cut.volume, b"file"));
    volume
        .allocate(inode, AllocateMode::Extend, 0, 1 << 20)
        .expect("room");
    for block in (0..256).step_by(2) {
        volume.write(inode, block * 4096, &[1; 4096]).expect("room");
    }
    volume.sync().expect("durable");
    volume
        .write(inode, 101 * 4096, &[7; 4096])
        .expect("set aside");
    volume.fdatasync(inode).expect("durable");
    assert_eq!(cut.content("/file")[101 * 4096..][..4096], [7; 4096]);
}

/// What a truncation cut off may come back as long as it is not durable, and then it is whole.
#[test]
fn zeroes_behind_the_end_of_a_file_do_not_reach_what_was_cut_off() {
    let modes = [
        (AllocateMode::PunchHole, 4500..8000),
        (AllocateMode::PunchHole, 6000..7000),
        (AllocateMode::ZeroRange { keep_size: true }, 4500..8000),
        (AllocateMode::ZeroRange { keep_size: true }, 6000..7000),
    ];
    for (mode, range) in modes {
        let Some(cut) = Cut::new() else {
            return;
        };
        let inode = file(&cut.volume, b"file");
        cut.volume.write(inode, 0, &[1; 10_000]).expect("room");
        cut.volume.fsync(inode).expect("durable");
        let change = SetAttributes {
            size: Some(5000),
            ..SetAttributes::default()
        };
        cut.volume.set_attributes(inode, &change).expect("allowed");
        let zeroed = cut
            .volume
            .allocate(inode, mode, range.start, range.end - range.start);
        zeroed.expect("allowed");
        let content = cut.content("/file");
        assert_eq!(content.len(), 10_000, "nothing has committed");
        assert_eq!(content[5000..], [1; 5000], "{mode:?} {range:?}");
        cut.volume.fsync(inode).expect("durable");
        assert_eq!(cut.content("/file").len(), 5000);
    }
}

/// The block in which the file ends by now is unwritten then, and a write fills all of it.
#[test]
fn a_write_to_a_zeroed_block_does_not_reach_what_was_cut_off() {
    let Some(cut) = Cut::new() else {
        return;
    };
    let inode = file(&cut.volume, b"file");
    cut.volume.write(inode, 0, &[1; 8192]).expect("room");
    cut.volume.fsync(inode).expect("durable");
    let change = SetAttributes {
        size: Some(5000),
        ..SetAttributes::default()
    };
    cut.volume.set_attributes(inode, &change).expect("allowed");
    let mode = AllocateMode::ZeroRange { keep_size: true };
    let zeroed = cut.volume.allocate(inode, mode, 4096, 4096);
    zeroed.expect("allowed");
    cut.volume.write(inode, 4096, &[2; 10]).expect("room");
    let content = cut.content("/file");
    if content.len() > 5000 {
        assert_eq!(content[5000..], [1; 8192 - 5000]);
    }
    cut.volume.fsync(inode).expect("durable");
    let content = cut.content("/file");
    assert_eq!(content[4096..], [&[2; 10][..], &[0; 5000 - 4106]].concat());
}

#[test]
fn fdatasync_covers_the_first_name_of_a_file() {
    let Some(cut) = Cut::new() else {
        return;
    };
    let made = cut
        .volume
        .create_unnamed(ROOT, &CreateAttributes::default());
    let inode = made.expect("room").inode;
    cut.volume.write(inode, 0, b"content").expect("room");
    cut.volume.fdatasync(inode).expect("durable");
    let _ = cut.volume.link(inode, ROOT, b"file").expect("it has none");
    cut.volume.fdatasync(inode).expect("durable");
    assert_eq!(cut.content("/file"), b"content");
}

/// Nothing of the directory that is synced has changed, nor of what is moved out of it.
#[test]
fn fsync_of_a_directory_covers_what_was_done_below_it() {
    for sync in [Volume::fsync, Volume::fdatasync] {
        let Some(cut) = Cut::new() else {
            return;
        };
        let paths = cut.volume.paths();
        for path in ["/t", "/t/A", "/t/B"] {
            paths.create_dir(path).expect("room");
        }
        paths.write("/t/A/foo", b"content").expect("room");
        cut.volume.sync().expect("durable");
        paths
            .rename("/t/A/foo", "/t/B/foo")
            .expect("both are there");
        paths.write("/t/A/new", b"later").expect("room");
        let top = paths.attributes("/t").expect("it is there").inode;
        sync(&cut.volume, top).expect("durable");
        assert_eq!(cut.content("/t/B/foo"), b"content");
        assert_eq!(cut.content("/t/A/new"), b"later");
    }
}
