//! Opens images, with advice in the error if one is in use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};
use clap::Args;
use pext4_block::{Access, FileDevice, holders, loops};
use pext4_edit::{EditError, mounted_by_kernel};
use pext4_fuse::mount::{self, Mount, Source};

use crate::output::print_error;
use crate::{partitions, size};

/// An image on the command line.
#[derive(Args, Clone, Debug)]
pub struct ImageArgument {
    /// The image or block device
    #[arg(id = "image", value_name = "IMAGE")]
    pub file: PathBuf,
    /// Where the file system begins in it, in bytes: the start of a partition of a disk image
    #[arg(
        long,
        value_name = "BYTES",
        value_parser = size::parse_offset,
        default_value = "0",
        hide_default_value = true
    )]
    pub offset: u64,
}

impl ImageArgument {
    /// Opens the image and takes the lock of its file.
    ///
    /// # Errors
    ///
    /// The image cannot be opened, or stays in use; it ends before the offset, or is a disk with
    /// partitions.
    pub fn open(&self, access: Access) -> Result<FileDevice> {
        let device = match (self.offset, access) {
            (0, _) => open(&self.file, access)?,
            // Others may use other parts of the file.
            (offset, Access::ReadOnly) => open_range(&self.file, offset, None, access)?,
            // The file may be replaced by a changed copy.
            (offset, Access::ReadWrite) => open(&self.file, access)?.into_range(offset, None)?,
        };
        partitions::refuse_disk(&device, &self.file)?;
        Ok(device)
    }

    /// Opens the image for reading. Unless the caller is quiet, says so if the kernel writes to it
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// As [`ImageArgument::open`].
    pub fn open_to_read(&self, is_quiet: bool) -> Result<FileDevice> {
        let device = self.open(Access::ReadOnly)?;
        if !is_quiet {
            tell_kernel_mount(&self.file, self.offset);
        }
        Ok(device)
    }
}

/// Says so if the kernel writes to what begins at a byte of an image: what is read may lack
/// something.
pub fn tell_kernel_mount(image: &Path, offset: u64) {
    if let Some(directory) = loops::written_by_kernel(image, offset) {
        let text = mounted_by_kernel(&directory);
        print_error(format_args!("pext4: {}: {text}", image.display()));
    }
}

/// Opens an image or block device and takes its lock.
///
/// # Errors
///
/// The image cannot be opened, or stays in use.
pub fn open(image: &Path, access: Access) -> Result<FileDevice> {
    let wait = wait_unless(mount_of(image, 0).is_some());
    FileDevice::open(image, access, wait).map_err(|error| add_user(image, error))
}

/// How long to wait for an image in use: a mount that is still in the list of mounts is not
/// closing.
fn wait_unless(is_mounted: bool) -> Duration {
    match is_mounted {
        true => Duration::ZERO,
        false => FileDevice::USUAL_WAIT,
    }
}

/// Opens a part of an image or block device, and takes the lock of that part, or of all if it
/// begins with the first byte.
///
/// # Errors
///
/// As [`open`]; the image ends before the part does.
pub fn open_range(
    image: &Path,
    offset: u64,
    length: Option<u64>,
    access: Access,
) -> Result<FileDevice> {
    if offset == 0 {
        return Ok(open(image, access)?.into_range(0, length)?);
    }
    let is_it = |mount: Mount| is_at(&mount, image, offset);
    let wait = wait_unless(mount_of(image, offset).is_some_and(is_it));
    FileDevice::open_range(image, offset, length, access, wait)
        .map_err(|error| add_user_at(image, offset, error))
}

/// Passes on the result of opening an image, which begins at a byte of a file, by `pext4_edit`. If
/// the image is in use, adds its user to the error.
///
/// # Errors
///
/// The error of `answer`.
pub fn opened<T>(image: &Path, offset: u64, answer: pext4_edit::Result<T>) -> Result<T> {
    answer.map_err(|error| match error {
        EditError::OpenImage(error) => add_user_at(image, offset, error),
        error => error.into(),
    })
}

/// Adds the user of an image to the error that it is in use, if the user can be found.
pub fn add_user(image: &Path, error: io::Error) -> Error {
    add_user_at(image, 0, error)
}

/// As [`add_user`], for a file system that begins at this byte of the image.
fn add_user_at(image: &Path, offset: u64, error: io::Error) -> Error {
    if error.kind() != io::ErrorKind::ResourceBusy {
        return error.into();
    }
    let mount = mount_of(image, offset).map(|mount| ending(image, &mount));
    let user = mount.or_else(|| holders::holders(image).into_iter().find_map(holder));
    match user {
        Some(user) => Error::msg(format!("{error}; {user}")),
        None => error.into(),
    }
}

fn ending(image: &Path, mount: &Mount) -> String {
    let directory = mount.directory.display();
    let file = Source::of(mount).file;
    let is_it = image.canonicalize().is_ok_and(|image| image == file);
    let it = if is_it {
        "it".to_owned()
    } else {
        format!("{}, which has the same bytes,", file.display())
    };
    format!("{it} is mounted on {directory}, `pext4 umount {directory}` ends that")
}

/// The mount, by a server of ours, of what begins at a byte of an image, by whatever name; or else
/// of another part of the image.
fn mount_of(image: &Path, offset: u64) -> Option<Mount> {
    let image = image.canonicalize().ok()?;
    let mut mounts = mount::mounts().ok()?;
    mounts.retain(mount::is_ours);
    let is_it = |mount: &&Mount| is_at(mount, &image, offset);
    let is_part = |mount: &&Mount| loops::are_same(&Source::of(mount).file, &image);
    let mount = mounts.iter().rfind(is_it);
    mount.or_else(|| mounts.iter().rfind(is_part)).cloned()
}

fn is_at(mount: &Mount, image: &Path, offset: u64) -> bool {
    let source = Source::of(mount);
    loops::are_same_place((&source.file, source.offset), (image, offset))
}

/// Describes a process that has an image open and serves no visible mount.
fn holder(process: u32) -> Option<String> {
    let words = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let mut words = words.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    let (program, command) = (words.next()?, words.next().unwrap_or_default());
    let program = program.rsplit('/').next()?;
    Some(if (program, command.as_ref()) == ("pext4", "mount") {
        format!(
            "process {process} serves a mount of it that is in no directory any more, or in another \
             namespace: one that was detached (`umount -l`) lasts until the last file in it is closed"
        )
    } else {
        format!("it is process {process}, `{program} {command}`")
    })
}
