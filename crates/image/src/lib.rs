//! Creates, checks and resizes ext4 images offline. The caller has exclusive access to the image.
//!
//! [`mkfs`] makes an empty file system, [`build`] one from directories, archives and container
//! images; [`check`] tells what is wrong with an image, and [`resize`] changes its size:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use pext4_block::FileDevice;
//! use pext4_image::{check, mkfs};
//!
//! let device = Arc::new(FileDevice::create_new("disk.img", 10 << 30)?);
//! mkfs::mkfs(&*device, &mkfs::Options::default())?;
//!
//! let report = check::check(device, &check::Options::default())?;
//! for finding in &report.findings {
//!     println!("{} at {}: {}", finding.kind.name(), finding.place, finding.text);
//! }
//! assert!(report.is_clean() && report.is_complete);
//! # Ok(())
//! # }
//! ```
//!
//! This crate does not use the file system implementation (`pext4-fs`). It shares only the codecs
//! of `pext4-ondisk`, and the log's area and its replay (`pext4_jbd2`), with it, so agreement
//! between the two is evidence.

#![forbid(unsafe_code)]

pub mod build;
pub mod check;
mod error;
mod holes;
pub mod mkfs;
pub mod resize;
mod vacant;
pub mod words;

pub use error::{Error, Result};
pub use pext4_block::{Amount, Phase, Progress, ProgressState};
pub use vacant::is_vacant;

/// The most threads of a build or a pass of the checker: more only cost memory.
const MAX_THREADS: usize = 1024;
