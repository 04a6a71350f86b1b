//! How a volume is mounted, and how wide each mechanism is.

mod scaling;

use std::time::Duration;

pub use scaling::{
    AttributeCache, BusyGroups, DirectoryLocks, Frees, GroupIndex, InodeBits, OrphanSlots,
    SWITCHES, Scaling, ScalingError, StreamGoals, Switch, Width,
};

/// What to do when the image turns out corrupt while mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Note it and go on (`errors=continue`).
    Continue,
    /// Stop writing (`errors=remount-ro`).
    ReadOnly,
}

/// Who may take the blocks that the image keeps for root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// No file, only what must not fail half way.
    #[default]
    Nobody,
    /// Files of root: who writes late knows of no other user than a file's owner.
    Owner,
    /// All files.
    Everybody,
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Nothing is written, not even the journal's replay, which stays in memory.
    pub read_only: bool,
    /// Longest time between commits.
    pub commit_interval: Duration,
    /// Bytes of metadata kept in memory.
    pub cache_size: u64,
    /// Overrides the policy that the superblock names.
    pub on_error: Option<OnError>,
    /// The directory it is mounted on, for the superblock's record.
    pub mounted_on: String,
    /// Users' extended attributes and ACLs are honoured as the image says; this gives freed blocks
    /// back to the device.
    pub discard: bool,
    /// Who may take the blocks that the image keeps for root.
    pub reserve: Reserve,
    /// Width and setting of each scaling mechanism.
    pub scaling: Scaling,
    /// Leaves the journal's log alone: commits go home at once, as on an image without a journal.
    /// Only for a device that makes all of what is written durable, or nothing of it, after the
    /// volume is closed. An image whose journal must be replayed first is refused.
    pub without_log: bool,
    /// Makes the same operations give the same bytes on every machine, if one thread does them all,
    /// pinned to shard 0 and with its clock held (both in `pext4-sync`), waits for a commit between
    /// freeing and allocating, and has no scaling mechanism whose width is left to the machine:
    /// small files are served from one place, and generations of new inodes are counted from this
    /// number instead of being hard to guess.
    pub repeatable: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            commit_interval: Duration::from_secs(5),
            cache_size: 256 << 20,
            on_error: None,
            mounted_on: String::new(),
            discard: false,
            reserve: Reserve::default(),
            scaling: Scaling::default(),
            without_log: false,
            repeatable: None,
        }
    }
}
