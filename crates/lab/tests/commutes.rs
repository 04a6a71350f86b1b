//! What should commute shares nothing: the structural evidence, on one core.
//!
//! Two sides, pinned to different shards, do operations that have nothing to do with each other, or
//! meet only in one directory. Every lock instance and every line with an atomic that an operation
//! touches is written down (`pext4_sync::trace`); two operations that commute may have none in
//! common that either of them changes, but for the exceptions in [`EXCEPTIONS`], each with its
//! reason. An exception that no longer occurs fails the test as well, unless it depends on chance.
//!
//! An operation is done many times. Something that is shared once in many times (a shard fetches
//! another chunk of credits, a hint is renewed) is no hand-over per operation, so what counts is
//! what is shared in at least [`OFTEN`] of [`ROUNDS`] rounds. `docs/VIRTUAL.md` says what a trace
//! does not see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pext4_block::{Device, RamDevice};
use pext4_fs::{
    AllocateMode, InodeNumber, MountOptions, New, RenameMode, SetAttributes, SetXattrMode, Volume,
};
use pext4_image::mkfs;
use pext4_lab::random::Random;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::superblock::{self, Superblock};
use pext4_sync::order::Class;
use pext4_sync::topology;
use pext4_sync::trace::{Kind, Trace, record};

/// As many shards as on a machine with so many processors: with few, what is spread by hash meets by
/// accident.
const PROCESSORS: usize = 256;
/// Groups of the image, of 128 MiB.
const GROUPS: u64 = 64;
const ROUNDS: usize = 12;
const OFTEN: usize = 4;
/// Rounds before those that count.
const WARM_UP: usize = 20;
/// Look-ups of one name in it before anything is looked at: locks that were written to, the
/// directory's and that of its index, count so many readers before they let them by without a trace.
const STILL: usize = 40_000;
/// Names in the directory that both sides use: enough for several dozen leaves.
const COMMON_NAMES: usize = 3000;

const NEW: New = New {
    permissions: 0o600,
    uid: 0,
    gid: 0,
};

/// What one side works on.
struct Side {
    number: usize,
    volume: Arc<Volume>,
    directory: InodeNumber,
    second: InodeNumber,
    file: InodeNumber,
    /// A directory of both sides, and a file in it.
    common: InodeNumber,
    common_file: InodeNumber,
    round: usize,
}

impl Side {
    fn name(&self, prefix: &str) -> Vec<u8> {
        format!("{prefix}-{}-{}", self.number, self.round).into_bytes()
    }

    /// A name of the common directory that exists and is this side's in this round.
    fn common_name(&self) -> Vec<u8> {
        common_name((self.round * 37 + self.number * COMMON_NAMES / 2) % COMMON_NAMES)
    }

    fn resize(&self, size: u64) {
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        self.volume
            .set_attributes(self.file, &change)
            .expect("it can be done");
    }
}

/// So many words that differ from round to round and from side to side.
fn scattered(side: &Side, length: usize) -> Vec<u8> {
    let mut random = Random::new(side.round as u64, u32::try_from(side.number).expect("two"));
    (0..length)
        .flat_map(|_| random.draw().to_le_bytes())
        .collect()
}

fn common_name(number: usize) -> Vec<u8> {
    format!("a-name-that-is-long-enough-to-fill-some-leaves-{number:06}").into_bytes()
}

/// An operation: what comes before it and is not looked at, and itself.
struct Operation {
    name: &'static str,
    before: fn(&Side),
    run: fn(&Side),
}

const fn operation(name: &'static str, run: fn(&Side)) -> Operation {
    Operation {
        name,
        before: |_| (),
        run,
    }
}

const fn prepared(name: &'static str, before: fn(&Side), run: fn(&Side)) -> Operation {
    Operation { name, before, run }
}

/// Operations on what is a side's own. Any two of different sides commute.
const PRIVATE: &[Operation] = &[
    operation("create", |side| {
        let made = side.volume.create(side.directory, &side.name("new"), &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    prepared(
        "unlink",
        |side| {
            let made = side.volume.create(side.directory, &side.name("gone"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let name = side.name("gone");
            side.volume
                .unlink(side.directory, &name)
                .expect("it is there");
        },
    ),
    prepared(
        "rename in one directory",
        |side| {
            let made = side.volume.create(side.directory, &side.name("old"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let (old, new) = (side.name("old"), side.name("moved"));
            let own = side.directory;
            let moved = side
                .volume
                .rename(own, &old, own, &new, RenameMode::Replace);
            moved.expect("it is there");
        },
    ),
    prepared(
        "rename into another directory",
        |side| {
            let made = side.volume.create(side.directory, &side.name("from"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            let name = side.name("from");
            let (from, to) = (side.directory, side.second);
            let moved = side
                .volume
                .rename(from, &name, to, &name, RenameMode::Replace);
            moved.expect("it is there");
        },
    ),
    operation("lookup", |side| {
        let found = side
            .volume
            .lookup(side.directory, b"file")
            .expect("it is there");
        side.volume.forget(found.inode, 1);
    }),
    operation("stat", |side| {
        side.volume.attributes(side.file).expect("it is there");
    }),
    operation("list", |side| {
        let listed = side.volume.read_directory(side.second, 0, &mut |_| true);
        listed.expect("it is there");
    }),
    operation("read", |side| {
        side.volume
            .read(side.file, 0, &mut [0; 4096])
            .expect("it is there");
    }),
    operation("overwrite", |side| {
        side.volume
            .write(side.file, 0, &[7; 4096])
            .expect("it is there");
    }),
    prepared(
        "append",
        |side| side.resize(4096 * (side.round as u64 % 3 + 1)),
        |side| {
            let end = 4096 * (side.round as u64 % 3 + 1);
            side.volume
                .write(side.file, end, &[8; 4096])
                .expect("there is room");
        },
    ),
    prepared(
        "allocate",
        |side| side.resize(1 << 20),
        |side| {
            let mode = AllocateMode::Extend;
            let made = side.volume.allocate(side.file, mode, 1 << 20, 32 << 10);
            made.expect("there is room");
        },
    ),
    operation("truncate by a byte", |side| {
        side.resize((1 << 20) - side.round as u64);
    }),
    prepared(
        "truncate blocks away",
        |side| {
            side.resize(4096);
            side.volume
                .write(side.file, 4096, &[9; 16384])
                .expect("there is room");
        },
        |side| side.resize(4096),
    ),
    prepared(
        "write far behind the end",
        |side| side.resize(4096),
        |side| {
            // Where a block map needs two blocks of pointers.
            side.volume
                .write(side.file, 8 << 20, &[9; 4096])
                .expect("there is room");
        },
    ),
    prepared(
        "cut off what is far behind",
        |side| {
            side.resize(4096);
            side.volume
                .write(side.file, 8 << 20, &[9; 4096])
                .expect("there is room");
        },
        |side| side.resize(4096),
    ),
    operation("change permissions", |side| {
        let change = SetAttributes {
            permissions: Some(0o600 + (side.round as u16 % 2) * 0o10),
            ..SetAttributes::default()
        };
        side.volume
            .set_attributes(side.file, &change)
            .expect("it can be done");
    }),
    operation("set a small attribute", |side| {
        let value = side.name("value");
        let set = side
            .volume
            .set_xattr(side.file, b"user.small", &value, SetXattrMode::Any);
        set.expect("there is room");
    }),
    operation("set a large attribute", |side| {
        // The format's hash of a value is no more than a rotation and an exclusive or: values that
        // repeat themselves have the same one.
        let value = scattered(side, 50);
        let set = side
            .volume
            .set_xattr(side.file, b"user.large", &value, SetXattrMode::Any);
        set.expect("there is room");
    }),
    operation("a file without a name, made and given back", |side| {
        let made = side
            .volume
            .create_unnamed(side.directory, &NEW)
            .expect("there is room");
        side.volume.forget(made.inode, 1);
    }),
];

/// Operations in one directory, or on one file, that commute all the same.
const COMMON: &[Operation] = &[
    operation("look up one name", |side| {
        let found = side
            .volume
            .lookup(side.common, &common_name(0))
            .expect("it is there");
        side.volume.forget(found.inode, 1);
    }),
    operation("look up a name of one's own in one directory", |side| {
        let found = side
            .volume
            .lookup(side.common, &side.common_name())
            .expect("it is there");
        side.volume.forget(found.inode, 1);
    }),
    operation("stat one file", |side| {
        side.volume
            .attributes(side.common_file)
            .expect("it is there");
    }),
    operation("read one file", |side| {
        side.volume
            .read(side.common_file, 0, &mut [0; 4096])
            .expect("it is there");
    }),
    operation("set an attribute that others have", |side| {
        // One of two blocks is taken and the other left in each round.
        let value = [b'a' + (side.round % 2) as u8; 300];
        let set = side
            .volume
            .set_xattr(side.file, b"user.common", &value, SetXattrMode::Any);
        set.expect("there is room");
    }),
    operation("create in one directory", |side| {
        let made = side.volume.create(side.common, &side.name("new"), &NEW);
        side.volume.forget(made.expect("there is room").inode, 1);
    }),
    prepared(
        "unlink in one directory",
        |side| {
            let made = side.volume.create(side.common, &side.name("gone"), &NEW);
            side.volume.forget(made.expect("there is room").inode, 1);
        },
        |side| {
            side.volume
                .unlink(side.common, &side.name("gone"))
                .expect("it is there");
        },
    ),
];

/// How new files are mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maps {
    Extents,
    /// Block maps, as on ext3.
    Pointers,
}

fn volume(maps: Maps) -> Arc<Volume> {
    let device = Arc::new(RamDevice::new(GROUPS << 27));
    // The same each time: where names and numbers fall by hash decides what meets.
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

/// What is there keeps its extents, new files do without.
fn take_extents_away(device: &RamDevice) {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(1024, &mut bytes).expect("it has one");
    let mut superblock = Superblock::decode(&bytes).expect("just made");
    superblock.features.incompat.remove(Incompat::EXTENTS);
    let written = device.write_at(1024, &superblock.encode());
    written.expect("it is in memory");
}

/// A directory with room in its leaves, and a file in it, as they are when nobody has split a leaf
/// for a while.
fn common(volume: &Volume) -> [InodeNumber; 2] {
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

    /// What each round of an operation touched.
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

/// A side on a thread of its own, as in life: so it has memory of its own too, and what one side has
/// given back is not what the other gets.
struct Worker {
    orders: mpsc::Sender<&'static Operation>,
    traces: mpsc::Receiver<Vec<Trace>>,
}

impl Worker {
    fn start(volume: &Arc<Volume>, common: [InodeNumber; 2], number: usize, moved: usize) -> Self {
        let (orders, received) = mpsc::channel::<&'static Operation>();
        let (results, traces) = mpsc::channel();
        let volume = Arc::clone(volume);
        thread::spawn(move || {
            // Shard 0 is where unpinned threads may be.
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

    fn traces(&self, operation: &'static Operation) -> Vec<Trace> {
        self.orders.send(operation).expect("the side is there");
        self.traces.recv().expect("the side did not fail")
    }
}

/// What is shared, and where.
type Found = BTreeMap<(Kind, String), usize>;

/// The file of a place in the source, without the folders that differ between machines.
fn file(site: &std::panic::Location<'_>) -> String {
    let path = site.file();
    let names: Vec<&str> = path.rsplitn(4, '/').collect();
    let last: Vec<&str> = names.into_iter().take(3).rev().collect();
    format!("{}:{}", last.join("/"), site.line())
}

fn shared(first: &[Trace], second: &[Trace]) -> Found {
    let mut found = Found::new();
    for (one, other) in first.iter().zip(second) {
        let common = one.common(other).into_iter();
        let places: BTreeSet<(Kind, String)> = common
            .map(|shared| {
                let (mut one, mut other) = (file(shared.first), file(shared.second));
                if one > other {
                    std::mem::swap(&mut one, &mut other);
                }
                let places = if one == other {
                    one
                } else {
                    format!("{one} and {other}")
                };
                (shared.kind, places)
            })
            .collect();
        for place in places {
            *found.entry(place).or_default() += 1;
        }
    }
    found.retain(|_, times| *times >= OFTEN);
    found
}

/// What is shared although the operations commute.
struct Exception {
    /// Words of the names of the two operations; the one that is empty fits all.
    operations: [&'static str; 2],
    kind: Kind,
    /// Part of the place.
    place: &'static str,
    /// Whether it is there in every run: if not, it depends on how memory and numbers fall.
    always: bool,
    /// Why it is so, and what it would take to change it.
    #[expect(dead_code, reason = "it is there to be read")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[
    Exception {
        operations: [
            "rename into another directory",
            "rename into another directory",
        ],
        kind: Kind::Lock(Class::Rename),
        place: "ops/rename.rs",
        always: true,
        reason: "whether one directory is above the other must not change during a move, and nothing \
                 but a look at the whole tree tells it; Linux has the same lock. Moves within a \
                 directory do without",
    },
    Exception {
        operations: ["read one file", "read one file"],
        kind: Kind::ReadLock(Class::Leaf),
        place: "ops/function.rs",
        always: true,
        reason: "the device in memory, not the file system: a lock for each of its chunks",
    },
    Exception {
        operations: ["look up one name", "look up one name"],
        kind: Kind::WrittenLine,
        place: "inode/holds.rs",
        always: true,
        reason: "a look-up takes a hold on what it finds, as FUSE counts them, and an inode has one \
                 count of holds. Who does not want to keep what is found asks by path",
    },
    Exception {
        operations: ["look up one name", "look up one name"],
        kind: Kind::Lock(Class::InodeMap),
        place: "inode/mapping.rs",
        always: true,
        reason: "the last hold is given back here each time, and who does that looks what the inode \
                 leaves behind",
    },
    Exception {
        operations: ["look up one name", "look up one name"],
        kind: Kind::Lock(Class::InodeState),
        place: "inode/mod.rs",
        always: true,
        reason: "as above",
    },
    Exception {
        operations: ["look up one name", "look up one name"],
        kind: Kind::ReadLock(Class::InodeTable),
        place: "sync/src/map.rs",
        always: true,
        reason: "as above",
    },
    Exception {
        operations: ["in one directory", "in one directory"],
        kind: Kind::WrittenLine,
        place: "groups/inodes.rs",
        always: true,
        reason: "files of a directory are neighbours in one group, until two cores race for one \
                 number; then each goes on at a place of its own",
    },
    Exception {
        operations: ["in one directory", "in one directory"],
        kind: Kind::WrittenLine,
        place: "sync/src/bits.rs",
        always: true,
        reason: "as above",
    },
    Exception {
        operations: ["unlink in one directory", "in one directory"],
        kind: Kind::ReadLine,
        place: "inode/holds.rs",
        always: false,
        reason: "as above: neighbours' holds lie side by side",
    },
    Exception {
        operations: ["unlink in one directory", "unlink in one directory"],
        kind: Kind::ReadLock(Class::InodeTable),
        place: "sync/src/map.rs",
        always: false,
        reason: "as above: neighbours may share a shard of the table",
    },
    Exception {
        operations: ["in one directory", "create in one directory"],
        kind: Kind::Lock(Class::InodeTable),
        place: "sync/src/map.rs",
        always: false,
        reason: "as above: neighbours live in one shard of the table",
    },
    Exception {
        operations: ["far behind", "far behind"],
        kind: Kind::WrittenLine,
        place: "groups/slot.rs",
        always: false,
        reason: "in a few runs of a hundred both come to one group, whose line it is",
    },
    Exception {
        operations: ["cut off what is far behind", "cut off what is far behind"],
        kind: Kind::Lock(Class::Journal),
        place: "jbd2/src/credits.rs",
        always: false,
        reason: "the blocks of pointers made each time are new to the transaction, and its credits are \
                 leased in chunks, small ones on so many cores: a chunk lasts for two rounds or three",
    },
    Exception {
        operations: ["cut off what is far behind", "cut off what is far behind"],
        kind: Kind::WrittenLine,
        place: "jbd2/src/credits.rs",
        always: false,
        reason: "as above",
    },
];

fn check(first: &str, second: &str, found: &Found, used: &mut BTreeSet<usize>) -> Vec<String> {
    let fits = |exception: &Exception, kind: Kind, place: &str| {
        let [one, other] = exception.operations;
        let names = (first.contains(one) && second.contains(other))
            || (first.contains(other) && second.contains(one));
        names && exception.kind == kind && place.contains(exception.place)
    };
    let mut wrong = Vec::new();
    for ((kind, place), times) in found {
        let exceptions = EXCEPTIONS.iter().enumerate();
        let fitting: Vec<usize> = exceptions
            .filter(|(_, exception)| fits(exception, *kind, place))
            .map(|(number, _)| number)
            .collect();
        if fitting.is_empty() {
            wrong.push(format!(
                "`{first}` and `{second}` share {kind:?} in {times} of {ROUNDS} rounds, at {place}"
            ));
        }
        used.extend(fitting);
    }
    wrong
}

/// Each pair that shares what no exception names, and what that is. Each side makes so many directories
/// before its own, so that its numbers and blocks fall otherwise.
fn shared_things(maps: Maps, moved: usize) -> BTreeMap<String, String> {
    let volume = volume(maps);
    let common = common(&volume);
    let [left, right] = [0, 1].map(|number| Worker::start(&volume, common, number, moved));
    let all = |operations: &'static [Operation]| -> Vec<(&str, Vec<Trace>, Vec<Trace>)> {
        let each = operations.iter().filter(|operation| {
            // A block map has no unwritten blocks.
            maps == Maps::Extents || operation.name != "allocate"
        });
        each.map(|operation| {
            let first = left.traces(operation);
            (operation.name, first, right.traces(operation))
        })
        .collect()
    };
    let private = all(PRIVATE);
    let common = all(COMMON);
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for (first, traces, _) in private.iter().chain(&common) {
        for (second, _, others) in &private {
            wrong.extend(check(first, second, &shared(traces, others), &mut used));
        }
    }
    for (first, traces, _) in &common {
        for (second, _, others) in &common {
            wrong.extend(check(first, second, &shared(traces, others), &mut used));
        }
    }
    for (number, exception) in EXCEPTIONS.iter().enumerate() {
        if exception.always && !used.contains(&number) {
            let operations = exception.operations;
            wrong.push(format!(
                "exception {number} ({operations:?}) does not occur any more"
            ));
        }
    }
    let short = |line: &String| line.split(" in ").next().unwrap_or_default().to_owned();
    wrong.into_iter().map(|line| (short(&line), line)).collect()
}

#[test]
fn what_commutes_shares_nothing() {
    nothing_is_shared(Maps::Extents);
}

#[test]
fn what_commutes_shares_nothing_where_files_have_block_maps() {
    nothing_is_shared(Maps::Pointers);
}

fn nothing_is_shared(maps: Maps) {
    topology::imitate(PROCESSORS);
    let mut wrong = shared_things(maps, 0);
    // Two blocks may fall to one shard by chance, and then do so in every round, but not again and
    // again where they are others.
    for moved in [3, 7] {
        if !wrong.is_empty() {
            let again = shared_things(maps, moved);
            wrong.retain(|thing, _| again.contains_key(thing));
        }
    }
    let lines: Vec<String> = wrong.into_values().collect();
    assert!(
        lines.is_empty(),
        "{} things are shared:\n{}",
        lines.len(),
        lines.join("\n")
    );
}
