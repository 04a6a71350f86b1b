//! Every workload with two tasks for a fixed number of steps, in process and on a path.

use std::sync::Arc;

use pext4_block::RamDevice;
use pext4_fs::{MountOptions, Volume};
use pext4_image::mkfs;
use pext4_lab::target::{Library, MountedPath, Target};
use pext4_lab::workloads::{ALL, Plan, Task, Workload};
use pext4_testkit::oracle::check::e2fsck;

/// Enough for a full cycle of every workload; few enough for those that sync in every step.
const STEPS: u32 = 2500;
const STEPS_ON_A_DISK: u32 = 400;

fn plan() -> Plan {
    Plan {
        tasks: 2,
        files: 100,
        file_size: 1 << 20,
        ..Plan::default()
    }
}

/// Runs two tasks at once; each takes the same number of steps.
fn drive(workload: &dyn Workload, target: &dyn Target, steps: u32) {
    let plan = plan();
    workload.prepare(target, &plan).expect("prepared");
    let tasks: Vec<Box<dyn Task>> = (0..plan.tasks)
        .map(|number| workload.task(target, &plan, number).expect("a task"))
        .collect();
    std::thread::scope(|scope| {
        for mut task in tasks {
            scope.spawn(move || {
                let mut done = 0;
                for _ in 0..steps {
                    done += task.step(target).expect("a step").operations;
                }
                assert!(done > 0, "steps without operations");
                task.finish(target).expect("finished");
            });
        }
    });
    workload.clean(target).expect("clean");
    let left = target.list(target.root()).expect("listed");
    assert!(left.is_empty(), "{} leaves {left:?}", workload.name());
}

#[test]
fn in_process_and_the_image_is_clean() {
    for workload in ALL {
        let device = Arc::new(RamDevice::new(256 << 20));
        let inode_size = if workload.needs(&plan()).small_inodes {
            128
        } else {
            256
        };
        let options = mkfs::Options {
            inode_size,
            ..mkfs::Options::default()
        };
        mkfs::mkfs(&*device, &options).expect("made");
        let volume = Volume::open(device.clone(), MountOptions::default()).expect("opened");
        let target = Library::new(volume).expect("a directory");
        drive(*workload, &target, STEPS);
        target.close().expect("closed");
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        device.save(&image).expect("saved");
        let name = workload.name();
        e2fsck(&image).expect(name);
    }
}

#[test]
fn on_a_path() {
    for workload in ALL {
        let folder = tempfile::tempdir().expect("a folder");
        let target = MountedPath::open(folder.path()).expect("opened");
        drive(*workload, &target, STEPS_ON_A_DISK);
        let left = std::fs::read_dir(folder.path()).expect("listed").count();
        assert_eq!(left, 0, "{}", workload.name());
    }
}
