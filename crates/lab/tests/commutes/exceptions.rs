//! The shared locks and lines of commuting operations that are permitted, each with its reason.

use pext4_sync::order::Class;
use pext4_sync::trace::Kind;

/// A lock or line that commuting operations share.
pub struct Exception {
    /// Parts of the names of the two operations; the empty string matches all.
    pub operations: [&'static str; 2],
    pub kind: Kind,
    /// Part of the source location.
    pub place: &'static str,
    /// Whether it is shared in every run; if not, it depends on memory addresses and numbers.
    pub always: bool,
    /// The reason, and what would be needed to remove it.
    #[expect(dead_code, reason = "it is there to be read")]
    pub reason: &'static str,
}

pub const EXCEPTIONS: &[Exception] = &[
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
