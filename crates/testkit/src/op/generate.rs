//! Random operations that are mostly valid: the generator sees the model, so that it names existing
//! files, appends at ends and uses block boundaries; some operations must fail.

use pext4_fs::{AllocateMode, FileType, RenameMode, SetTime, SetXattrMode, Time};

use super::{Base, Name, NewAttributes, Op, Target};
use crate::Random;
use crate::model::{Body, Model, Node};

/// Number of slots that the generator uses.
const SLOTS: u64 = 4;
/// Largest seconds that an inode's times can hold.
const LATEST: i64 = (1 << 34) - (1 << 31) - 1;
/// Smallest seconds that an inode's times can hold.
const EARLIEST: i64 = -(1 << 31);

/// The relative frequencies of operations, and limits of sizes.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Weight of creating, removing and renaming.
    pub namespace: u64,
    /// Weight of writing, truncating and allocating.
    pub files: u64,
    /// Weight of modes, owners and times.
    pub attributes: u64,
    /// Weight of extended attributes.
    pub xattrs: u64,
    /// Weight of files held open and files without names.
    pub slots: u64,
    /// Weight of operations that change nothing.
    pub reading: u64,
    /// Weight of `fsync`, `fdatasync` and `syncfs`.
    pub syncs: u64,
    /// Weight of remounts.
    pub remounts: u64,
    /// Most offsets of file operations are below this.
    pub largest: u64,
    /// Longest single write in bytes.
    pub longest_write: u64,
    /// Whether some offsets are near the largest size of a file.
    pub huge: bool,
    /// Number of distinct names in a directory; from a few dozen on, directories grow.
    pub names: u64,
    /// Whether to create devices, fifos and sockets.
    pub specials: bool,
    /// Whether extended attributes are few, large and mostly equal, so that inodes can share them.
    pub alike: bool,
}

impl Profile {
    /// A mix of everything.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            namespace: 30,
            files: 40,
            attributes: 8,
            xattrs: 10,
            slots: 6,
            reading: 20,
            syncs: 2,
            remounts: 1,
            largest: 1 << 20,
            longest_write: 96 << 10,
            huge: true,
            names: 12,
            specials: true,
            alike: false,
        }
    }

    /// Mostly extended attributes, few and large ones that many inodes have in common.
    #[must_use]
    pub fn alike() -> Self {
        Self {
            namespace: 30,
            files: 6,
            xattrs: 90,
            alike: true,
            ..Self::everything()
        }
    }

    /// Mostly operations on names, with many names in a directory.
    #[must_use]
    pub fn names() -> Self {
        Self {
            namespace: 80,
            files: 5,
            names: 4000,
            longest_write: 5000,
            ..Self::everything()
        }
    }

    /// Mostly operations on contents.
    #[must_use]
    pub fn contents() -> Self {
        Self {
            namespace: 8,
            files: 90,
            xattrs: 2,
            attributes: 2,
            ..Self::everything()
        }
    }

    /// Small files, many syncs and no remounts, for runs with power cuts.
    #[must_use]
    pub fn crashes() -> Self {
        Self {
            syncs: 8,
            remounts: 0,
            reading: 0,
            largest: 160 << 10,
            longest_write: 24 << 10,
            huge: false,
            ..Self::everything()
        }
    }
}

/// Generates operations.
#[derive(Clone, Debug)]
pub struct Generator {
    profile: Profile,
}

impl Generator {
    /// A generator with these weights.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self { profile }
    }

    /// The next operation, for the tree in the model.
    #[must_use]
    pub fn next(&self, random: &mut Random, model: &Model) -> Op {
        let profile = &self.profile;
        let weights = [
            profile.namespace,
            profile.files,
            profile.attributes,
            profile.xattrs,
            profile.slots,
            profile.reading,
            profile.syncs,
            profile.remounts,
        ];
        match random.weighted(&weights) {
            0 => self.namespace(random, model),
            1 => self.file(random, model),
            2 => self.attribute(random, model),
            3 if self.profile.alike => alike_xattr(random, model),
            3 => xattr(random, model),
            4 => self.slot(random, model),
            5 => self.reading(random, model),
            6 => sync(random, model),
            _ => Op::Remount,
        }
    }

    fn namespace(&self, random: &mut Random, model: &Model) -> Op {
        match random.weighted(&[25, 10, 6, 6, 8, 20, 8, 17]) {
            0 => Op::Create {
                at: self.new_place(random, model),
                new: fresh(random, 0o7777),
            },
            1 => Op::MakeDirectory {
                at: self.new_place(random, model),
                new: directory(random),
            },
            2 if self.profile.specials => node(self.new_place(random, model), random),
            3 => symlink(self.new_place(random, model), random, model),
            4 => Op::Link {
                of: existing(random, model),
                at: self.new_place(random, model),
            },
            5 => Op::Unlink(self.entry(random, model)),
            6 => Op::RemoveDirectory(self.entry(random, model)),
            _ => self.rename(random, model),
        }
    }

    fn rename(&self, random: &mut Random, model: &Model) -> Op {
        let modes = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ];
        let mode = modes[random.weighted(&[5, 2, 3])];
        let from = self.entry(random, model);
        let to_existing = if mode == RenameMode::NoReplace { 1 } else { 5 };
        let to = match random.chance(to_existing, 10) {
            true => self.entry(random, model),
            false => self.new_place(random, model),
        };
        Op::Rename { from, to, mode }
    }

    /// Mostly a path that does not exist yet.
    fn new_place(&self, random: &mut Random, model: &Model) -> Target {
        let directory = some_directory(random, model);
        directory.join(&self.name(random))
    }

    /// Mostly a path that exists.
    fn entry(&self, random: &mut Random, model: &Model) -> Target {
        for _ in 0..4 {
            let target = existing(random, model);
            if !target.path.is_empty() && target != Target::path("lost+found") {
                return target;
            }
        }
        self.new_place(random, model)
    }

    fn name(&self, random: &mut Random) -> Name {
        let number = random.below(self.profile.names);
        match random.below(40) {
            0 => {
                let length = *random.pick(&[200, 254, 255, 255, 256]);
                let mut name = vec![b'l'; length];
                name[0] = b'a' + (number % 26) as u8;
                name
            }
            1 => vec![0x80 + (number % 100) as u8, 0xff, b' ', b'%'],
            2 => format!("{number}{}", "m".repeat(random.index(90))).into_bytes(),
            _ if number < 26 => vec![b'a' + number as u8],
            _ => format!("n{number}").into_bytes(),
        }
    }

    fn file(&self, random: &mut Random, model: &Model) -> Op {
        let (of, size) = some_file(random, model);
        let offset = self.offset(random, model, size);
        let length = self.length(random, model.block_size());
        match random.weighted(&[50, 20, 25]) {
            0 => Op::Write {
                of,
                offset,
                length,
                fill: random.below(1 << 20),
            },
            1 => Op::Truncate { of, size: offset },
            _ => {
                let modes = [
                    AllocateMode::Extend,
                    AllocateMode::KeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange { keep_size: false },
                    AllocateMode::ZeroRange { keep_size: true },
                ];
                let mode = modes[random.weighted(&[5, 4, 9, 2, 2])];
                let length = length.max(random.below(2)) * (1 + 3 * random.below(2));
                Op::Allocate {
                    of,
                    mode,
                    offset,
                    length,
                }
            }
        }
    }

    fn offset(&self, random: &mut Random, model: &Model, size: u64) -> u64 {
        let block = model.block_size();
        let shift = *random.pick(&[0, 0, 0, 1, block - 1, block / 2]);
        let offset = match random.weighted(&[20, 30, 20, 20, 2]) {
            0 => 0,
            1 => size,
            2 => random.below(size + 1),
            4 if self.profile.huge => {
                let most = model.largest_file();
                *random.pick(&[1 << 32, 1 << 40, most - block, most - 1, most, most + 1])
            }
            _ => random.below(self.profile.largest),
        };
        match random.below(3) {
            0 => offset,
            1 => offset / block * block + shift,
            _ => offset.saturating_sub(shift),
        }
    }

    fn length(&self, random: &mut Random, block: u64) -> u64 {
        let longest = self.profile.longest_write;
        let length = match random.weighted(&[20, 20, 30, 10]) {
            0 => random.below(100),
            1 => block + random.below(3) - 1,
            2 => random.below(4 * block),
            _ => random.below(longest),
        };
        length.min(longest)
    }

    fn attribute(&self, random: &mut Random, model: &Model) -> Op {
        let of = not_symlink(random, model);
        match random.below(3) {
            0 => Op::SetMode {
                of,
                permissions: random.below(0o10000) as u16,
            },
            1 => Op::SetOwner {
                of,
                uid: id(random),
                gid: id(random),
            },
            _ => Op::SetTimes {
                of,
                accessed: time(random),
                modified: time(random),
            },
        }
    }

    fn slot(&self, random: &mut Random, model: &Model) -> Op {
        let slot = random.below(SLOTS) as u8;
        match random.weighted(&[5, 3, 4, 1]) {
            0 => Op::Hold {
                of: some_file(random, model).0,
                slot,
            },
            1 => {
                let directory = some_directory(random, model);
                Op::CreateUnnamed {
                    directory,
                    new: fresh(random, 0o777),
                    slot,
                }
            }
            2 => Op::Release(slot),
            _ => Op::Hold {
                of: some_directory(random, model),
                slot,
            },
        }
    }

    fn reading(&self, random: &mut Random, model: &Model) -> Op {
        let (file, size) = some_file(random, model);
        let offset = self.offset(random, model, size);
        match random.below(10) {
            0 | 1 => Op::Read {
                of: file,
                offset,
                length: self.length(random, model.block_size()),
            },
            2 => Op::SeekData { of: file, offset },
            3 => Op::SeekHole { of: file, offset },
            4 => {
                let at_once = *random.pick(&[1, 2, 7, 1000]);
                Op::List {
                    directory: some_directory(random, model),
                    at_once,
                }
            }
            5 => Op::ReadLink(existing(random, model)),
            6 => Op::Lookup(self.entry(random, model)),
            7 => Op::ListXattrs(existing(random, model)),
            8 => Op::Statistics,
            _ => Op::Stat(existing(random, model)),
        }
    }
}

/// A path to something, by a random descent.
fn descend(random: &mut Random, model: &Model, wanted: fn(&Node) -> bool) -> Option<Target> {
    let mut target = Target::root();
    let mut inode = model.root();
    let mut found = wanted(model.node(inode)?).then(|| target.clone());
    while let Some(entries) = model.node(inode).and_then(Node::entries) {
        if entries.is_empty() || (found.is_some() && random.chance(1, 3)) {
            break;
        }
        let (name, &child) = entries.iter().nth(random.index(entries.len()))?;
        target = target.join(name);
        inode = child;
        if wanted(model.node(inode)?) {
            found = Some(target.clone());
        }
    }
    found
}

fn held(random: &mut Random, model: &Model, wanted: fn(&Node) -> bool) -> Option<Target> {
    let slots = model.slots().iter();
    let fitting = slots.filter(|&(_, &inode)| model.node(inode).is_some_and(wanted));
    let fitting: Vec<u8> = fitting.map(|(&slot, _)| slot).collect();
    (!fitting.is_empty()).then(|| Target::slot(*random.pick(&fitting)))
}

fn existing(random: &mut Random, model: &Model) -> Target {
    descend(random, model, |_| true).unwrap_or_else(Target::root)
}

fn some_directory(random: &mut Random, model: &Model) -> Target {
    if random.chance(1, 30) {
        return existing(random, model);
    }
    let slot = random
        .chance(1, 20)
        .then(|| held(random, model, Node::is_open_directory))
        .flatten();
    slot.or_else(|| descend(random, model, Node::is_open_directory))
        .unwrap_or_else(Target::root)
}

fn some_file(random: &mut Random, model: &Model) -> (Target, u64) {
    let is_file = |node: &Node| node.file().is_some();
    let slot = random
        .chance(1, 4)
        .then(|| held(random, model, is_file))
        .flatten();
    let mut target = slot;
    for _ in 0..5 {
        target = target.or_else(|| descend(random, model, is_file));
    }
    let target = target.unwrap_or_else(|| Target::path("a"));
    let file = model
        .resolve(&target)
        .ok()
        .and_then(|inode| model.node(inode)?.file().cloned());
    (target, file.map_or(0, |file| file.content.size()))
}

fn not_symlink(random: &mut Random, model: &Model) -> Target {
    let wanted = |node: &Node| !matches!(node.body, Body::Symlink(_));
    descend(random, model, wanted).unwrap_or_else(Target::root)
}

impl Node {
    /// Whether new entries can be created in it: any directory except a removed one that is held.
    fn is_open_directory(&self) -> bool {
        self.entries().is_some()
    }
}

fn id(random: &mut Random) -> u32 {
    *random.pick(&[0, 1, 1000, 65_535, 65_536, 70_000, u32::MAX - 1])
}

fn fresh(random: &mut Random, bits: u16) -> NewAttributes {
    let permissions = *random.pick(&[0o644, 0o600, 0o755, 0o4755, 0o2755, 0]) & bits;
    NewAttributes {
        permissions,
        uid: id(random),
        gid: id(random),
    }
}

/// The system call for directories ignores set-id bits; a later change of mode sets them.
fn directory(random: &mut Random) -> NewAttributes {
    let permissions = *random.pick(&[0o755, 0o700, 0o1777]);
    NewAttributes {
        permissions,
        uid: id(random),
        gid: id(random),
    }
}

fn node(at: Target, random: &mut Random) -> Op {
    let kinds = [
        FileType::Fifo,
        FileType::Socket,
        FileType::CharacterDevice,
        FileType::BlockDevice,
    ];
    let kind = *random.pick(&kinds);
    let device = match kind {
        FileType::CharacterDevice | FileType::BlockDevice => *random.pick(&[
            (1, 3),
            (8, 0),
            (255, 255),
            (256, 1),
            (4095, 1_048_575),
            (7, 256),
        ]),
        _ => (0, 0),
    };
    Op::MakeNode {
        at,
        new: fresh(random, 0o777),
        kind,
        device,
    }
}

fn symlink(at: Target, random: &mut Random, model: &Model) -> Op {
    let block = model.block_size() as usize;
    let length = *random.pick(&[1, 5, 59, 60, 61, 300, block - 1, block, 4095]);
    Op::MakeSymlink {
        at,
        new: fresh(random, 0o777),
        to: vec![b't'; length],
    }
}

fn time(random: &mut Random) -> Option<SetTime> {
    let seconds = match random.below(6) {
        0 => return None,
        1 => return Some(SetTime::Now),
        2 => *random.pick(&[
            EARLIEST,
            -1,
            0,
            1,
            0x7FFF_FFFF,
            0x8000_0000,
            0xFFFF_FFFF,
            1 << 32,
            LATEST,
        ]),
        _ => random.below(4_000_000_000) as i64,
    };
    // At the ends of the range Linux drops the nanoseconds.
    let at_end = seconds == EARLIEST || seconds == LATEST;
    let nanoseconds = if at_end {
        0
    } else {
        *random.pick(&[0, 1, 999_999_999, 123_456_789])
    };
    Some(SetTime::To(Time {
        seconds,
        nanoseconds,
    }))
}

fn xattr(random: &mut Random, model: &Model) -> Op {
    let of = existing(random, model);
    let node = model.resolve(&of).ok().and_then(|inode| model.node(inode));
    let present: Vec<&Name> = node
        .into_iter()
        .flat_map(|node| node.xattrs.keys())
        .collect();
    let name = match random.chance(1, 2) && !present.is_empty() {
        true => (*random.pick(&present)).clone(),
        false => {
            let prefix = *random.pick(&["user.", "trusted.", "security."]);
            let suffix =
                *random.pick(&["a", "b", "cd", "name", "a-rather-long-name-of-an-attribute"]);
            format!("{prefix}{suffix}").into_bytes()
        }
    };
    match random.below(8) {
        0 => Op::RemoveXattr { of, name },
        1 => Op::GetXattr { of, name },
        _ => {
            let block = model.block_size() as u32;
            let length = *random.pick(&[
                0,
                1,
                4,
                17,
                40,
                64,
                90,
                200,
                500,
                block / 2,
                block - 100,
                block,
                3 * block,
            ]);
            let modes = [
                SetXattrMode::Any,
                SetXattrMode::Create,
                SetXattrMode::Replace,
            ];
            let mode = modes[random.weighted(&[6, 1, 1])];
            Op::SetXattr {
                of,
                name,
                length,
                fill: random.below(100),
                mode,
            }
        }
    }
}

/// Sets an attribute to one of few values, each too large for an inode.
fn alike_xattr(random: &mut Random, model: &Model) -> Op {
    let of = existing(random, model);
    let name = random
        .pick(&["trusted.a", "security.b"])
        .as_bytes()
        .to_vec();
    match random.below(8) {
        0 => Op::RemoveXattr { of, name },
        1 => Op::GetXattr { of, name },
        _ => Op::SetXattr {
            of,
            name,
            length: *random.pick(&[150, 300]),
            fill: random.below(2),
            mode: SetXattrMode::Any,
        },
    }
}

fn sync(random: &mut Random, model: &Model) -> Op {
    let of = match random.below(4) {
        0 => return Op::Sync,
        1 => some_directory(random, model),
        _ => some_file(random, model).0,
    };
    if of.base == Base::Root && of.path.is_empty() {
        return Op::Sync;
    }
    Op::SyncFile {
        of,
        data_only: random.chance(1, 3),
    }
}
