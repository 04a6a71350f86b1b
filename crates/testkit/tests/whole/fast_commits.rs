//! Fast commits, written as Linux writes them and replayed by us: what they say is so afterwards,
//! whatever a power cut interrupts, and what cannot be true is refused.

mod base;
mod refusals;

use std::sync::Arc;

use pext4_block::{Device, RamDevice, RecordDevice};
use pext4_fs::{FileType, MountOptions, Volume};
use pext4_jbd2::recovery::read_superblock;
use pext4_ondisk::extent::Extent;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::journal::fast_commit::AreaWriter;
use pext4_ondisk::mmp::{Mmp, Use};
use pext4_ondisk::superblock::OFFSET;
use pext4_testkit::Random;
use pext4_testkit::campaign::check_device;
use pext4_testkit::crash::window::{Budget, fates, image, tell, windows};
use pext4_testkit::effort::effort;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::tree_of;

use base::{
    BLOCK, Base, DIRECTORY, FREE, NEW, REGULAR, ROOT, generation, run, slot, superblock, timeless,
};

fn names(tree: &Tree) -> Vec<String> {
    let paths = tree.items.keys();
    let paths = paths.map(|path| String::from_utf8_lossy(path).into_owned());
    paths
        .filter(|path| !path.is_empty() && !path.starts_with("lost+found"))
        .collect()
}

/// A mixture of all that can be recorded, in three commits.
fn mixture(base: &Base) -> AreaWriter {
    let [first, second, third, fourth] = NEW;
    let mut area = base.area();
    let file = slot(REGULAR, 1, 3 * 1024, 7);
    area.inode(first, &file).add_range(first, &run(0, FREE, 3));
    area.create(ROOT, first, b"new").inode(first, &file);
    area.inode(second, &slot(DIRECTORY, 3, 1024, 8));
    area.create(ROOT, second, b"made");
    area.inode(third, &slot(DIRECTORY, 2, 1024, 9));
    area.create(second, third, b"below").tail(base.next);
    // Renamed, and truncated to a block.
    area.link(third, base.file, b"moved")
        .unlink(ROOT, base.file, b"file");
    area.delete_range(base.file, 1, u32::MAX);
    area.tail(base.next);
    // The number of one that is removed belongs to another at once.
    area.unlink(ROOT, base.other, b"other");
    let reused = slot(REGULAR, 1, 1024, 10);
    area.inode(base.other, &reused);
    area.add_range(base.other, &run(0, FREE + 10, 1));
    area.create(base.directory, base.other, b"reused");
    // One without a name, which has got one only then.
    area.link(ROOT, fourth, b"named");
    area.add_range(fourth, &run(2, FREE + 20, 1));
    area.inode(fourth, &slot(REGULAR, 1, 3 * 1024, 11));
    // Another without a name, with the number of one that had lost its own before. It has a block
    // behind its end.
    let behind = Extent {
        unwritten: true,
        ..run(5, FREE + 31, 1)
    };
    area.link(ROOT, base.orphan, b"successor");
    area.add_range(base.orphan, &run(1, FREE + 30, 1));
    area.add_range(base.orphan, &behind);
    area.inode(base.orphan, &slot(REGULAR, 1, 2048, 12));
    area.tail(base.next);
    area
}

#[test]
fn all_that_can_be_recorded_is_replayed() {
    let base = Base::new();
    let tree = base.replayed(&mixture(&base));
    let expected = [
        "directory",
        "directory/inside",
        "directory/reused",
        "made",
        "made/below",
        "made/below/moved",
        "named",
        "new",
        "successor",
    ];
    assert_eq!(names(&tree), expected);
    let facts = |path: &str| tree.items[path.as_bytes()].facts;
    assert_eq!(facts("").links, 5);
    assert_eq!((facts("made").links, facts("made/below").links), (3, 2));
    assert_eq!(facts("made/below/moved").inode, base.file.get());
    // One block of data, and one of attributes.
    assert_eq!(facts("made/below/moved").sectors, 4);
    assert_eq!(facts("directory/reused").inode, base.other.get());
    assert_eq!((facts("new").size, facts("new").sectors), (3072, 6));
    assert_eq!((facts("named").size, facts("named").sectors), (3072, 2));
    assert_eq!(facts("named").kind, FileType::Regular);
    assert_eq!(facts("successor").inode, base.orphan.get());
    assert_eq!(
        (facts("successor").size, facts("successor").sectors),
        (2048, 4)
    );
}

/// What the replay opens in memory is no mount.
#[test]
fn a_replay_counts_as_no_mount() {
    let base = Base::new();
    let device = Arc::new(base.with(&mixture(&base)));
    let mounts = || {
        let superblock = superblock(&device);
        (superblock.mount_count, superblock.last_mounted)
    };
    let before = mounts();
    let options = MountOptions {
        mounted_on: "/there".to_owned(),
        ..MountOptions::default()
    };
    let below = Arc::<RamDevice>::clone(&device);
    let volume = Volume::open(below, options).expect("a replay");
    volume.close().expect("memory");
    let after = mounts();
    assert_eq!(after.0, before.0 + 1);
    assert!(after.1.starts_with(b"/there"));
}

/// What the replay opens in memory claims nothing: the mount has claimed the image.
#[test]
fn a_replay_keeps_the_claim_of_an_image_with_mmp() {
    let format = Format::new(16 << 20, 1024, Features::Upstream);
    let base = Base::made(&format.with(&["-J", "size=2", "-O", "mmp"]));
    let device = Arc::new(base.with(&mixture(&base)));
    let superblock = superblock(&device);
    let (home, seed) = (superblock.mmp_block, superblock.metadata_checksum_seed());
    let offset = home.get() * BLOCK as u64;
    let mut block = [0; BLOCK];
    // Otherwise the mount would wait for a machine that may still use it.
    Mmp::clean(5).encode(&mut block, Some(seed));
    device.write_at(offset, &block).expect("memory");
    let mut usage = || {
        device.read_at(offset, &mut block).expect("memory");
        Mmp::decode(&block, Some(seed)).expect("sound").usage()
    };
    let below = Arc::<RamDevice>::clone(&device);
    let volume = Volume::open(below, MountOptions::default()).expect("a replay");
    assert!(matches!(usage(), Use::Mounted(_)));
    volume.close().expect("the claim was kept");
    assert_eq!(usage(), Use::Clean);
}

/// Names of inodes that were gone again, and a file without one.
#[test]
fn what_was_gone_again_is_passed_over() {
    let base = Base::new();
    let [gone, nameless, ..] = NEW;
    let mut area = base.area();
    area.link(ROOT, gone, b"second")
        .unlink(ROOT, gone, b"first");
    area.unlink(ROOT, gone, b"second")
        .unlink(gone, base.file, b"file");
    area.add_range(nameless, &run(0, FREE, 2));
    area.inode(nameless, &slot(REGULAR, 0, 2048, 7));
    area.tail(base.next);
    let free = |device: RamDevice| {
        let volume = Volume::open(Arc::new(device), MountOptions::default());
        let volume = volume.expect("it can be replayed");
        let free = volume.statfs();
        let free = (free.free_blocks, free.free_inodes);
        volume.close().expect("memory");
        free
    };
    let before = base.with(&AreaWriter::new(BLOCK));
    assert_eq!(free(base.with(&area)), free(before));
    let tree = base.replayed(&area);
    assert_eq!(
        names(&tree),
        ["directory", "directory/inside", "file", "other"]
    );
}

/// As after a replay by somebody else who was interrupted.
#[test]
fn records_that_are_so_already_change_nothing() {
    let base = Base::new();
    let once = Arc::new(base.with(&mixture(&base)));
    let tree = tree_of(Arc::<RamDevice>::clone(&once), false).expect("a replay");
    let mut superblock = superblock(&once);
    superblock.features.incompat |= Incompat::RECOVER;
    let next = read_superblock(&*once, &base.log).expect("sound").sequence;
    let base = Base {
        device: once.fork(),
        next,
        ..base
    };
    let encoded = superblock.encode();
    base.device.write_at(OFFSET, &encoded).expect("memory");
    let again = base.replayed(&mixture(&base));
    timeless(tree).assert_same(&timeless(again), "replayed again");
}

/// Pointers at the end of a block of pointers and at the start of the next.
#[test]
fn blocks_of_a_file_without_extents_are_mapped() {
    let base = Base::new();
    let [new, ..] = NEW;
    let mut attributes = slot(REGULAR, 1, 600 * 1024, 7);
    attributes[32..36].fill(0);
    attributes[40..100].fill(0);
    let mut area = base.area();
    area.inode(new, &attributes);
    area.add_range(new, &run(10, FREE - 600, 590));
    area.create(ROOT, new, b"new").inode(new, &attributes);
    area.tail(base.next);
    let tree = base.replayed(&area);
    let facts = tree.items[&b"new"[..]].facts;
    // Three of its blocks, and the one that leads to two of these, hold pointers.
    assert_eq!(facts.sectors, (590 + 4) * 2);
}

#[test]
fn a_file_that_was_synced_after_its_last_name_had_gone_is_gone() {
    let base = Base::new();
    let mut attributes = slot(REGULAR, 0, 2048, generation(&base, base.file));
    attributes[104..108].copy_from_slice(&9000u32.to_le_bytes());
    let mut area = base.area();
    area.unlink(ROOT, base.file, b"file");
    area.add_range(base.file, &run(2, FREE, 1));
    area.inode(base.file, &attributes).tail(base.next);
    let tree = base.replayed(&area);
    assert_eq!(names(&tree), ["directory", "directory/inside", "other"]);
}

/// The links in its attributes are of the end of the commit: until then others are counted.
#[test]
fn a_file_that_left_its_inode_keeps_its_attributes_while_names_change() {
    let base = Base::of(Features::Inline);
    let file = base.other;
    let mut area = base.area();
    area.link(ROOT, file, b"second").tail(base.next);
    area.link(ROOT, file, b"third");
    area.unlink(ROOT, file, b"other")
        .unlink(ROOT, file, b"second");
    area.add_range(file, &run(0, FREE, 1));
    area.inode(file, &slot(REGULAR, 1, 1024, generation(&base, file)));
    area.tail(base.next);
    let tree = base.replayed(&area);
    let item = &tree.items[&b"third"[..]];
    assert_eq!((item.facts.links, item.facts.sectors), (1, 2));
    assert_eq!(item.xattrs[&b"user.kept"[..]], b"value");
}

/// Linux lets the generation of a file be changed where no checksum has it.
#[test]
fn a_file_with_another_generation_is_still_the_same() {
    let base = Base::of(Features::NoChecksums);
    let mut area = base.area();
    area.inode(base.file, &slot(REGULAR, 1, 2048, 12345))
        .tail(base.next);
    let tree = base.replayed(&area);
    let item = &tree.items[&b"file"[..]];
    assert_eq!((item.facts.size, item.facts.sectors), (2048, 6));
    let content = item.content.as_ref().expect("a file");
    assert_eq!(content.read(0, 2048), [1; 2048]);
}

/// Power cuts at every write of a mount that replays: the next one finds the same tree.
#[test]
fn a_replay_may_be_cut_off_at_any_time() {
    let base = Base::new();
    let area = mixture(&base);
    let before = base.with(&area);
    let expected = timeless(base.replayed(&area));
    let record = Arc::new(RecordDevice::new(Arc::new(before.fork())));
    let volume = Volume::open(Arc::<RecordDevice>::clone(&record), MountOptions::default());
    volume.expect("a replay").close().expect("memory");
    let events = record.events();
    let mut random = Random::new(1);
    let durable = before.fork();
    let budget = Budget {
        exhaust: 3,
        window: 4 * effort() as usize,
        total: usize::MAX,
    };
    let (mut applied, mut cuts) = (0, 0);
    for window in windows(&events) {
        for event in &events[applied..window.start] {
            event.apply(&durable).expect("it fits");
        }
        applied = window.start;
        for fates in fates(&window, &events, budget, &mut random) {
            let left = image(&durable, &events, &window, &fates);
            let what = || tell(&window, &events, &fates);
            let below = Arc::<RamDevice>::clone(&left);
            let tree = tree_of(below, false);
            let tree = tree.unwrap_or_else(|error| panic!("{error:#}\n{}", what()));
            expected.assert_same(&timeless(tree), &what());
            check_device(&left).unwrap_or_else(|error| panic!("{error:#}\n{}", what()));
            cuts += 1;
        }
    }
    assert!(cuts > 20, "{cuts} cuts");
}
