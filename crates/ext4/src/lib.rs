//! ext4 in user space, for many cores.
//!
//! While a volume is mounted, memory is the truth, in structures made for many cores; bytes are
//! made once, at commit. [`Volume`] is a mounted file system: `Send + Sync`, every operation takes
//! `&self`. It works on inode numbers, as a server wants it; [`Volume::paths`] is the same on
//! paths, in the manner of `std::fs`:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pext4_fs::{MountOptions, Volume};
//!
//! // An image of somebody else, read only: nothing is written to it.
//! let options = MountOptions { read_only: true, ..MountOptions::default() };
//! let volume = Volume::open_image("rootfs.img", options)?;
//! for entry in volume.paths().read_dir("/etc")? {
//!     println!("{}", String::from_utf8_lossy(&entry?.name));
//! }
//! let release = volume.paths().read("/etc/os-release")?;
//! # Ok(())
//! # }
//! ```
//!
//! # Threads and blocking
//!
//! Every call works on the calling thread and returns when it is done. It may sleep: for a read of
//! the device, for a lock that another call holds, or, if it changes something, for a commit that
//! makes room in the journal. `fsync`, `sync` and their like wait for a commit. None of this is
//! `async`.
//!
//! - [`Volume::open`] reads the whole journal if it has to be replayed, and all group descriptors.
//!   Unless it is read-only, a volume has a thread of its own that commits and, with a journal, one
//!   that writes blocks home; a commit of many objects starts more for its duration.
//! - Drop blocks too. The last drop of a [`path::File`] or [`path::HeldInode`] whose file has lost
//!   all its names deletes the file. The drop of a [`Volume`] commits everything, writes it home
//!   and ends the threads; [`Volume::close`] does the same and reports errors.
//! - A program with an event loop keeps the volume in an `Arc` and gives whole pieces of work to a
//!   thread that may sleep (`spawn_blocking`): the closure owns a clone of the `Arc`, or files that
//!   do ([`path::Paths::new`]). These, and the last `Arc`, should be dropped there as well.
//!   Parallel calls scale, so use several such threads.
//! - No image and no error of a device makes a call panic. A panic, of a [`Device`] or by a bug,
//!   unwinds through the call; the process may live on. If it struck between two changes of an
//!   operation, or one of the volume's threads, the journal stops as it does when the device fails:
//!   the volume is read-only from then on, [`Volume::failure`] says why, and the image keeps what
//!   was durable.
//! - To bound the time of a call, or to cancel it, wrap the device and let its reads fail: on a
//!   read-only volume the call then fails with [`Error::Io`], and nothing else happens.
//!
//! # Errors
//!
//! An [`Error`] says who is to blame: the device, the bytes, a feature that this version does not
//! have, or the caller ([`Refusal`], by POSIX); [`Error::errno`] is the number that a system call
//! would return. A failed write or flush, and damage that the volume's `errors=` policy does not
//! tolerate, end all changes: the volume is read-only from then on ([`Volume::is_read_only`],
//! [`Volume::failure`]), and what was durable stays. Only data for which the host has no space
//! (`StorageFull`, `QuotaExceeded`) fails alone.
//!
//! # Related crates
//!
//! `pext4-image` makes images (`mkfs`, `build`), checks and resizes them; `pext4-edit` changes them
//! all or nothing, and reads those of strangers; `pext4-fuse` mounts a volume on a directory;
//! `pext4-block` has the devices. `pext4` shows all of them under one name.

#![forbid(unsafe_code)]

// The layers, from the ground up, are the modules of this crate in this order; each imports only
// from those before it (`tests/whole/layers.rs`), but for the first two groups, whose modules may
// use each other:
//
// error options statistics types | seal store multi_mount mbcache | groups |
// mballoc ialloc orphan | inode | dir xattr quota | volume | ops | mount path

mod error;
pub mod options;
pub mod statistics;
mod types;

mod mbcache;
mod multi_mount;
mod seal;
mod store;

mod groups;
mod ialloc;
mod mballoc;
mod orphan;

mod inode;

mod dir;
mod quota;
mod xattr;

mod volume;

mod ops;

mod mount;
pub mod path;

pub use error::{Error, ErrorText, Refusal, Result};
pub use mbcache::AttributeCacheStatistics;
pub use mount::offline::{CommitError, CommitOutcome, OfflineJournal};
pub use options::MountOptions;
pub use pext4_block::{Access, Device, FileDevice, OverlayDevice, Page, RamDevice};
pub use pext4_jbd2::{CommitStep, CommitTimes, JournalError, Statistics as JournalStatistics};
pub use pext4_ondisk::{BlockNumber, Corrupt, acl};
pub use types::{
    AccessTimes, Acls, AllocateMode, Attributes, CreateAttributes, DeviceNumber, DirectoryEntry,
    Entry, FileType, GetAttributes, InodeNumber, LogicalBlock, MappedRange, OwnerKind, QuotaLimits,
    RenameMode, SetAttributes, SetTime, SetXattrMode, StatFs, Time, Usage, Whiteout,
};
pub use volume::Volume;
