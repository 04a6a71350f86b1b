//! Where a copy goes: its path, whether it is vacant, and the rename that puts the copy there.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::GetOptions;
use crate::change::last_name;
use crate::error::{HostContext, Result};

/// The path that the copy will have. A destination that ends in a slash may be missing if a
/// tree is copied, whose top is the directory there.
pub(super) fn target(path: &[u8], destination: &Path, is_tree: bool) -> Result<PathBuf> {
    let name = OsStr::from_bytes(last_name(path));
    let inside = !name.is_empty() && name != "." && name != "..";
    let is_directory = destination.is_dir();
    if !is_directory && destination.as_os_str().as_bytes().ends_with(b"/") && inside {
        // Without the slash, which would have a link followed.
        let new = destination.components().as_path();
        if is_tree && new.file_name().is_some() && is_missing(new) {
            return Ok(new.to_owned());
        }
        return Err(Errno::NOTDIR).with_host_file(destination, "copy into it");
    }
    if is_directory && inside {
        return Ok(destination.join(name));
    }
    if destination.file_name().is_some() {
        return Ok(destination.to_owned());
    }
    fs::canonicalize(destination).with_host_file(destination, "find it")
}

fn is_missing(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

pub(super) fn check_vacant(target: &Path, options: &GetOptions) -> Result<()> {
    let problem = match fs::symlink_metadata(target) {
        Err(_) => return Ok(()),
        Ok(there) if there.is_dir() => {
            let mut names = fs::read_dir(target).with_host_file(target, "list it")?;
            if names.next().is_none() {
                return Ok(());
            }
            "it is a directory with something in it"
        }
        // A device or a pipe, or a link to one, is not to be replaced by a file.
        Ok(_) if fs::metadata(target).is_ok_and(|there| !there.is_file() && !there.is_dir()) => {
            "it is no regular file"
        }
        Ok(_) if options.force => return Ok(()),
        Ok(_) => "it is there already; --force replaces it",
    };
    Err(io::Error::other(problem)).with_host_file(target, "copy to it")
}

pub(super) fn rename_into_place(
    directory: &OwnedFd,
    temporary: &OsStr,
    name: &OsStr,
    target: &Path,
    options: &GetOptions,
) -> Result<()> {
    let is_empty_directory = target.is_dir();
    let renamed = if options.force || is_empty_directory {
        rustix::fs::renameat(directory, temporary, directory, name)
    } else {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(directory, temporary, directory, name, flags) {
            // The file system does not support the flag. `check_vacant` has checked the target.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::renameat(directory, temporary, directory, name)
            }
            done => done,
        }
    };
    renamed.with_host_file(target, "put the copy here")
}
