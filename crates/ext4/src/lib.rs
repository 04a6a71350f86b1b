//! ext4 in user space, for many cores.
//!
//! While a volume is mounted, memory is the truth, in structures made for many cores; bytes are
//! made once, at commit. [`Volume`] is a mounted file system: `Send + Sync`, every operation takes
//! `&self`. It works on inode numbers, as a server wants it; [`Volume::paths`] is the same on paths,
//! in the manner of `std::fs`:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pext4_fs::{MountOptions, Volume};
//!
//! // An image of somebody else, read only: nothing is written to it.
//! let options = MountOptions { read_only: true, ..MountOptions::default() };
//! let volume = Volume::open_image("rootfs.img", options)?;
//! for entry in volume.paths().read_dir("/etc")? {
//!     println!("{}", String::from_utf8_lossy(&entry.name));
//! }
//! let release = volume.paths().read("/etc/os-release")?;
//! # Ok(())
//! # }
//! ```
//!
//! The layers, from the ground up, are the modules of this crate in the order below; each imports
//! only from those before it (`tests/layers.rs`), but for the first two groups, whose modules may
//! use each other.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod statistics;
pub mod types;

mod mbcache;
mod seal;
mod store;

mod groups;
mod ialloc;
mod mballoc;
mod orphan;

mod inode;

mod dir;
mod xattr;

pub mod volume;

mod ops;

mod mount;
pub mod path;

pub use error::{Error, Refusal, Result};
pub use mbcache::AttributeCacheStatistics;
pub use mount::offline::{CommitError, CommitOutcome, OfflineJournal};
pub use options::MountOptions;
pub use pext4_block::{Access, Device, FileDevice, RamDevice};
pub use types::*;
pub use volume::Volume;
