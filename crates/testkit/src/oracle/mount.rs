//! The kernel's ext4 on a loop device, if the machine permits it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::format::{Features, Format};
use super::{output, run, tool};
use crate::mounted::{MountedSubject, Remount};

/// A mounted image; dropping it unmounts.
#[derive(Debug)]
pub struct KernelMount {
    image: PathBuf,
    directory: TempDir,
    mounted: bool,
}

/// The access of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only; the kernel still replays the journal into the image.
    ReadOnly,
    /// Writable; commits happen only on request, so that a copy taken in between is consistent.
    ReadWrite,
}

impl Access {
    /// Options to try in turn: without a journal there is no commit interval.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::ReadOnly => &["loop,ro,noatime,nodev"],
            Self::ReadWrite => &["loop,rw,noatime,nodev,commit=300", "loop,rw,noatime,nodev"],
        }
    }
}

/// Whether this machine permits mounts; tried once.
fn allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| mounts(Features::Debian12))
}

/// Whether the kernel mounts a small image with these features.
fn mounts(features: Features) -> bool {
    let folder = crate::effort::scratch();
    let image = folder.path().join("probe");
    let format = Format::new(4 << 20, 1024, features);
    format.make(&image).is_ok() && KernelMount::new(&image, Access::ReadWrite).is_ok()
}

/// Whether the kernel was built to write images with these features: it may lack quotas. If not,
/// reports that the test leaves them out.
#[must_use]
pub fn kernel_writes(features: Features, test: &str) -> bool {
    let writes = features != Features::Quotas || !allowed() || mounts(features);
    if !writes {
        eprintln!("SKIPPED: {test}: this kernel does not write images with the feature quota");
    }
    writes
}

/// Mounts an image, or reports that the test is skipped because this machine does not permit
/// mounts. If the kernel refuses the image, that is an error.
pub fn kernel_mount(image: &Path, access: Access, test: &str) -> Result<Option<KernelMount>> {
    if !allowed() {
        eprintln!("SKIPPED: {test}: this machine does not let us mount through a loop device");
        return Ok(None);
    }
    KernelMount::new(image, access).map(Some)
}

impl KernelMount {
    fn new(image: &Path, access: Access) -> Result<Self> {
        let directory = crate::effort::scratch();
        let image = image.to_owned();
        mount(&image, directory.path(), access)?;
        Ok(Self {
            image,
            directory,
            mounted: true,
        })
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The mount as a subject that can remount itself.
    pub fn subject(&self) -> Result<MountedSubject> {
        let (image, directory) = (self.image.clone(), self.path().to_owned());
        let remount: Remount = Box::new(move || {
            unmount(&directory)?;
            mount(&image, &directory, Access::ReadWrite)
        });
        MountedSubject::new(self.path(), Some(remount))
            .map_err(|failure| anyhow::anyhow!("{failure}"))
    }

    /// Unmounts; returns the error, if any.
    pub fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        unmount(self.directory.path())
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = unmount(self.directory.path())
        {
            eprintln!("{error:#}");
        }
    }
}

fn mount(image: &Path, directory: &Path, access: Access) -> Result<()> {
    let mut last = Ok(());
    for options in access.options() {
        let mut command = tool("mount");
        command
            .args(["-t", "ext4", "-o", options])
            .arg(image)
            .arg(directory);
        last = run(&mut command).map(|_| ());
        if last.is_ok() {
            break;
        }
    }
    last.with_context(|| format!("the kernel refuses {}", image.display()))
}

/// Unmounts; retries for a while if the mount is busy.
fn unmount(directory: &Path) -> Result<()> {
    for _ in 0..50 {
        if output(tool("umount").arg(directory))?.status.success() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    run(tool("umount").arg("-l").arg(directory))
        .map(|_| ())
        .context("unmounting")
}
