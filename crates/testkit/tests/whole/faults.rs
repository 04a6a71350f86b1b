//! Failing devices: errors are reported, writing stops, and everything acknowledged survives.

use std::sync::Arc;
use std::time::Duration;

use pext4_block::fault::{FaultDevice, Operation};
use pext4_block::{Device, RamDevice};
use pext4_testkit::Random;
use pext4_testkit::campaign::{Stage, step};
use pext4_testkit::crash::judge::Judge;
use pext4_testkit::crash::recording::History;
use pext4_testkit::effort::{scratch, seeds};
use pext4_testkit::errno::{EIO, EROFS};
use pext4_testkit::op::generate::{Generator, Profile};
use pext4_testkit::op::{NewAttributes, Op, Target};
use pext4_testkit::oracle::check::{recover, repair};
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::outcome::Subject;
use pext4_testkit::volume::{VolumeSubject, tree_of};

fn stage(block_size: u32, features: Features) -> Stage {
    let format = Format::new(16 << 20, block_size, features).inodes(1024);
    Stage::new(format).expect("mke2fs makes it")
}

/// Runs operations until one fails for the device's sake; positions of the log are operations.
fn run_until_failure(
    stage: &Stage,
    device: &Arc<FaultDevice>,
    seed: u64,
) -> (VolumeSubject, History, String) {
    let below: Arc<dyn Device> = Arc::<FaultDevice>::clone(device);
    let mut subject = VolumeSubject::open(below, stage.options.clone()).expect("nothing fails yet");
    let mut random = Random::new(seed);
    let failing = [Operation::Write, Operation::Write, Operation::Flush];
    device.fail_nth(*random.pick(&failing), random.below(60));
    let profile = Profile {
        syncs: 25,
        remounts: 0,
        ..Profile::crashes()
    };
    let generator = Generator::new(profile);
    let mut run = History::from(b"", stage.model());
    for number in 0..2000 {
        let mut model = run.models.last().expect("one stands at the start").clone();
        let op = generator.next(&mut random, &model);
        let outcome = subject.run(&op);
        if let Err(failure) = &outcome
            && [EIO, EROFS].contains(&failure.errno)
        {
            return (subject, run, format!("{op}: {failure}"));
        }
        model
            .follow(&op, &outcome)
            .unwrap_or_else(|text| panic!("seed {seed}: {op}: {text}"));
        run.started.push(number);
        run.returned.push(number);
        run.ops.push(op);
        run.models.push(model);
    }
    panic!(
        "seed {seed}: the device failed {} times and nobody was told",
        device.failures()
    );
}

fn fail_once(stage: &Stage, seed: u64) {
    let ram = stage.device();
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&ram)));
    let (mut subject, run, told) = run_until_failure(stage, &device, seed);
    let context = format!("seed {seed}, {told}");
    let create = Op::Create {
        at: Target::path("after-the-failure"),
        new: NewAttributes::plain(0o644),
    };
    let sync = subject.run(&create).and_then(|_| subject.run(&Op::Sync));
    assert!(
        sync.is_err(),
        "{context}: something was acknowledged after a failure"
    );
    assert!(becomes_read_only(&subject), "{context}: still writable");
    assert!(
        subject.run(&Op::Stat(Target::root())).is_ok(),
        "{context}: it can still be read"
    );
    device.heal();
    if seed.is_multiple_of(2) {
        // What it says is no matter, only what it leaves.
        let _ = subject.close();
    } else {
        subject.abandon();
    }
    let folder = scratch();
    let path = folder.path().join("image");
    ram.save(&path).expect("saved");
    let judge = Judge::new(&run, usize::MAX);
    let tree =
        tree_of(Arc::new(ram.fork()), false).unwrap_or_else(|error| panic!("{context}: {error:#}"));
    judge
        .state_of(&tree)
        .unwrap_or_else(|text| panic!("{context}: {text}"));
    repair(&path).unwrap_or_else(|error| panic!("{context}: {error:#}"));
    let again = RamDevice::load(&path).expect("loaded");
    let tree =
        tree_of(Arc::new(again), true).unwrap_or_else(|error| panic!("{context}: {error:#}"));
    judge
        .state_of(&tree)
        .unwrap_or_else(|text| panic!("{context}: after e2fsck: {text}"));
}

/// Waits until the volume is read-only: it learns of the stopped journal a moment after the caller
/// that waited for a commit.
fn becomes_read_only(subject: &VolumeSubject) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        subject.volume().is_read_only()
    })
}

#[test]
fn a_failed_write_or_flush_stops_writing_and_loses_nothing() {
    for (block_size, features) in [
        (1024, Features::Upstream),
        (4096, Features::Debian12),
        (1024, Features::Ext3),
    ] {
        let stage = stage(block_size, features);
        for seed in seeds(8) {
            fail_once(&stage, seed);
        }
    }
}

/// The failure stands in the superblock, and stays there over a replay.
#[test]
fn a_failure_is_remembered_in_the_superblock() {
    let stage = stage(1024, Features::Upstream);
    let ram = stage.device();
    let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&ram)));
    let mut subject =
        VolumeSubject::open(Arc::<FaultDevice>::clone(&device), stage.options.clone())
            .expect("mountable");
    let create = Op::Create {
        at: Target::path("a"),
        new: NewAttributes::plain(0o644),
    };
    subject.run(&create).expect("there is room");
    device.fail_nth(Operation::Write, 0);
    assert!(subject.run(&Op::Sync).is_err());
    let _ = subject.close();
    device.heal();
    tree_of(Arc::<RamDevice>::clone(&ram), false).expect("mountable again");
    let folder = scratch();
    let path = folder.path().join("image");
    ram.save(&path).expect("saved");
    let told =
        pext4_testkit::oracle::run(pext4_testkit::oracle::tool("dumpe2fs").arg("-h").arg(&path));
    let told = told.expect("readable");
    assert!(told.contains("FS Error count"), "{told}");
}

/// Reads that fail are errors of the operation, and nothing is lost by them.
#[test]
fn failed_reads_are_errors_and_pass() {
    let stage = stage(1024, Features::Upstream);
    for seed in seeds(10) {
        let ram = stage.device();
        fill(&stage, &ram, seed);
        let device = Arc::new(FaultDevice::new(Arc::<RamDevice>::clone(&ram)));
        let mut random = Random::new(seed);
        device.fail_nth(Operation::Read, random.below(30));
        if let Ok(mut subject) =
            VolumeSubject::open(Arc::<FaultDevice>::clone(&device), stage.options.clone())
        {
            let _ = subject.tree();
            let _ = subject.run(&Op::Unlink(Target::path("a")));
            let _ = subject.run(&Op::Create {
                at: Target::path("later"),
                new: NewAttributes::plain(0o644),
            });
            let _ = subject.close();
        }
        device.heal();
        tree_of(Arc::<RamDevice>::clone(&ram), false)
            .unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        let folder = scratch();
        let path = folder.path().join("image");
        ram.save(&path).expect("saved");
        recover(&path).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
    }
}

fn fill(stage: &Stage, ram: &Arc<RamDevice>, seed: u64) {
    let mut subject = VolumeSubject::open(Arc::<RamDevice>::clone(ram), stage.options.clone())
        .expect("mountable");
    let mut model = stage.model();
    let mut random = Random::new(seed);
    let generator = Generator::new(Profile {
        remounts: 0,
        ..Profile::crashes()
    });
    for _ in 0..150 {
        let op = generator.next(&mut random, &model);
        step(&mut subject, &mut model, &op).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
    subject.close().expect("it closes");
}
