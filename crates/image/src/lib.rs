//! Making and examining ext4 images without mounting them: offline, exclusive.
//!
//! This crate stands beside the file system, not on it: it shares the codecs of `pext4-ondisk`
//! only, so that where the two agree, that is evidence.

#![forbid(unsafe_code)]

pub mod build;
pub mod check;
mod error;
pub mod mkfs;
pub mod resize;

pub use error::{Error, Result};
