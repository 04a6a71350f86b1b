//! The on-disk structures of ext4 and jbd2, one file for each, and the texts that the tools share:
//! of access control lists ([`acl::text`]), of attributes in archives ([`xattr::pax`]), of owners
//! ([`owner`]), and of what an image or an archive names ([`shown`]).
//!
//! Raw structures keep the kernel's field names and check their sizes at compile time; decoded ones
//! have Rust names. Where a structure may be invalid, the one function that decodes it returns
//! `Result<T, Corrupt>`. This crate has no I/O and no locks, so that the file system, the journal,
//! the image tools and the checker can share it, and all of it can be fuzzed.

#![forbid(unsafe_code)]

pub mod acl;
pub mod bitmap;
mod bytes;
pub mod casefold;
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
pub mod owner;
pub mod quota;
pub mod shown;
pub mod superblock;
pub mod time;
pub mod xattr;

pub use corrupt::Corrupt;
pub use number::{BlockNumber, GroupNumber, InodeNumber, LogicalBlock, Tid};
