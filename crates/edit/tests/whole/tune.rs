//! Changes of the superblock, as e2fsprogs and the kernel see them.

use std::path::Path;
use std::sync::Arc;

use pext4_block::{Device, RamDevice};
use pext4_edit::{EditOptions, EditSession, ErrorPolicy, Plan, Reader, Tuning, Way};
use pext4_fs::{InodeNumber, MountOptions, Volume};
use pext4_ondisk::superblock::{self, Superblock};
use pext4_testkit::Random;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::check::e2fsck;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::oracle::mount::{Access, kernel_mount, kernel_writes};
use pext4_testkit::oracle::{run, tool};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::walk;

use crate::common::{filled, fixed};

const UUID: [u8; 16] = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
const OLD: &str = "none,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,sparse_super,\
                   large_file,huge_file,dir_nlink,extra_isize,has_journal";

fn all() -> Tuning {
    Tuning {
        label: Some(b"tenant-17".to_vec()),
        uuid: Some(UUID),
        reserved_percent: Some(2.5),
        errors: Some(ErrorPolicy::Panic),
    }
}

/// Several groups, with copies of the superblock in some.
fn formats() -> Vec<Format> {
    let format = |features| Format::new(40 << 20, 1024, features).inodes(4096);
    let with = |features: String| format(Features::NoChecksums).with(&["-O", &features]);
    let mut formats: Vec<Format> = Features::ALL.into_iter().map(format).collect();
    formats.push(Format::new(16 << 20, 4096, Features::Upstream));
    formats.push(with(format!("{OLD},uninit_bg")));
    formats.push(with(format!("{OLD},uninit_bg,64bit")));
    formats.push(with(format!("{OLD},uninit_bg,meta_bg,^resize_inode")));
    formats.push(with(format!("{OLD},metadata_csum,sparse_super2")));
    formats
}

fn tree(image: &Path) -> Tree {
    let reader = Reader::open(image).expect("a sound image");
    walk(reader.volume(), InodeNumber::ROOT).expect("a sound image")
}

fn superblock(device: &RamDevice) -> Superblock {
    let mut bytes = [0; superblock::SIZE];
    device
        .read_at(superblock::OFFSET, &mut bytes)
        .expect("memory");
    Superblock::decode(&bytes).expect("sound")
}

fn dumped(image: &Path, options: &[&str]) -> String {
    run(tool("dumpe2fs").arg("-h").args(options).arg(image)).expect("it reads it")
}

/// What dumpe2fs tells of a superblock that was changed in every way.
fn check_tuned(told: &str, blocks: u64, what: &str) {
    let reserved = blocks * 25 / 1000;
    for line in [
        "Filesystem volume name:   tenant-17".to_owned(),
        "Filesystem UUID:          01234567-89ab-cdef-0123-456789abcdef".to_owned(),
        "Errors behavior:          Panic".to_owned(),
        format!("Reserved block count:     {reserved}"),
    ] {
        assert!(
            told.lines().any(|one| one == line),
            "{what}: {line}\n{told}"
        );
    }
}

#[test]
fn superblocks_are_tuned_in_every_format() {
    for format in formats() {
        for way in [Way::Auto, Way::Clone] {
            let what = format!("{}, {way:?}", format.describe());
            let device = filled(&format, &mut Random::new(3));
            let folder = scratch();
            let image = folder.path().join("image");
            device.save(&image).expect("there is room");
            let (before, from_copy) = (tree(&image), e2fsck_from_copy(&image));
            let options = EditOptions {
                way,
                ..EditOptions::default()
            };
            let mut session = EditSession::open(&image, &options).expect(&what);
            session.tune(&all()).expect(&what);
            session.finish().expect(&what);
            e2fsck(&image).expect(&what);
            tree(&image).assert_same(&before, &what);
            let blocks = format.size / u64::from(format.block_size);
            check_tuned(&dumped(&image, &[]), blocks, &what);
            let has_copy_there = format.features.cluster() == 1 && !what.contains("sparse_super2");
            if blocks > 8193 && has_copy_there {
                let copy = ["-o", "superblock=8193", "-o", "blocksize=1024"];
                check_tuned(&dumped(&image, &copy), blocks, &what);
                assert_eq!(e2fsck_from_copy(&image), from_copy, "{what}");
            }
            if way == Way::Auto
                && kernel_writes(format.features, "tune")
                && let Some(mount) = kernel_mount(&image, Access::ReadWrite, &what).expect(&what)
            {
                std::fs::write(mount.path().join("new"), [1; 5000]).expect(&what);
                mount.unmount().expect(&what);
                e2fsck(&image).expect(&what);
            }
        }
    }
}

/// What e2fsck says with the copies of superblock and descriptors in place of the first ones. Their
/// counts are out of date, as on every image that was ever changed.
fn e2fsck_from_copy(image: &Path) -> Vec<String> {
    let mut check = tool("e2fsck");
    check.args(["-fn", "-b", "8193", "-B", "1024"]).arg(image);
    let told = pext4_testkit::oracle::output(&mut check).expect("it is there");
    let told = pext4_testkit::oracle::text(&told);
    let names = ["tenant-17: ".to_owned(), format!("{}: ", image.display())];
    let lines = told.lines();
    lines
        .filter(|line| !names.iter().any(|name| line.starts_with(name)))
        .map(str::to_owned)
        .collect()
}

/// Each value by itself, and the last of several.
#[test]
fn what_is_not_named_stays() {
    let format = Format::new(16 << 20, 1024, Features::Debian12);
    let device = Arc::new(filled(&format, &mut Random::new(1)));
    let tune = |tunings: &[Tuning]| {
        let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
        let mut session = EditSession::from_device(over, &fixed()).expect("it opens");
        for tuning in tunings {
            session.tune(tuning).expect("they can be");
        }
        session.finish().expect("it is memory")
    };
    let old = superblock(&device);
    let label = |text: &str| Tuning {
        label: Some(text.into()),
        ..Tuning::default()
    };
    let plan = tune(&[label("a label of 16 b."), label("short")]);
    // The superblock and its copies.
    assert_eq!(plan, Plan::Transaction { blocks: 2, free: 0 });
    let new = superblock(&device);
    assert_eq!(&new.volume_name, b"short\0\0\0\0\0\0\0\0\0\0\0");
    let rest = |superblock: &Superblock| {
        let superblock = superblock.clone();
        (
            superblock.uuid,
            superblock.reserved_blocks,
            superblock.errors,
            superblock.features,
        )
    };
    assert_eq!(rest(&new), rest(&old));
    // The present values are nothing to change.
    let present = Tuning {
        uuid: Some(old.uuid),
        errors: Some(old.errors),
        ..label("short")
    };
    assert_eq!(tune(&[present]), Plan::Nothing);
    tune(&[Tuning {
        reserved_percent: Some(0.0),
        ..Tuning::default()
    }]);
    assert_eq!(superblock(&device).reserved_blocks, 0);
    tune(&[label("")]);
    assert_eq!(superblock(&device).volume_name, [0; 16]);
}

#[test]
fn a_feature_that_a_new_uuid_turns_on_is_noted() {
    let other = [7; 16];
    for (features, uuid, is_noted) in [
        (Features::Debian12, Some(UUID), true),
        (Features::Debian12, None, false),
        (Features::Upstream, Some(UUID), false),
        (Features::NoChecksums, Some(UUID), false),
    ] {
        let device = Format::new(16 << 20, 1024, features)
            .device()
            .expect("made");
        let device = Arc::new(device);
        let old = superblock(&device);
        let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
        let mut session = EditSession::from_device(over, &fixed()).expect("it opens");
        let tuning = |uuid| Tuning {
            uuid,
            label: Some(b"x".to_vec()),
            ..Tuning::default()
        };
        for uuid in [Some(old.uuid), uuid.map(|_| other), uuid] {
            session.tune(&tuning(uuid)).expect("it can be");
        }
        let notes = session.notes().to_vec();
        let count = notes
            .iter()
            .filter(|note| note.contains("`metadata_csum_seed`"));
        assert_eq!(
            count.count(),
            usize::from(is_noted),
            "{features:?}: {notes:?}"
        );
        session.finish().expect("it is memory");
        let gained = superblock(&device).features.incompat != old.features.incompat;
        assert_eq!(gained, is_noted, "{features:?}");
    }
}

/// With one group there is no copy of the superblock, so nothing else shows the change.
#[test]
fn a_label_that_the_volume_sets_is_kept() {
    let format = Format::new(16 << 20, 4096, Features::Debian12);
    let device = Arc::new(filled(&format, &mut Random::new(1)));
    let label = |label: &[u8]| {
        let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
        let session = EditSession::from_device(over, &EditOptions::default()).expect("it opens");
        session.volume().set_label(label).expect("it may be");
        session.finish().expect("it is memory")
    };
    let one = Plan::Transaction { blocks: 1, free: 0 };
    assert_eq!(label(b"kept"), one);
    assert_eq!(&superblock(&device).volume_name[..5], b"kept\0");
    assert_eq!(label(b"kept"), Plan::Nothing);
}

/// The replay and the change are one edit.
#[test]
fn a_journal_is_replayed_first() {
    let format = Format::new(16 << 20, 1024, Features::Debian12);
    let device = Arc::new(filled(&format, &mut Random::new(1)));
    let over: Arc<dyn Device> = Arc::<RamDevice>::clone(&device);
    let volume = Volume::open(over, MountOptions::default()).expect("it opens");
    volume
        .paths()
        .write("late", "in the journal")
        .expect("room");
    volume.sync().expect("it is memory");
    let left = device.fork();
    drop(volume);
    let folder = scratch();
    let image = folder.path().join("image");
    left.save(&image).expect("room");
    let mut session = EditSession::open(&image, &EditOptions::default()).expect("it opens");
    assert!(!session.notes().is_empty());
    session.tune(&all()).expect("they can be");
    session.finish().expect("room");
    e2fsck(&image).expect("sound");
    check_tuned(&dumped(&image, &[]), 16 << 10, "a replayed image");
    let reader = Reader::open(&image).expect("sound");
    assert_eq!(
        reader.volume().paths().read("late").expect("there"),
        b"in the journal"
    );
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let open = |format: Format| {
        let device = format.device().expect("mke2fs is there");
        EditSession::from_device(Arc::new(device), &EditOptions::default()).expect("it opens")
    };
    let mut session = open(Format::new(16 << 20, 1024, Features::Debian12));
    let none = Tuning::default;
    for (tuning, says) in [
        (
            Tuning {
                label: Some(vec![b'x'; 17]),
                ..none()
            },
            "at most 16 bytes",
        ),
        (
            Tuning {
                label: Some(b"a\0".to_vec()),
                ..none()
            },
            "NUL",
        ),
        (
            Tuning {
                reserved_percent: Some(50.1),
                ..none()
            },
            "50.1 percent",
        ),
        (
            Tuning {
                reserved_percent: Some(-1.0),
                ..none()
            },
            "-1 percent",
        ),
        (
            Tuning {
                reserved_percent: Some(f64::NAN),
                ..none()
            },
            "NaN percent",
        ),
        (
            Tuning {
                errors: Some(ErrorPolicy::Unknown(7)),
                ..none()
            },
            "number 7",
        ),
    ] {
        let told = session.tune(&tuning).unwrap_err().to_string();
        assert!(told.contains(says), "{told}");
    }
    let format = Format::new(16 << 20, 1024, Features::NoChecksums);
    for feature in ["stable_inodes", "ea_inode"] {
        let mut session = open(format.clone().with(&["-O", &format!("{OLD},{feature}")]));
        let told = session.tune(&all()).unwrap_err().to_string();
        assert!(told.contains(&format!("its feature `{feature}`")), "{told}");
        let label = Tuning {
            uuid: None,
            ..all()
        };
        session
            .tune(&label)
            .expect("the label has nothing to do with it");
    }
}
