//! How a volume is mounted.

mod scaling;

use std::time::Duration;

pub use scaling::{
    AttributeCache, BusyGroups, DirectoryLocks, Frees, GroupIndex, InodeBits, LeafSearch,
    OrphanSlots, SWITCHES, Scaling, ScalingError, StreamGoals, Switch, Width,
};

/// What to do when the image turns out corrupt while mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Note it and go on (`errors=continue`).
    Continue,
    /// Stop writing (`errors=remount-ro`).
    ReadOnly,
}

/// Who may take the blocks that the image reserves (`mke2fs -m`), which in Linux only root may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserve {
    /// No file: only blocks of metadata without which an operation would fail half way.
    #[default]
    Nobody,
    /// Files that belong to root, or to the user or group that the mount or the image names. A
    /// FUSE server uses this where others may write too: data arrives from the kernel's cache
    /// without the user who wrote it, so the file's owner decides.
    Owner,
    /// All files.
    Everybody,
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Nothing is written to the device; the volume is read as a replay of its journal would leave
    /// it.
    pub read_only: bool,
    /// With `read_only`: a journal that must be replayed is not looked at. The last changes are
    /// missing, and structures may contradict each other, but an image whose journal is damaged can
    /// be read (`noload` in Linux).
    pub skip_replay: bool,
    /// Longest time between commits; 5 seconds by default, as in Linux.
    pub commit_interval: Duration,
    /// Bytes of memory for cached metadata; 256 MiB by default. Less than 4 MiB make no sense: each
    /// part of the cache has a floor of its own. What changes very many blocks at once, such as the
    /// removal of a huge file, takes up to twice as much until they are written home.
    pub cache_size: u64,
    /// What to do about corruption; by default what the superblock says.
    pub on_error: Option<OnError>,
    /// The directory it is mounted on, which the superblock remembers (`s_last_mounted`).
    pub mounted_on: String,
    /// Whether freed blocks are given back to the device once the transaction that freed them is
    /// durable; by default what the superblock says (`tune2fs -o discard`).
    pub discard: Option<bool>,
    /// Who may take the blocks that the image reserves.
    pub reserve: Reserve,
    /// The user besides root whose files may use the reserve under [`Reserve::Owner`]; by default
    /// whom the superblock names (`tune2fs -u`).
    pub reserve_uid: Option<u32>,
    /// The group likewise (`tune2fs -g`).
    pub reserve_gid: Option<u32>,
    /// Whether a new inode gets its directory's group even if the directory has no set-group-id bit
    /// (`grpid` in Linux); by default what the superblock says (`tune2fs -o bsdgroups`).
    pub inherit_group: Option<bool>,
    /// Width and setting of each scaling mechanism.
    pub scaling: Scaling,
    /// Whether other machines may use the device too. An image with multiple mount protection (the
    /// feature `mmp`) is claimed then, and kept claimed by a thread, unless `read_only`: the mount
    /// takes a second for it, or more than twenty if the last user did not release it.
    pub is_device_shared: bool,
    /// Bypasses the journal: a commit writes its blocks home at once, as on an image without a
    /// journal. This is only safe on a device that keeps either all that is written or nothing of
    /// it when the volume is closed. An image whose journal must be replayed first is refused.
    pub bypass_journal: bool,
    /// Makes results deterministic: the same operations give the same bytes on every machine. The
    /// value is the generation of the first new inode, from which later ones are counted; without
    /// this option generations are random.
    ///
    /// The caller must do all operations in one thread, pinned to shard 0 and with its clock held
    /// (both in `pext4-sync`), wait for a commit between freeing and allocating, and leave no width
    /// in `scaling` to the machine.
    pub deterministic: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            skip_replay: false,
            commit_interval: Duration::from_secs(5),
            cache_size: 256 << 20,
            on_error: None,
            mounted_on: String::new(),
            discard: None,
            reserve: Reserve::default(),
            reserve_uid: None,
            reserve_gid: None,
            inherit_group: None,
            scaling: Scaling::default(),
            is_device_shared: true,
            bypass_journal: false,
            deterministic: None,
        }
    }
}
