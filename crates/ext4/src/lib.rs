//! ext4 in user space, for many cores.
//!
//! While a volume is mounted, memory is the truth, in structures made for many cores; bytes are
//! made once, at commit. [`Volume`] is a mounted file system: `Send + Sync`, every operation takes
//! `&self`. Its layers, from the ground up, are the modules of this crate in the order below; each
//! imports only from those before it.

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
pub use types::*;
pub use volume::Volume;
