//! An image that is filled before a run begins.

use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::{MountOptions, Volume};
use pext4_image::mkfs;
use pext4_lab::fill::make_ready;
use pext4_lab::fragmentation;
use pext4_lab::target::{HOME, Library, Target};
use pext4_lab::workloads::{Plan, find};

const BLOCK: u64 = 4096;

/// Options without blocks reserved for root: the reserve would lie in one piece.
fn options() -> mkfs::Options {
    mkfs::Options {
        reserved_percent: 0.0,
        ..mkfs::Options::default()
    }
}

/// A target on a new image of this size, and the device.
fn target(size: u64) -> (Library, Arc<RamDevice>) {
    let device = Arc::new(RamDevice::new(size));
    mkfs::mkfs(&*device, &options()).expect("made");
    let volume = Volume::open(device.clone(), MountOptions::default()).expect("opened");
    (Library::new(volume).expect("a directory"), device)
}

#[test]
fn what_is_free_lies_in_pieces_all_over_the_image() {
    let (target, device) = target(1 << 30);
    let before = target.room().expect("room").bytes;
    let workload = find("fallocate2").expect("there");
    let plan = Plan {
        fill: Some(90),
        ..Plan::default()
    };
    make_ready(&target, workload, &plan).expect("filled");
    let after = target.room().expect("room").bytes;
    let share = after as f64 / before as f64;
    assert!((0.08..0.12).contains(&share), "{share} is free");
    make_ready(&target, workload, &plan).expect("nothing to do");
    assert_eq!(target.room().expect("room").bytes, after, "filled once");
    target.close().expect("closed");
    let found = fragmentation::of_image(device, None).expect("counted");
    // Half of all holes have 8 blocks or fewer; the mean of 1 to 128 is 32.
    let (runs, average) = (found.free_extents, found.average_free_extent);
    assert!(runs.expect("counted") > 500, "{runs:?}");
    let average = average.expect("counted") / BLOCK;
    assert!((16..64).contains(&average), "{average} blocks");
}

#[test]
fn files_that_fill_the_image_are_none_of_the_workloads() {
    let (target, device) = target(64 << 20);
    let plan = Plan {
        fill: Some(50),
        tasks: 1,
        file_size: BLOCK,
        ..Plan::default()
    };
    make_ready(&target, find("falloc-append").expect("there"), &plan).expect("filled");
    for name in ["one", "two"] {
        let file = target.create(target.root(), name).expect("made");
        target.allocate(&file, 0, BLOCK).expect("there is room");
        Target::close(&target, file);
    }
    target.close().expect("closed");
    let found = fragmentation::of_image(device, Some(HOME)).expect("counted");
    assert_eq!((found.files, found.extents), (2, 2));
}

#[test]
fn as_much_is_taken_as_was_asked_for() {
    let workload = find("fallocate2").expect("there");
    for percent in [1, 2, 10, 35, 50, 90, 97, 99] {
        let (target, _device) = target(1 << 30);
        let before = target.room().expect("room").bytes as f64;
        let fill = Some(percent);
        let plan = Plan {
            fill,
            ..Plan::default()
        };
        make_ready(&target, workload, &plan).expect("filled");
        let taken = 100.0 * (1.0 - target.room().expect("room").bytes as f64 / before);
        let wrong = taken - f64::from(percent);
        assert!(wrong.abs() < 0.3, "{taken:.2} % instead of {percent} %");
    }
}

#[test]
fn a_task_that_does_not_fit_any_more_is_refused() {
    let (target, _device) = target(64 << 20);
    let plan = Plan {
        fill: Some(99),
        tasks: 16,
        ..Plan::default()
    };
    let told = make_ready(&target, find("fallocate2").expect("there"), &plan);
    let told = told.expect_err("there is no room left").to_string();
    assert!(told.contains("no room"), "{told}");
}
