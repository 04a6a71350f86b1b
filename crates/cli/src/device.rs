//! Opening an image, and saying what may help where that fails.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use pext4_block::{Access, FileDevice};
use pext4_fuse::mount;

/// How long to wait for a mount that is just closing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens an image or block device and takes its lock.
///
/// # Errors
/// It cannot be opened, or stays in use.
pub fn open(image: &Path, access: Access) -> Result<FileDevice> {
    FileDevice::open(image, access, PATIENCE).map_err(|error| {
        let help = help(image, access, error.kind());
        match help {
            Some(help) => Error::msg(format!("{error}; {help}")),
            None => error.into(),
        }
    })
}

fn help(image: &Path, access: Access, kind: io::ErrorKind) -> Option<String> {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            if access == Access::ReadWrite =>
        {
            Some("`-o ro` mounts it read-only".to_owned())
        }
        io::ErrorKind::ResourceBusy => mounted_on(image).map(|directory| {
            let directory = directory.display();
            format!("it is mounted on {directory}, `pext4 umount {directory}` ends that")
        }),
        _ => None,
    }
}

/// The directory on which a server of ours has mounted an image.
fn mounted_on(image: &Path) -> Option<PathBuf> {
    let image = image.canonicalize().ok()?;
    let mounts = mount::mounts().ok()?;
    let mount = mounts
        .into_iter()
        .rfind(|mount| mount.is_ours() && mount.source == image);
    mount.map(|mount| mount.directory)
}
