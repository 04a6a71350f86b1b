//! Fast commits of the kernel, replayed by us: after a power cut behind an `fsync`, the files are
//! what they were on the kernel's mount.
//!
//! The kernel's own replay is no oracle: that of 6.18 forgets to count new directories, refuses
//! images on which a file without a name was synced, and crashes on files mapped without extents.
//! Nor can files be compared that the kernel moved out of their inodes: it logs their first block,
//! writes it without the log later, and any replay of the log brings the old one back.

use std::fs;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{FileType, MountOptions, RenameMode, Time, Volume};
use pext4_testkit::Random;
use pext4_testkit::campaign::{Stage, check_device};
use pext4_testkit::effort::{scratch, seeds};
use pext4_testkit::model::Model;
use pext4_testkit::op::generate::{Generator, Profile};
use pext4_testkit::op::{NewAttributes, Op, Target, text};
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount};
use pext4_testkit::outcome::Subject;
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::tree_of;

/// The file that is synced last.
const LAST: &str = "the last";

/// Whether an operation makes Linux write a full commit.
fn ends_fast_commits(op: &Op) -> bool {
    match op {
        Op::Rename { mode, .. } => *mode == RenameMode::Exchange,
        Op::MakeSymlink { .. } | Op::Sync => true,
        _ => false,
    }
}

fn profile() -> Profile {
    Profile {
        attributes: 5,
        xattrs: 2,
        slots: 3,
        specials: false,
        ..Profile::crashes()
    }
}

/// Runs operations, with a full commit in between. Returns them.
fn work(subject: &mut dyn Subject, model: &mut Model, seed: u64) -> Vec<Op> {
    let mut random = Random::new(seed);
    let generator = Generator::new(profile());
    let mut ops = Vec::new();
    // The model is there for the generator; whether it is right is asked elsewhere.
    let mut run = |model: &mut Model, op: Op| {
        let _ = model.follow(&op, &subject.run(&op));
        ops.push(op);
    };
    for _ in 0..random.below(80) {
        let op = generator.next(&mut random, model);
        run(model, op);
    }
    run(model, Op::Sync);
    for _ in 0..20 + random.below(120) {
        let op = generator.next(&mut random, model);
        if !ends_fast_commits(&op) || random.chance(1, 60) {
            run(model, op);
        }
    }
    ops
}

/// Syncs every file, and one more that is new: what was done before is durable then.
fn sync_all(subject: &mut dyn Subject) -> Tree {
    let done = |subject: &mut dyn Subject, op: Op| {
        let outcome = subject.run(&op);
        outcome.unwrap_or_else(|failure| panic!("{op}: {failure}"));
    };
    let last = Target::path(LAST);
    let new = NewAttributes::plain(0o600);
    let synced = |of| Op::SyncFile {
        of,
        data_only: false,
    };
    let tree = subject.tree().expect("a sound mount");
    for (path, item) in &tree.items {
        if item.facts.kind == FileType::Regular {
            let names = path.split(|&byte| byte == b'/');
            done(
                subject,
                synced(names.fold(Target::root(), |at, name| at.join(name))),
            );
        }
    }
    done(
        subject,
        Op::Create {
            at: last.clone(),
            new,
        },
    );
    done(subject, synced(last));
    tree
}

/// A tree as far as fast commits tell it: of directories they have the names only. Space counts
/// nodes of maps too, which a replay makes anew.
fn told(mut tree: Tree) -> Tree {
    tree.items.remove(LAST.as_bytes());
    for item in tree.items.values_mut() {
        let facts = &mut item.facts;
        facts.sectors = 0;
        if facts.kind == FileType::Directory {
            (facts.permissions, facts.uid, facts.gid, facts.size) = (0, 0, 0, 0);
            (facts.modified, facts.changed) = (Time::default(), Time::default());
        }
    }
    tree
}

/// How many fast commits the image holds.
fn fast_commits(device: RamDevice) -> Result<u32, pext4_fs::Error> {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(device), options)?;
    let notes = volume.notes().iter();
    let counts = notes.filter_map(|note| {
        let (before, _) = note.split_once(" fast commit")?;
        before.rsplit(' ').next()?.parse::<u32>().ok()
    });
    Ok(counts.sum())
}

/// Runs operations on the kernel's mount, and compares what a power cut leaves of it after our
/// replay. Returns the number of fast commits that were replayed; `None` where there are no mounts.
fn run(format: Format, seed: u64) -> Option<u32> {
    let stage = Stage::new(format).expect("mke2fs makes it");
    let folder = scratch();
    let (image, crashed) = (folder.path().join("image"), folder.path().join("crashed"));
    stage.device().save(&image).expect("there is room");
    let mount =
        kernel_mount(&image, Access::ReadWrite, "kernel_fast_commits").expect("mountable")?;
    let mut subject = mount.subject().expect("the mount can be opened");
    let mut model = stage.model();
    let ops = work(&mut subject, &mut model, seed);
    let live = sync_all(&mut subject);
    fs::copy(&image, &crashed).expect("there is room");
    drop(subject);
    mount.unmount().expect("nobody uses it");

    let what = || {
        let stage = stage.describe();
        format!("seed {seed}, {stage}\n{}", text::print(&ops))
    };
    let left = RamDevice::load(&crashed).expect("readable");
    let count = fast_commits(left.fork()).unwrap_or_else(|error| panic!("{error}\n{}", what()));
    let shown = tree_of(Arc::new(left.fork()), true).expect("it can be replayed");
    let ours = Arc::new(left);
    let device: Arc<dyn Device> = Arc::<RamDevice>::clone(&ours);
    let replayed = tree_of(device, false).unwrap_or_else(|error| panic!("{error:#}\n{}", what()));
    check_device(&ours).unwrap_or_else(|error| panic!("{error:#}\n{}", what()));
    told(live).assert_same(&told(replayed.clone()), &what());
    told(shown).assert_same(&told(replayed), &what());
    Some(count)
}

#[test]
fn what_the_kernel_synced_is_there_after_our_replay() {
    let mut replayed = 0;
    for seed in seeds(6) {
        let formats: [(u32, Features, &[&str]); 6] = [
            (1024, Features::Upstream, &[]),
            (4096, Features::Debian12, &["-I", "128"]),
            (4096, Features::Upstream, &["-N", "128"]),
            (1024, Features::Ext3, &[]),
            (4096, Features::NoChecksums, &["-O", "^dir_index"]),
            (1024, Features::Debian12, &["-O", "^flex_bg", "-N", "512"]),
        ];
        let (block_size, features, arguments) = formats[(seed % 6) as usize];
        let format = Format::new(64 << 20, block_size, features);
        let format = format.with(&["-O", "fast_commit"]).with(arguments);
        match run(format, seed) {
            Some(count) => replayed += count,
            None => return,
        }
    }
    if replayed == 0 {
        eprintln!("SKIPPED: this kernel makes no fast commits");
    }
}
