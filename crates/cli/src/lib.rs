//! ext4 in user space, for many cores, as a library: make images, edit them, read them, check them,
//! and work on their file systems from many threads, without root and without a kernel driver.
//!
//! This crate has no code of its own: it shows the crates of pext4 under one name. The package has
//! the command `pext4` too, which is built by default; with `default-features = false` it is the
//! library alone, and needs nothing of the command's.
//!
//! - [`Volume`], [`MountOptions`], [`path`]: a file system that is in use. It is `Send + Sync`, and
//!   every operation takes `&self`.
//! - [`build::Builder`] makes an image from directories, archives and container images, the same
//!   bytes each time.
//! - [`edit::EditSession`] changes an image, all or nothing; [`edit::Reader`] looks into one and
//!   copies out of it, without writing to it.
//! - [`mkfs`] makes an empty image, [`check`] says what is wrong with one, [`resize`] changes its
//!   size.
//! - [`Progress`]: how far a build, an edit, a copy or a resize is, and what stops it.
//! - [`device`]: what images are on. That is a file, a block device, memory, or your own.
//! - `fuse`, with the feature of that name, mounts a volume on a directory.
//!
//! # Build an image, edit it, read it, check it
//!
//! ```
//! use std::sync::Arc;
//!
//! use pext4::build::{Builder, Source};
//! use pext4::check;
//! use pext4::device::{Access, FileDevice};
//! use pext4::edit::{EditOptions, EditSession, Reader, change};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let (tree, image) = (folder.path().join("root"), folder.path().join("root.img"));
//! std::fs::create_dir_all(tree.join("etc"))?;
//! std::fs::write(tree.join("etc/motd"), "welcome\n")?;
//! Builder::new().source(Source::Directory(tree)).owner(0, 0).build(&image)?;
//!
//! let mut session = EditSession::open(&image, &EditOptions::default())?;
//! let hostname = change::WriteFile::new("/etc/hostname", "appliance\n");
//! session.apply(&hostname.into())?;
//! session.prepare()?.commit()?; // until here the image is as it was
//!
//! let reader = Reader::open(&image)?;
//! assert_eq!(reader.volume().paths().read("/etc/hostname")?, b"appliance\n");
//! reader.walk("/", &mut |file| {
//!     println!("{} {}", file.attributes.size, String::from_utf8_lossy(&file.path));
//!     Ok(())
//! })?;
//!
//! let device = FileDevice::open(&image, Access::ReadOnly, FileDevice::USUAL_WAIT)?;
//! let report = check::check(Arc::new(device), &check::Options::default())?;
//! for finding in &report.findings {
//!     println!("{} at {}: {}", finding.kind.name(), finding.place, finding.text);
//! }
//! assert!(report.is_clean());
//! # Ok(())
//! # }
//! ```
//!
//! # Work on a file system from many threads
//!
//! ```
//! use std::sync::Arc;
//!
//! use pext4::device::RamDevice;
//! use pext4::{MountOptions, Volume, mkfs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(RamDevice::new(64 << 20));
//! mkfs::mkfs(&*device, &mkfs::Options::default())?;
//!
//! let volume = Volume::open(device, MountOptions::default())?;
//! std::thread::scope(|scope| {
//!     for worker in 0..4 {
//!         let paths = volume.paths();
//!         scope.spawn(move || paths.write(format!("/worker-{worker}"), "done\n"));
//!     }
//! });
//! assert_eq!(volume.paths().read("/worker-3")?, b"done\n");
//! volume.close()?; // makes everything durable
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[doc(inline)]
pub use pext4_block::{Amount, Phase, Progress, ProgressState};
#[doc(inline)]
pub use pext4_edit as edit;
#[doc(inline)]
pub use pext4_fs::{
    AccessTimes, Acls, AllocateMode, AttributeCacheStatistics, Attributes, BlockNumber,
    CommitError, CommitOutcome, CommitStep, CommitTimes, Corrupt, CreateAttributes, DeviceNumber,
    DirectoryEntry, Entry, Error, ErrorText, FileType, GetAttributes, InodeNumber, JournalError,
    JournalStatistics, LogicalBlock, MappedRange, MountOptions, OfflineJournal, OwnerKind,
    QuotaLimits, Refusal, RenameMode, Result, SetAttributes, SetTime, SetXattrMode, StatFs, Time,
    Usage, Volume, Whiteout, acl, options, path, statistics,
};
#[cfg(feature = "fuse")]
#[doc(inline)]
pub use pext4_fuse as fuse;
#[doc(inline)]
pub use pext4_image::{Error as ImageError, build, check, mkfs, resize};

pub mod device {
    //! Devices: what a file system is on.
    //!
    //! [`FileDevice`] is a file or a block device, [`RamDevice`] memory. The others are stacked on
    //! a device and change one thing. Any implementation of [`Device`] will do.

    #[doc(inline)]
    pub use pext4_block::{
        Access, CountingDevice, Device, Event, FailStopDevice, FaultDevice, FencedDevice,
        FileDevice, Latency, OverlayDevice, Page, RamDevice, RangeEnd, RecordDevice, SlowDevice,
        fault, partition_table,
    };
}
