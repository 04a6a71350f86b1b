//! The bytes of ext4 and jbd2, and nothing else: one file an on-disk object.
//!
//! Raw structures keep the kernel's field names and state their sizes at compile time; decoded
//! ones have Rust names; the border between them is one function that answers
//! `Result<T, Corrupt>`. There is no I/O here and there are no locks, so that the file system, the
//! journal, the image tools and the checker can share it, and so that all of it can be fuzzed.

#![forbid(unsafe_code)]

pub mod acl;
pub mod bitmap;
mod bytes;
pub mod checksum;
pub mod corrupt;
pub mod directory;
pub mod dirhash;
pub mod extent;
pub mod feature;
pub mod geometry;
pub mod group_descriptor;
pub mod htree;
pub mod indirect;
pub mod inode;
pub mod journal;
pub mod mmp;
pub mod number;
pub mod orphan_file;
pub mod quota;
pub mod shown;
pub mod superblock;
pub mod time;
pub mod xattr;

pub use corrupt::Corrupt;
pub use number::{BlockNumber, GroupNumber, InodeNumber, LogicalBlock, Tid};
