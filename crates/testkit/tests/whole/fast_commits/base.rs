//! An image whose fast-commit area the tests write: what it holds, and what a replay makes of it.

use std::path::Path;
use std::sync::Arc;

use pext4_block::{Device, RamDevice, RecordDevice};
use pext4_fs::{CreateAttributes, MountOptions, SetXattrMode, Volume};
use pext4_jbd2::LogArea;
use pext4_jbd2::recovery::{Replay, read_superblock};
use pext4_ondisk::extent::{self, Extent};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::journal::JournalIncompat;
use pext4_ondisk::journal::fast_commit::AreaWriter;
use pext4_ondisk::superblock::{OFFSET, SIZE, Superblock};
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock, Tid};
use pext4_testkit::campaign::check_device;
use pext4_testkit::effort::scratch;
use pext4_testkit::oracle::debugfs;
use pext4_testkit::oracle::format::{Features, Format};
use pext4_testkit::tree::Tree;
use pext4_testkit::volume::tree_of;

pub(super) const BLOCK: usize = 1024;
pub(super) const ROOT: InodeNumber = InodeNumber::ROOT;
/// The first of some blocks that are free.
pub(super) const FREE: u64 = 16_000;
/// Numbers of inodes that are not in use.
pub(super) const NEW: [InodeNumber; 4] = [
    InodeNumber(101),
    InodeNumber(102),
    InodeNumber(103),
    InodeNumber(104),
];

/// An image with a log to be replayed.
pub(super) struct Base {
    pub(super) device: RamDevice,
    pub(super) log: LogArea,
    /// The first transaction that was not committed.
    pub(super) next: Tid,
    pub(super) file: InodeNumber,
    pub(super) other: InodeNumber,
    pub(super) directory: InodeNumber,
    /// It has lost its name and has blocks.
    pub(super) orphan: InodeNumber,
}

impl Base {
    /// `/file` of two blocks, `/other`, `/directory` with `inside`, and a file without a name.
    pub(super) fn new() -> Self {
        Self::of(Features::Upstream)
    }

    pub(super) fn of(features: Features) -> Self {
        let format = Format::new(16 << 20, 1024, features).with(&["-J", "size=2"]);
        // The inode tables are not written, and not said to be zero.
        Self::made(&format.with(&["-E", "nodiscard,lazy_itable_init=1"]))
    }

    pub(super) fn made(format: &Format) -> Self {
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

    pub(super) fn area(&self) -> AreaWriter {
        let mut area = AreaWriter::new(BLOCK);
        area.head(0, self.next);
        area
    }

    /// The base after its replay, with an empty log, changed by debugfs.
    pub(super) fn changed(self, requests: &[String]) -> Self {
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
    pub(super) fn with(&self, area: &AreaWriter) -> RamDevice {
        let device = self.device.fork();
        add_area(&device, &self.log, area);
        device
    }

    /// The tree after the replay, which must be the same for who only reads.
    pub(super) fn replayed(&self, area: &AreaWriter) -> Tree {
        let device = Arc::new(self.with(area));
        let shown = tree_of(Arc::new(device.fork()), true).expect("it can be replayed");
        let below = Arc::<RamDevice>::clone(&device);
        let tree = tree_of(below, false).expect("it can be replayed");
        check_device(&device).expect("e2fsck is content");
        timeless(shown).assert_same(&timeless(tree.clone()), "in memory and on the image");
        tree
    }

    /// The error of a replay, which must leave the image as it was.
    pub(super) fn refused(&self, area: &AreaWriter) -> String {
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
pub(super) fn spoil_unused_slots(device: &RamDevice, image: &Path) {
    let place = debugfs::ask(image, "imap <61>").expect("an image");
    let block = place.split("located at block ").nth(1);
    let block = block.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
    let start = block.expect("it names the block") * BLOCK as u64;
    device.write_at(start, &[0x5A; 40 * 256]).expect("memory");
}

/// Puts an area behind a log.
pub(super) fn add_area(device: &RamDevice, log: &LogArea, area: &AreaWriter) {
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
pub(super) fn timeless(mut tree: Tree) -> Tree {
    for item in tree.items.values_mut() {
        let facts = &mut item.facts;
        (facts.accessed, facts.modified, facts.changed) = Default::default();
    }
    tree
}

/// The slot of a new inode as Linux records it, which has an empty map here.
pub(super) fn slot(mode: u16, links: u16, size: u64, generation: u32) -> Vec<u8> {
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

pub(super) const REGULAR: u16 = 0o100_644;
pub(super) const DIRECTORY: u16 = 0o040_755;

pub(super) fn run(logical: u32, start: u64, length: u32) -> Extent {
    Extent {
        logical: LogicalBlock(logical),
        start: BlockNumber(start),
        length,
        unwritten: false,
    }
}

/// The first block of a file.
pub(super) fn block_of(base: &Base, inode: InodeNumber) -> u64 {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(base.device.fork()), options).expect("sound");
    let ranges = volume.extents(inode, 0, 1).expect("it can be read");
    ranges[0].physical / BLOCK as u64
}

pub(super) fn generation(base: &Base, inode: InodeNumber) -> u32 {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(base.device.fork()), options).expect("sound");
    let entry = volume.lookup_number(inode).expect("it is there");
    entry.attributes.generation
}

pub(super) fn superblock(device: &RamDevice) -> Superblock {
    let mut bytes = [0; SIZE];
    device.read_at(OFFSET, &mut bytes).expect("memory");
    Superblock::decode(&bytes).expect("sound")
}
