//! The shared locks and lines of commuting operations that are permitted, each with its reason.

use pext4_sync::order::Class;
use pext4_sync::trace::Kind;

/// A lock or line that commuting operations share.
pub struct Exception {
    /// The names of the operations of the one side and of the other.
    pub operations: [&'static [&'static str]; 2],
    pub kind: Kind,
    /// Part of the source location.
    pub place: &'static str,
    /// Whether it is shared in every run; if not, it depends on memory addresses and numbers.
    pub always: bool,
    /// The reason, and what would be needed to remove it.
    #[expect(dead_code, reason = "it is there to be read")]
    pub reason: &'static str,
}

/// What claims or frees a number in one directory.
const NAMES: &[&str] = &[
    "create in one directory",
    "unlink in one directory",
    "make a symbolic link in one directory",
];
const CREATE: &[&str] = &[
    "create in one directory",
    "make a symbolic link in one directory",
];
const UNLINK: &[&str] = &["unlink in one directory"];
const LOOK_UP_ONE: &[&str] = &["look up one name"];
const MAKE_DIRECTORY: &[&str] = &["make a directory"];
/// What allocates or frees blocks, or claims or frees an inode's number.
const CHANGES_A_GROUP: &[&str] = &[
    "create",
    "unlink",
    "make a directory",
    "remove a directory",
    "make a symbolic link",
    "append",
    "allocate",
    "truncate blocks away",
    "write far behind the end",
    "cut off what is far behind",
    "a file without a name, made and given back",
];
/// What ends behind the end of a file, beyond its first block of pointers.
const FAR: &[&str] = &["write far behind the end", "cut off what is far behind"];
/// What may come to the group of the other side's far blocks: such blocks, and directories, which
/// go where there are few.
const COMES_THERE: &[&str] = &[
    "write far behind the end",
    "cut off what is far behind",
    "make a directory",
    "remove a directory",
];
const CUT_FAR: &[&str] = &["cut off what is far behind"];

pub const EXCEPTIONS: &[Exception] = &[
    Exception {
        operations: [&["rename into another directory"]; 2],
        kind: Kind::Lock(Class::Rename),
        place: "ops/rename.rs",
        always: true,
        reason: "whether one directory is above the other must not change during a move, and nothing \
                 but a look at the whole tree tells it; Linux has the same lock. Moves within a \
                 directory do without",
    },
    Exception {
        operations: [MAKE_DIRECTORY, CHANGES_A_GROUP],
        kind: Kind::ReadLine,
        place: "ialloc/orlov.rs",
        always: true,
        reason: "Orlov's rule compares the free blocks, free inodes and directories of the sixteen \
                 groups around the parent, and who changes a group writes its line. A copy of these \
                 numbers on another line would be written as often. Directories are made seldom",
    },
    Exception {
        operations: [MAKE_DIRECTORY, CHANGES_A_GROUP],
        kind: Kind::ReadLine,
        place: "groups/info.rs",
        always: false,
        reason: "as above: the hints themselves, of which a trace names one that was touched",
    },
    Exception {
        operations: [&["read one file"]; 2],
        kind: Kind::ReadLock(Class::Leaf),
        place: "ops/function.rs",
        always: true,
        reason: "the device in memory, not the file system: a lock for each of its chunks",
    },
    Exception {
        operations: [LOOK_UP_ONE; 2],
        kind: Kind::WrittenLine,
        place: "inode/holds.rs",
        always: true,
        reason: "a look-up takes a hold on what it finds, as FUSE counts them, and an inode has one \
                 count of holds. Who does not want to keep what is found asks by path",
    },
    Exception {
        operations: [LOOK_UP_ONE; 2],
        kind: Kind::Lock(Class::InodeState),
        place: "src/inode.rs",
        always: true,
        reason: "the last hold is given back here each time, and who does that looks whether the \
                 inode has a name",
    },
    Exception {
        operations: [LOOK_UP_ONE; 2],
        kind: Kind::ReadLock(Class::InodeTable),
        place: "sync/src/map.rs",
        always: true,
        reason: "as above",
    },
    Exception {
        operations: [NAMES; 2],
        kind: Kind::WrittenLine,
        place: "groups/inodes.rs",
        always: true,
        reason: "files of a directory are neighbours in one group, until two cores race for one \
                 number; then each goes on at a place of its own",
    },
    Exception {
        operations: [NAMES; 2],
        kind: Kind::WrittenLine,
        place: "sync/src/bits.rs",
        always: true,
        reason: "as above",
    },
    Exception {
        operations: [UNLINK; 2],
        kind: Kind::ReadLock(Class::InodeTable),
        place: "sync/src/map.rs",
        always: false,
        reason: "as above: neighbours may share a shard of the table",
    },
    Exception {
        operations: [NAMES, CREATE],
        kind: Kind::Lock(Class::InodeTable),
        place: "sync/src/map.rs",
        always: false,
        reason: "as above: neighbours live in one shard of the table",
    },
    Exception {
        operations: [FAR, COMES_THERE],
        kind: Kind::WrittenLine,
        place: "src/groups/",
        always: false,
        reason: "in a few runs of a hundred both come to one group, whose line it is",
    },
    Exception {
        operations: [CUT_FAR; 2],
        kind: Kind::Lock(Class::Journal),
        place: "jbd2/src/credits.rs",
        always: false,
        reason: "the blocks of pointers made each time are new to the transaction, and its credits are \
                 leased in chunks, small ones on so many cores: a chunk lasts for two rounds or three",
    },
    Exception {
        operations: [CUT_FAR; 2],
        kind: Kind::WrittenLine,
        place: "jbd2/src/credits.rs",
        always: false,
        reason: "as above",
    },
];
