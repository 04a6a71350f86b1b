//! Creates, checks and resizes ext4 images offline. The caller has exclusive access to the image.
//!
//! This crate does not use the file system implementation (`pext4-fs`). It shares only the codecs
//! of `pext4-ondisk`, and the log's area and its replay (`pext4_jbd2`), with it, so agreement
//! between the two is evidence.

#![forbid(unsafe_code)]

pub mod build;
pub mod check;
mod error;
pub mod mkfs;
pub mod resize;

pub use error::{Error, Result};
