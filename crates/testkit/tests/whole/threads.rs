//! Many threads: each in its own directory with its own model, and all in the same few directories
//! with a search for a possible order of the operations.

use std::sync::Arc;

use pext4_testkit::Random;
use pext4_testkit::campaign::{self, Stage, catching_panics, check_device, compare};
use pext4_testkit::effort::{effort, seeds};
use pext4_testkit::linear::{self, Plan, Verdict};
use pext4_testkit::op::generate::Profile;
use pext4_testkit::op::{NewAttributes, Op, Target};
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::outcome::Subject;
use pext4_testkit::volume::VolumeSubject;

/// Number of concurrent threads; more than cores, so that they are preempted anywhere.
const THREADS: usize = 6;

fn stage(block_size: u32, features: Features) -> Stage {
    let stage = Stage::new(Format::new(96 << 20, block_size, features));
    stage.and_then(Stage::soiled).expect("mke2fs makes it")
}

/// Threads in directories of their own, each judged by a model of its own.
pub(super) fn apart(stage: &Stage, profile: Profile, seed: u64, operations: usize) {
    let stage = &stage.with_setting_of(seed);
    let device = stage.device();
    let mut subject =
        VolumeSubject::open(device.clone(), stage.options.clone()).expect("mountable");
    let mut model = stage.model();
    let mut seeds = Random::new(seed);
    let profile = Profile {
        remounts: 0,
        syncs: 1,
        ..profile
    };
    let mut workers = Vec::new();
    for number in 0..THREADS {
        let at = Target::path(&format!("thread{number}"));
        let make = Op::MakeDirectory {
            at: at.clone(),
            new: NewAttributes::plain(0o755),
        };
        campaign::step(&mut subject, &mut model, &make).expect("there is room");
        let root = model.resolve(&at).expect("just made");
        let mut own = subject.beside(root);
        let mut own_model = stage.model_below(root);
        let own_seed = seeds.word();
        workers.push(std::thread::spawn(move || {
            let (ops, result) =
                campaign::generate(&mut own, &mut own_model, profile, own_seed, operations);
            own_model.release_all();
            (ops.len(), result, own_model)
        }));
    }
    let mut models = Vec::new();
    for worker in workers {
        let (count, result, own_model) = worker.join().expect("panics were caught");
        result.unwrap_or_else(|text| panic!("seed {seed}, after {count} operations: {text}"));
        models.push(own_model);
    }
    for model in &mut models {
        let mut again = subject.beside(model.root());
        compare(&mut again, model).unwrap_or_else(|text| panic!("seed {seed}: {text}"));
    }
    subject.close().expect("it closes");
    check_device(&device).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
}

#[test]
fn threads_in_directories_of_their_own_do_not_meet() {
    for (block_size, features) in [
        (4096, Features::Upstream),
        (1024, Features::Debian12),
        (1024, Features::Ext3),
        (1024, Features::Clusters),
        (1024, Features::Quotas),
    ] {
        let stage = stage(block_size, features);
        for seed in seeds(2) {
            apart(&stage, Profile::everything(), seed, 500);
        }
    }
}

fn together(stage: &Stage, plan: Plan, seed: u64) {
    let stage = &stage.with_setting_of(seed);
    let device = stage.device();
    let mut subject =
        VolumeSubject::open(device.clone(), stage.options.clone()).expect("mountable");
    let mut model = stage.model();
    let history = linear::record(&mut subject, &mut model, plan, seed).expect("the run ends");
    let tree = subject.tree().expect("walkable");
    match linear::search(&model, &history, Some(&tree)) {
        Verdict::Linear(_) => {}
        Verdict::Undecided => eprintln!("seed {seed}: the search for an order was given up"),
        Verdict::Impossible => {
            let told = linear::tell(&history);
            let tree = tree.tell();
            panic!("seed {seed}: no order explains this history:\n{told}\nand\n{tree}");
        }
    }
    subject.close().expect("it closes");
    check_device(&device).unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
}

#[test]
fn threads_in_one_directory_can_be_put_in_a_line() {
    let stage = stage(1024, Features::Upstream);
    let plans = [
        Plan {
            threads: 3,
            each: 10,
            directories: 1,
        },
        Plan {
            threads: 4,
            each: 8,
            directories: 2,
        },
        Plan {
            threads: 2,
            each: 24,
            directories: 2,
        },
    ];
    for seed in seeds(25) {
        together(&stage, plans[seed as usize % plans.len()], seed);
    }
}

/// Threads that fill and empty one directory, which becomes large enough to be indexed and split.
#[test]
fn threads_fill_one_directory() {
    let each = 800 * effort() as usize;
    let format = Format::new(96 << 20, 1024, Features::Upstream);
    let format = format.inodes((THREADS * each + 1000) as u32);
    let stage = Stage::new(format).expect("mke2fs makes it");
    let device = stage.device();
    let subject = VolumeSubject::open(device.clone(), stage.options.clone()).expect("mountable");
    let subject = Arc::new(subject);
    let workers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let mut own = subject.beside(2);
            std::thread::spawn(move || {
                catching_panics(|| {
                    for number in 0..each {
                        let at = Target::path(&format!("thread-{thread}-file-{number}"));
                        let new = NewAttributes::plain(0o644);
                        own.run(&Op::Create { at, new })
                            .map_err(|failure| failure.to_string())?;
                        if number % 3 == 2 {
                            let at = Target::path(&format!("thread-{thread}-file-{}", number - 1));
                            own.run(&Op::Unlink(at))
                                .map_err(|failure| failure.to_string())?;
                        }
                    }
                    Ok(())
                })
            })
        })
        .collect();
    for worker in workers {
        worker
            .join()
            .expect("panics were caught")
            .expect("every name is free, every file there");
    }
    let mut subject = Arc::into_inner(subject).expect("the threads are done");
    let tree = subject.tree().expect("walkable");
    let left = each - each / 3;
    assert_eq!(
        tree.items.len(),
        2 + THREADS * left,
        "the root, lost+found and what was left"
    );
    subject.close().expect("it closes");
    check_device(&device).expect("clean");
}
