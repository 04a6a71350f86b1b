//! The commands, one file each.

pub mod build;
pub mod cat;
pub mod check;
pub mod info;
pub mod lab;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod record;
pub mod resize;
pub mod stat;
pub mod tree;
pub mod umount;
