//! Files that outlive their names: orphan list and orphan file, few orphans and more than the file
//! holds.

use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Volume};
use pext4_ondisk::superblock::{self, State, Superblock};
use pext4_testkit::campaign::{Stage, check_device};
use pext4_testkit::op::{NewAttributes, Op, Target};
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::outcome::{Answer, Subject};
use pext4_testkit::volume::VolumeSubject;

fn free(volume: &Volume) -> (u64, u64) {
    let told = volume.statfs();
    (told.free_blocks, told.free_inodes)
}

/// Creates files without names, cuts the power, and checks the recovery of the next mount.
fn survive(stage: &Stage, count: u32) {
    let device = stage.device();
    let volume = Volume::open(device.clone(), MountOptions::default()).expect("mountable");
    let before = free(&volume);
    let new = CreateAttributes {
        permissions: 0o600,
        uid: 0,
        gid: 0,
    };
    for number in 0..count {
        let entry = volume
            .create_unnamed(InodeNumber::ROOT, &new)
            .expect("there is room");
        volume
            .write(entry.inode, 0, &[1; 2000])
            .expect("there is room");
        if number % 7 == 0 {
            volume.forget(entry.inode, 1);
        }
    }
    volume.sync().expect("durable");
    let cut = Arc::new(device.fork());
    let again =
        Volume::open(Arc::<RamDevice>::clone(&cut), MountOptions::default()).expect("mountable");
    assert_eq!(free(&again), before, "what nobody can reach takes space");
    again.close().expect("it closes");
    check_device(&cut).expect("clean");
    std::mem::forget(volume);
}

#[test]
fn on_an_image_with_errors_nobody_is_finished() {
    let device = stage(Features::Upstream, 2048).device();
    let volume = Volume::open(device.clone(), MountOptions::default()).expect("mountable");
    let new = CreateAttributes {
        permissions: 0o600,
        uid: 0,
        gid: 0,
    };
    for _ in 0..3 {
        let _ = volume
            .create_unnamed(InodeNumber::ROOT, &new)
            .expect("there is room");
    }
    volume.sync().expect("durable");
    let held = free(&volume);
    let cut = Arc::new(device.fork());
    let mut bytes = [0; superblock::SIZE];
    cut.read_at(1024, &mut bytes).expect("it has one");
    let mut damaged = Superblock::decode(&bytes).expect("it was mounted");
    damaged.state.insert(State::ERRORS);
    cut.write_at(1024, &damaged.encode()).expect("in memory");
    for _ in 0..2 {
        let again = Volume::open(Arc::<RamDevice>::clone(&cut), MountOptions::default())
            .expect("mountable");
        assert_eq!(free(&again).1, held.1, "they are the checker's");
        assert!(
            again
                .notes()
                .iter()
                .any(|note| note.starts_with("3 deletions"))
        );
        again.close().expect("it closes");
    }
    std::mem::forget(volume);
}

#[test]
fn a_few_in_the_orphan_file() {
    survive(&stage(Features::Upstream, 2048), 100);
}

#[test]
fn a_few_on_the_orphan_list() {
    survive(&stage(Features::Debian12, 2048), 100);
}

/// The orphan file of a small image has 32 blocks of 254 slots.
#[test]
fn more_than_the_orphan_file_holds() {
    survive(&stage(Features::Upstream, 10_000), 32 * 254 + 300);
}

fn stage(features: Features, inodes: u32) -> Stage {
    Stage::new(Format::new(64 << 20, 1024, features).inodes(inodes)).expect("mke2fs makes it")
}

/// Released files are deleted at once, and their space can be used again.
#[test]
fn released_files_give_their_space_back() {
    for features in [
        Features::Upstream,
        Features::Debian12,
        Features::NoJournal,
        Features::Ext3,
    ] {
        let stage = stage(features, 2048);
        let device = stage.device();
        let below: Arc<dyn Device> = device.clone();
        let mut subject = VolumeSubject::open(below, MountOptions::default()).expect("mountable");
        let before = free(subject.volume());
        let at = Target::path("a");
        let ops = [
            Op::Create {
                at: at.clone(),
                new: NewAttributes::plain(0o644),
            },
            Op::Write {
                of: at.clone(),
                offset: 0,
                length: 1 << 20,
                fill: 1,
            },
            Op::Hold {
                of: at.clone(),
                slot: 0,
            },
            Op::Unlink(at),
            Op::Sync,
        ];
        for op in &ops {
            subject
                .run(op)
                .unwrap_or_else(|failure| panic!("{op}: {failure}"));
        }
        assert!(free(subject.volume()).0 + 1024 <= before.0, "it is held");
        let read = subject.run(&Op::Read {
            of: Target::slot(0),
            offset: 0,
            length: 10,
        });
        assert!(matches!(read, Ok(Answer::Bytes(bytes)) if bytes.len() == 10));
        subject.run(&Op::Release(0)).expect("it was held");
        subject.run(&Op::Sync).expect("durable");
        assert_eq!(free(subject.volume()), before, "{features:?}");
        subject.close().expect("it closes");
        check_device(&device).expect("clean");
    }
}
