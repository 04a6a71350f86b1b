//! Records that cannot be true, or are random, are refused or lead to a tree that can be walked.

use std::sync::Arc;

use pext4_fs::{MountOptions, Volume};
use pext4_ondisk::InodeNumber;
use pext4_ondisk::extent::Extent;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::journal::fast_commit::AreaWriter;
use pext4_testkit::Random;
use pext4_testkit::effort::{effort, seeds};
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::volume::tree_of;

use super::base::{Base, DIRECTORY, FREE, NEW, REGULAR, ROOT, block_of, generation, run, slot};

#[test]
fn records_that_cannot_be_true_are_refused() {
    let base = Base::new();
    let [new, other, ..] = NEW;
    let outside = run(0, 1 << 40, 1);
    let in_use = run(0, block_of(&base, base.file), 1);
    let (file, directory) = (base.file, base.directory);
    let made = slot(DIRECTORY, 2, 1024, 7);
    type Spoil<'a> = &'a dyn Fn(&mut AreaWriter);
    let huge = slot(REGULAR, 1, 1 << 60, 7);
    let mut inline = slot(REGULAR, 1, 10, 7);
    inline[32..36].copy_from_slice(&InodeFlags::INLINE_DATA.bits().to_le_bytes());
    let cases: [(&str, Spoil<'_>); 16] = [
        ("outside the file system", &|area| {
            area.add_range(file, &outside);
        }),
        ("own structures", &|area| {
            area.add_range(file, &run(0, 3, 1));
        }),
        ("a reserved inode", &|area| {
            area.inode(InodeNumber(8), &slot(REGULAR, 1, 0, 7));
        }),
        ("changes the generation", &|area| {
            area.inode(ROOT, &made);
        }),
        ("a block that is in use", &|area| {
            area.add_range(base.other, &in_use);
        }),
        ("beyond what the format can map", &|area| {
            area.inode(new, &huge).create(ROOT, new, b"huge");
        }),
        ("does not have that feature", &|area| {
            area.inode(new, &inline).create(ROOT, new, b"inline");
        }),
        ("of that kind", &|area| {
            area.inode(new, &slot(0o060_600, 1, 0, 7));
            area.add_range(new, &run(0, FREE, 1));
        }),
        ("another kind of file", &|area| {
            area.inode(file, &slot(DIRECTORY, 2, 1024, generation(&base, file)));
        }),
        ("names no file type", &|area| {
            area.inode(new, &slot(0o600, 1, 0, 7));
        }),
        ("cannot hold", &|area| {
            area.link(ROOT, file, b"a/b");
        }),
        ("has none itself", &|area| {
            area.inode(new, &made).inode(other, &slot(REGULAR, 1, 0, 8));
            area.create(new, other, b"name");
        }),
        ("another name", &|area| {
            area.link(ROOT, directory, b"two");
        }),
        ("another name", &|area| {
            area.create(ROOT, directory, b"two");
        }),
        ("that has names", &|area| {
            area.unlink(ROOT, directory, b"directory");
        }),
        ("names no inode", &|area| {
            area.unlink(ROOT, InodeNumber(1 << 30), b"file");
            area.link(ROOT, InodeNumber(1 << 30), b"far");
        }),
    ];
    for (expected, spoil) in cases {
        let mut area = base.area();
        spoil(&mut area);
        area.tail(base.next);
        let told = base.refused(&area);
        assert!(told.contains(expected), "{expected}: {told}");
    }
}

#[test]
fn links_that_the_format_does_not_count_are_refused() {
    let base = Base::new();
    let (file, directory, [new, ..]) = (base.file, base.directory, NEW);
    let full = |inode: InodeNumber| format!("sif <{inode}> links_count 65000");
    let base = base.changed(&[full(file), full(directory)]);
    let mut area = base.area();
    area.link(ROOT, file, b"another").tail(base.next);
    let told = base.refused(&area);
    assert!(told.contains("more links than"), "{told}");
    let mut area = base.area();
    area.inode(new, &slot(DIRECTORY, 2, 1024, 7));
    area.create(directory, new, b"another").tail(base.next);
    let told = base.refused(&area);
    assert!(told.contains("where no more are counted"), "{told}");
    // Renamed: it has one too many only until it loses the old name.
    let mut area = base.area();
    area.link(ROOT, file, b"renamed")
        .unlink(ROOT, file, b"file")
        .tail(base.next);
    let volume = Volume::open(Arc::new(base.with(&area)), MountOptions::default());
    let volume = volume.expect("in the end it has as many as before");
    let found = volume.lookup(ROOT, b"renamed");
    volume.forget(found.expect("it is there").inode, 1);
    volume.close().expect("memory");
}

/// A record about one of a few inodes, true or not.
fn random_record(random: &mut Random, area: &mut AreaWriter) {
    let mut inode = || InodeNumber(u32::try_from(13 + random.below(7)).expect("small"));
    let (inode, parent) = (inode(), inode());
    let parent = if random.chance(1, 2) { ROOT } else { parent };
    let known: [&[u8]; 5] = [b"file", b"other", b"directory", b"inside", b"new"];
    let name = *random.pick(&known);
    let small =
        |below: u64, random: &mut Random| u32::try_from(random.below(below)).expect("small");
    match random.below(6) {
        0 => area.create(parent, inode, name),
        1 => area.link(parent, inode, name),
        2 => area.unlink(parent, inode, name),
        3 => area.delete_range(inode, small(5, random), 1 + small(9, random)),
        4 => {
            let start = FREE + random.below(8) * random.below(2000);
            let logical = small(5, random) + 266 * small(2, random);
            let extent = Extent {
                unwritten: random.chance(1, 4),
                ..run(logical, start, 1 + small(4, random))
            };
            area.add_range(inode, &extent)
        }
        _ => {
            let mode = *random.pick(&[REGULAR, REGULAR, DIRECTORY, 0o120_777, 0o060_600]);
            let links = u16::try_from(random.below(3)).expect("small");
            let mut slot = slot(mode, links, random.below(5000), small(3, random));
            if random.chance(1, 4) {
                slot[32..36].fill(0);
                slot[40..100].fill(0);
            }
            if random.chance(1, 5) {
                let at = random.index(slot.len());
                slot[at] = u8::try_from(random.below(256)).expect("a byte");
            }
            area.inode(inode, &slot)
        }
    };
}

#[test]
fn random_records_end_in_a_tree_or_an_error() {
    let base = Base::new();
    let (mut replayed, mut refused) = (0, 0);
    for seed in seeds(150) {
        let mut random = Random::new(seed);
        let mut area = base.area();
        for _ in 0..1 + random.below(3) {
            for _ in 0..1 + random.below(12) {
                random_record(&mut random, &mut area);
            }
            area.tail(base.next);
        }
        let device = Arc::new(base.with(&area));
        let shown = tree_of(Arc::new(device.fork()), true);
        match tree_of(device, false) {
            Ok(_) => {
                replayed += 1;
                assert!(shown.is_ok(), "seed {seed}: {shown:?}");
            }
            Err(_) => refused += 1,
        }
    }
    assert!(
        effort() > 1 || replayed > 10 && refused > 10,
        "{replayed} and {refused}"
    );
}

/// Each of them would write a whole table before it.
#[test]
fn inodes_far_behind_all_others_are_refused() {
    let format = Format::new(64 << 20, 1024, Features::Upstream);
    let format = format.with(&["-J", "size=2", "-N", "100000"]);
    let base = Base::made(&format.with(&["-E", "nodiscard,lazy_itable_init=1"]));
    let mut area = base.area();
    // Groups have 7,696 inodes each.
    for group in 1..=13 {
        let number = group * 7690;
        let new = InodeNumber(number);
        area.inode(new, &slot(REGULAR, 1, 0, 7));
        area.create(ROOT, new, format!("new {number}").as_bytes());
    }
    area.tail(base.next);
    let told = base.refused(&area);
    assert!(told.contains("far behind all others"), "{told}");
}
