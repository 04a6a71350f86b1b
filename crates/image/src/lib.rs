//! Making and examining ext4 images without mounting them: offline, exclusive.
//!
//! This crate does not use the file system. It shares with it the codecs of `pext4-ondisk` and the
//! replay of the journal (`pext4_jbd2::recovery`) only, so agreement between the two is evidence.

#![forbid(unsafe_code)]

pub mod build;
pub mod check;
mod error;
pub mod mkfs;
pub mod resize;

pub use error::{Error, Result};
