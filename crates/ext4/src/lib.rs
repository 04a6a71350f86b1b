//! ext4 in user space, for many cores.

#![forbid(unsafe_code)]

pub mod error;
pub mod options;
pub mod types;
pub mod volume;

pub use error::{Error, Refusal, Result};
pub use options::MountOptions;
pub use types::*;
pub use volume::Volume;
