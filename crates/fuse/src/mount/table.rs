//! Which mounts are ours.

use std::io;
use std::path::Path;

pub use pext4_block::mountinfo::{Mount, mounts};

use super::FILE_SYSTEM_TYPE;

/// Whether a server of ours is behind a mount.
#[must_use]
pub fn is_ours(mount: &Mount) -> bool {
    mount.file_system_type == FILE_SYSTEM_TYPE
}

/// Our mount that is on top of `directory`, a path without links.
///
/// # Errors
/// The table cannot be read.
pub(super) fn ours_on(directory: &Path) -> io::Result<Option<Mount>> {
    Ok(top_of(directory)?.filter(is_ours))
}

/// The mount that is on top of `directory`, a path without links.
///
/// # Errors
/// The table cannot be read.
pub(super) fn top_of(directory: &Path) -> io::Result<Option<Mount>> {
    let mut mounts = mounts()?.into_iter();
    Ok(mounts.rfind(|mount| mount.directory == directory))
}
