//! A volume, and two sides that use it, each with files and a directory of its own.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pext4_block::{Device, RamDevice};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, SetAttributes, Volume};
use pext4_image::mkfs;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_sync::topology;
use pext4_sync::trace::{Trace, record};

use crate::ROUNDS;
use crate::operations::Operation;

/// Groups of the image, 128 MiB each.
const GROUPS: u64 = 64;
/// Rounds before the counted ones.
const WARM_UP: usize = 20;
/// Look-ups of one name in the common directory before recording begins: locks that were written,
/// those of the directory and its index, count this many readers before readers pass without a
/// trace.
const STILL: usize = 40_000;
/// Names in the common directory: enough for several dozen leaves.
const COMMON_NAMES: usize = 3000;

pub const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o600,
    uid: 0,
    gid: 0,
};

/// The files and directories of one side.
pub struct Side {
    pub number: usize,
    pub volume: Arc<Volume>,
    pub directory: InodeNumber,
    pub second: InodeNumber,
    pub file: InodeNumber,
    /// A directory of both sides, and a file in it.
    pub common: InodeNumber,
    pub common_file: InodeNumber,
    pub round: usize,
}

impl Side {
    pub fn name(&self, prefix: &str) -> Vec<u8> {
        format!("{prefix}-{}-{}", self.number, self.round).into_bytes()
    }

    /// An existing name of the common directory that only this side uses in this round.
    pub fn common_name(&self) -> Vec<u8> {
        common_name((self.round * 37 + self.number * COMMON_NAMES / 2) % COMMON_NAMES)
    }

    pub fn resize(&self, size: u64) {
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        self.volume
            .set_attributes(self.file, &change)
            .expect("it can be done");
    }
}

pub fn common_name(number: usize) -> Vec<u8> {
    format!("a-name-that-is-long-enough-to-fill-some-leaves-{number:06}").into_bytes()
}

/// How new files are mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Maps {
    Extents,
    /// Block maps, as in ext3.
    Pointers,
}

pub fn volume(maps: Maps) -> Arc<Volume> {
    let device = Arc::new(RamDevice::new(GROUPS << 27));
    // The same in every run: hashes of names and numbers decide which items share a shard.
    let options = mkfs::Options {
        uuid: Some([7; 16]),
        hash_seed: Some([1, 2, 3, 4]),
        inodes: Some(GROUPS * 2048),
        ..mkfs::Options::default()
    };
    mkfs::mkfs(&*device, &options).expect("an image");
    if maps == Maps::Pointers {
        take_extents_away(&device);
    }
    let options = MountOptions {
        commit_interval: Duration::from_secs(1 << 20),
        ..MountOptions::default()
    };
    Arc::new(Volume::open(device, options).expect("a mount"))
}

/// Existing files keep their extents; new files get block maps.
pub fn take_extents_away(device: &RamDevice) {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(1024, &mut bytes).expect("it has one");
    let mut superblock = Superblock::decode(&bytes).expect("just made");
    superblock.features.incompat.remove(Incompat::EXTENTS);
    let written = device.write_at(1024, &superblock.encode());
    written.expect("it is in memory");
}

/// Creates a directory with room in its leaves, and a file in it; no leaf was split recently.
pub fn common(volume: &Volume) -> [InodeNumber; 2] {
    let root = InodeNumber::ROOT;
    let directory = volume
        .make_directory(root, b"common", &NEW)
        .expect("there is room")
        .inode;
    for number in 0..2 * COMMON_NAMES {
        let made = volume.create(directory, &common_name(number), &NEW);
        volume.forget(made.expect("there is room").inode, 1);
    }
    for number in COMMON_NAMES..2 * COMMON_NAMES {
        let name = common_name(number);
        volume.unlink(directory, &name).expect("it is there");
    }
    for _ in 0..STILL {
        let found = volume.lookup(directory, &common_name(0));
        volume.forget(found.expect("it is there").inode, 1);
    }
    let found = volume.lookup(directory, &common_name(1));
    let file = found.expect("it is there").inode;
    volume.write(file, 0, &[1; 4096]).expect("there is room");
    [directory, file]
}

impl Side {
    fn new(volume: &Arc<Volume>, common: [InodeNumber; 2], number: usize, moved: usize) -> Self {
        let directory = |name: &str| {
            let made = volume.make_directory(InodeNumber::ROOT, name.as_bytes(), &NEW);
            made.expect("there is room").inode
        };
        (0..moved).for_each(|at| {
            directory(&format!("moved{number}-{at}"));
        });
        let own = directory(&format!("own{number}"));
        let made = volume.create(own, b"file", &NEW);
        let file = made.expect("there is room").inode;
        volume.write(file, 0, &[1; 16384]).expect("there is room");
        Self {
            number,
            volume: Arc::clone(volume),
            directory: own,
            second: directory(&format!("second{number}")),
            file,
            common: common[0],
            common_file: common[1],
            round: 0,
        }
    }

    /// The traces of all rounds of an operation.
    fn traces(&mut self, operation: &Operation) -> Vec<Trace> {
        let rounds = (0..WARM_UP + ROUNDS).map(|_| {
            self.round += 1;
            (operation.before)(self);
            record(|| (operation.run)(self)).1
        });
        let all: Vec<Trace> = rounds.collect();
        all.into_iter().skip(WARM_UP).collect()
    }
}

/// A side on a thread of its own, as in a real program.
pub struct Worker {
    orders: mpsc::Sender<&'static Operation>,
    traces: mpsc::Receiver<Vec<Trace>>,
}

impl Worker {
    pub fn start(
        volume: &Arc<Volume>,
        common: [InodeNumber; 2],
        number: usize,
        moved: usize,
    ) -> Self {
        let (orders, received) = mpsc::channel::<&'static Operation>();
        let (results, traces) = mpsc::channel();
        let volume = Arc::clone(volume);
        thread::spawn(move || {
            // Unpinned threads may use shard 0.
            let _pin = topology::pin(number + 1);
            let mut side = Side::new(&volume, common, number, moved);
            for operation in received {
                if results.send(side.traces(operation)).is_err() {
                    break;
                }
            }
        });
        Self { orders, traces }
    }

    pub fn traces(&self, operation: &'static Operation) -> Vec<Trace> {
        self.orders.send(operation).expect("the side is there");
        self.traces.recv().expect("the side did not fail")
    }
}
