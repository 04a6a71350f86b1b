//! Fast commits, written as Linux writes them and replayed by us: what they say is so afterwards,
//! whatever a power cut interrupts, and what cannot be true is refused.

use std::path::Path;
use std::sync::Arc;

use pext4_block::{Device, RamDevice, RecordDevice};
use pext4_fs::{CreateAttributes, FileType, MountOptions, SetXattrMode, Volume};
use pext4_jbd2::LogArea;
use pext4_jbd2::recovery::{Replay, read_superblock};
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::journal::JournalIncompat;
use pext4_ondisk::journal::fast_commit::AreaWriter;
use pext4_ondisk::mmp::{Mmp, Use};
use pext4_ondisk::superblock::{OFFSET, SIZE, Superblock};
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock, Tid};
use pext4_testkit::Random;
use pext4_testkit::campaign::check_device;
use pext4_testkit::crash::window::{Budget, fates, image, tell, windows};
use pext4_testkit::effort::{effort, scratch, seeds};
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::tree_of;

const BLOCK: usize = 1024;
const ROOT: InodeNumber = InodeNumber::ROOT;
/// The first of some blocks that are free.
const FREE: u64 = 16_000;
/// Numbers of inodes that are not in use.
const NEW: [InodeNumber; 4] = [
    InodeNumber(101),
    InodeNumber(102),
    InodeNumber(103),
    InodeNumber(104),
];

/// An image with a log to be replayed.
struct Base {
    device: RamDevice,
    log: LogArea,
    /// The first transaction that was not committed.
    next: Tid,
    file: InodeNumber,
    other: InodeNumber,
    directory: InodeNumber,
    /// It has lost its name and has blocks.
    orphan: InodeNumber,
}

impl Base {
    /// `/file` of two blocks, `/other`, `/directory` with `inside`, and a file without a name.
    fn new() -> Self {
        Self::of(Features::Upstream)
    }

    fn of(features: Features) -> Self {
        let format = Format::new(16 << 20, 1024, features).with(&["-J", "size=2"]);
        // The inode tables are not written, and not said to be zero.
        Self::made(&format.with(&["-E", "nodiscard,lazy_itable_init=1"]))
    }

    fn made(format: &Format) -> Self {
        let device = Arc::new(format.device().expect("mke2fs is there"));
        let folder = scratch();
        let path = folder.path().join("image");
        device.save(&path).expect("there is room");
        let blocks = debugfs::blocks_of(&path, "<8>").expect("a journal");
        let runs: Vec<_> = blocks
            .iter()
            .map(|&block| (BlockNumber(block), 1))
            .collect();
        let log = LogArea::new(BLOCK as u32, &runs).expect("blocks of their own");
        if format.features == Features::Upstream {
            spoil_unused_slots(&device, &path);
        }

        let below = Arc::<RamDevice>::clone(&device);
        let volume = Volume::open(below, MountOptions::default()).expect("a new image");
        let new = CreateAttributes::default();
        let make = |parent, name: &[u8]| volume.create(parent, name, &new).expect("room").inode;
        let (file, other) = (make(ROOT, b"file"), make(ROOT, b"other"));
        volume.write(file, 0, &[1; 2 * BLOCK]).expect("room");
        let mode = SetXattrMode::Any;
        let set = volume.set_xattr(file, b"user.in-a-block", &[3; 500], mode);
        set.expect("room");
        let set = volume.set_xattr(other, b"user.kept", b"value", mode);
        set.expect("room");
        let directory = volume.make_directory(ROOT, b"directory", &new);
        let directory = directory.expect("room").inode;
        make(directory, b"inside");
        let orphan = make(ROOT, b"orphan");
        volume.write(orphan, 0, &[2; 3 * BLOCK]).expect("room");
        volume.unlink(ROOT, b"orphan").expect("it is there");
        volume.sync().expect("memory");
        let left = device.fork();
        volume.close().expect("memory");

        let superblock = read_superblock(&left, &log).expect("sound");
        let plan =
            Replay::plan(&left, &log, &superblock, left.size() / BLOCK as u64).expect("sound");
        let transactions = plan.report().transactions;
        assert!(transactions > 0, "the log has something");
        Self {
            device: left,
            log,
            next: Tid(superblock.sequence.0 + transactions),
            file,
            other,
            directory,
            orphan,
        }
    }

    fn area(&self) -> AreaWriter {
        let mut area = AreaWriter::new(BLOCK);
        area.head(0, self.next);
        area
    }

    /// The base after its replay, with an empty log, changed by debugfs.
    fn changed(self, requests: &[String]) -> Self {
        let replayed = Arc::new(self.device.fork());
        let below = Arc::<RamDevice>::clone(&replayed);
        let volume = Volume::open(below, MountOptions::default()).expect("a replay");
        volume.close().expect("memory");
        let folder = scratch();
        let path = folder.path().join("image");
        replayed.save(&path).expect("there is room");
        debugfs::command(&path, requests).expect("debugfs is there");
        let device = RamDevice::load(&path).expect("the image");
        let mut superblock = superblock(&device);
        superblock.features.incompat |= Incompat::RECOVER;
        let encoded = superblock.encode();
        device.write_at(OFFSET, &encoded).expect("memory");
        let journal = read_superblock(&device, &self.log).expect("sound");
        Self {
            device,
            next: journal.sequence,
            ..self
        }
    }

    /// The image with this area behind its log.
    fn with(&self, area: &AreaWriter) -> RamDevice {
        let device = self.device.fork();
        add_area(&device, &self.log, area);
        device
    }

    /// The tree after the replay, which must be the same for who only reads.
    fn replayed(&self, area: &AreaWriter) -> Tree {
        let device = Arc::new(self.with(area));
        let shown = tree_of(Arc::new(device.fork()), true).expect("it can be replayed");
        let below = Arc::<RamDevice>::clone(&device);
        let tree = tree_of(below, false).expect("it can be replayed");
        check_device(&device).expect("e2fsck is content");
        timeless(shown).assert_same(&timeless(tree.clone()), "in memory and on the image");
        tree
    }

    /// The error of a replay, which must leave the image as it was.
    fn refused(&self, area: &AreaWriter) -> String {
        let device = Arc::new(RecordDevice::new(Arc::new(self.with(area))));
        let below = Arc::<RecordDevice>::clone(&device);
        let refused = Volume::open(below, MountOptions::default());
        assert_eq!(device.mark(), 0, "nothing is written");
        refused
            .map(drop)
            .expect_err("it cannot be true")
            .to_string()
    }
}

/// Fills slots of the inode table that were never used with what may be there. They lie before
/// those of [`NEW`].
fn spoil_unused_slots(device: &RamDevice, image: &Path) {
    let place = debugfs::ask(image, "imap <61>").expect("an image");
    let block = place.split("located at block ").nth(1);
    let block = block.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    let start = block.expect("it names the block") * BLOCK as u64;
    device.write_at(start, &[0x5A; 40 * 256]).expect("memory");
}

/// Puts an area behind a log.
fn add_area(device: &RamDevice, log: &LogArea, area: &AreaWriter) {
    let mut journal = read_superblock(device, log).expect("sound");
    journal.incompat.insert(JournalIncompat::FAST_COMMIT);
    journal.num_fast_commit_blocks = 64;
    let (home, _) = log.place(0).expect("a journal");
    let at = home.get() * BLOCK as u64;
    device.write_at(at, &journal.encode()).expect("memory");
    let first = journal.first_fast_commit().expect("an area");
    for (at, block) in (first..).zip(area.bytes().chunks(BLOCK)) {
        log.write(device, at, &[block]).expect("memory");
    }
}

/// A tree without the times, which directories get from the clock.
fn timeless(mut tree: Tree) -> Tree {
    for item in tree.items.values_mut() {
        let facts = &mut item.facts;
        (facts.accessed, facts.modified, facts.changed) = Default::default();
    }
    tree
}

/// The slot of a new inode as Linux records it, which has an empty map here.
fn slot(mode: u16, links: u16, size: u64, generation: u32) -> Vec<u8> {
    let mut slot = Inode::new(256, 32);
    slot.mode = mode;
    slot.links = links;
    slot.size = size;
    slot.generation = generation;
    slot.flags = InodeFlags::EXTENTS;
    slot.block = extent::empty_root();
    let mut bytes = vec![0; 256];
    slot.encode(&mut bytes, InodeNumber(1), None);
    bytes.truncate(160);
    bytes
}

const REGULAR: u16 = 0o100_644;
const DIRECTORY: u16 = 0o040_755;

fn run(logical: u32, start: u64, length: u32) -> Extent {
    Extent {
        logical: LogicalBlock(logical),
        start: BlockNumber(start),
        length,
        unwritten: false,
    }
}

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

fn superblock(device: &RamDevice) -> Superblock {
    let mut bytes = [0; SIZE];
    device.read_at(OFFSET, &mut bytes).expect("memory");
    Superblock::decode(&bytes).expect("sound")
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

/// The first block of a file.
fn block_of(base: &Base, inode: InodeNumber) -> u64 {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(base.device.fork()), options).expect("sound");
    let ranges = volume.extents(inode, 0, 1).expect("it can be read");
    ranges[0].physical / BLOCK as u64
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

fn generation(base: &Base, inode: InodeNumber) -> u32 {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(base.device.fork()), options).expect("sound");
    let entry = volume.lookup_number(inode).expect("it is there");
    entry.attributes.generation
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
