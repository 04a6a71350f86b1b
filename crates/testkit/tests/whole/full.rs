//! A volume that is filled, emptied, and filled again.

use pext4_testkit::campaign::{self, Stage, check_device, compare, step};
use pext4_testkit::effort::seeds;
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::{NewAttributes, Op, Target};
use pext4_testkit::oracle::format::{Features, Format, everyday};
use pext4_testkit::outcome::{Answer, Space, Subject};
use pext4_testkit::volume::VolumeSubject;

fn space(subject: &mut VolumeSubject) -> Space {
    match subject.run(&Op::Statistics) {
        Ok(Answer::Space(space)) => space,
        other => panic!("statfs answers {other:?}"),
    }
}

#[test]
fn random_operations_on_a_volume_that_is_too_small() {
    for format in everyday(8 << 20) {
        let stage = Stage::new(format).and_then(Stage::soiled);
        let stage = stage.expect("mke2fs makes it").filling();
        for seed in seeds(6) {
            let profile = Profile {
                largest: 4 << 20,
                longest_write: 400 << 10,
                huge: false,
                ..Profile::contents()
            };
            campaign::run(&stage, "full", profile, seed, 600);
        }
    }
}

/// Fills the volume with one file, then with small ones, deletes all, and repeats: the same space
/// must be available each time.
#[test]
fn what_was_deleted_can_be_written_again() {
    let ext3 = Format::new(16 << 20, 1024, Features::Ext3).inodes(2048);
    for format in everyday(16 << 20).into_iter().chain([ext3]) {
        let stage = Stage::new(format).expect("mke2fs makes it").filling();
        let device = stage.device();
        let mut subject =
            VolumeSubject::open(device.clone(), stage.options.clone()).expect("mountable");
        let mut model = stage.model();
        let mut first = None;
        for round in 0..3 {
            let files = fill(&mut subject, &mut model, round);
            assert!(
                space(&mut subject).free_blocks < 64,
                "ENOSPC with {:?}",
                space(&mut subject)
            );
            compare(&mut subject, &mut model).expect("consistent when full");
            for number in 0..files {
                let at = Target::path(&format!("f{number}"));
                step(&mut subject, &mut model, &Op::Unlink(at)).expect("deleting needs no space");
            }
            step(&mut subject, &mut model, &Op::Sync).expect("durable");
            let free = space(&mut subject).free_blocks;
            assert_eq!(
                free,
                *first.get_or_insert(free),
                "round {round}, {}",
                stage.format.describe()
            );
        }
        compare(&mut subject, &mut model).expect("empty again");
        subject.close().expect("it closes");
        check_device(&device).expect("clean");
    }
}

/// Writes files until the space runs out; returns their number.
fn fill(subject: &mut VolumeSubject, model: &mut pext4_testkit::model::Model, round: u64) -> u64 {
    let length = if round == 1 { 30_000 } else { 1 << 20 };
    for number in 0.. {
        let at = Target::path(&format!("f{number}"));
        let made = Op::Create {
            at: at.clone(),
            new: NewAttributes::plain(0o644),
        };
        step(subject, model, &made).unwrap_or_else(|text| panic!("round {round}: {text}"));
        if model.resolve(&at).is_err() {
            return number;
        }
        for piece in 0..8 {
            let op = Op::Write {
                of: at.clone(),
                offset: piece * length,
                length,
                fill: number + 1,
            };
            let outcome = subject.run(&op);
            model
                .follow(&op, &outcome)
                .unwrap_or_else(|text| panic!("round {round}: {op}: {text}"));
            if outcome != Ok(Answer::Count(length)) {
                return number + 1;
            }
        }
    }
    0
}

#[test]
fn inodes_run_out_and_come_back() {
    let format = Format::new(16 << 20, 1024, Features::Upstream).inodes(256);
    let stage = Stage::new(format).expect("mke2fs makes it").filling();
    let device = stage.device();
    let mut subject =
        VolumeSubject::open(device.clone(), stage.options.clone()).expect("mountable");
    let mut model = stage.model();
    for round in 0..2 {
        let mut made = 0;
        loop {
            let at = Target::path(&format!("f{made}"));
            let op = Op::Create {
                at: at.clone(),
                new: NewAttributes::plain(0o644),
            };
            step(&mut subject, &mut model, &op).expect("made or ENOSPC");
            if model.resolve(&at).is_err() {
                break;
            }
            made += 1;
        }
        assert_eq!(
            space(&mut subject).free_inodes,
            0,
            "round {round}: refused at {made}"
        );
        for number in 0..made {
            let at = Target::path(&format!("f{number}"));
            step(&mut subject, &mut model, &Op::Unlink(at)).expect("there");
        }
        step(&mut subject, &mut model, &Op::Sync).expect("durable");
    }
    subject.close().expect("it closes");
    check_device(&device).expect("clean");
}
