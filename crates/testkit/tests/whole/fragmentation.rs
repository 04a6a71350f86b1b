//! Many files that grow at the same time in small pieces get long extents, whatever the number of
//! cores.

use std::sync::Arc;
use std::thread;

use pext4_block::RamDevice;
use pext4_fs::options::Scaling;
use pext4_fs::{AllocateMode, CreateAttributes, InodeNumber, MountOptions, Volume};
use pext4_image::mkfs;
use pext4_sync::topology;
use pext4_testkit::effort::effort;

const IMAGE: u64 = 200 << 30;
const TASKS: usize = 64;
const PIECE: u64 = 4 << 10;

/// Each task appends to a file of its own; none may have more than `most` extents.
fn grow_side_by_side(setting: &str, length: u64, most: usize) {
    let device = Arc::new(RamDevice::new(IMAGE));
    mkfs::mkfs(&*device, &mkfs::Options::default()).expect("an image");
    let options = MountOptions {
        scaling: Scaling::parse(setting).expect("a setting"),
        ..MountOptions::default()
    };
    let volume = Volume::open(device, options).expect("mountable");
    let files: Vec<InodeNumber> = (0..TASKS)
        .map(|number| {
            let name = format!("job{number}");
            let made = volume.create(
                InodeNumber::ROOT,
                name.as_bytes(),
                &CreateAttributes::default(),
            );
            made.expect("room for a file").inode
        })
        .collect();
    thread::scope(|scope| {
        for (number, &file) in files.iter().enumerate() {
            let volume = &volume;
            scope.spawn(move || {
                let _pin = topology::pin(number % 2);
                for piece in 0..length / PIECE {
                    volume
                        .allocate(file, AllocateMode::Extend, piece * PIECE, PIECE)
                        .expect("room");
                }
            });
        }
    });
    let counts: Vec<usize> = files.iter().map(|&file| extents(&volume, file)).collect();
    let largest = counts.iter().max().copied().unwrap_or(0);
    let sum: usize = counts.iter().sum();
    println!(
        "{setting}: {TASKS} files of {} MiB have {largest} extents at most, {sum} in all",
        length >> 20
    );
    assert!(largest <= most, "{setting}: {counts:?}");
    volume.close().expect("it closes");
}

/// The number of extents; runs that are adjacent both in the file and on the device are one.
fn extents(volume: &Volume, file: InodeNumber) -> usize {
    let ranges = volume.extents(file, 0, usize::MAX).expect("mapped");
    let breaks = ranges
        .windows(2)
        .filter(|pair| pair[0].physical + pair[0].length != pair[1].physical);
    1 + breaks.count()
}

#[test]
fn sixty_four_files_on_two_cores_get_long_extents() {
    // Up to 64 KiB, a file takes its blocks from its shard's run, and if tasks take turns after
    // each block it has 16 extents. Later, each search finds as much as the file has, up to 8 MiB:
    // one more extent for each doubling, and one for each 8 MiB.
    if effort() > 1 {
        for setting in ["full", "full,mb_optimize_scan=0", "seeds"] {
            grow_side_by_side(setting, 64 << 20, 16 + 7 + 8);
        }
    } else {
        for setting in ["full", "full,mb_optimize_scan=0"] {
            grow_side_by_side(setting, 8 << 20, 16 + 7);
        }
    }
}
