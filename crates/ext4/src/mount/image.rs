//! Mounting an image or a block device of the host by its path.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, FileDevice};

use crate::error::Result;
use crate::options::MountOptions;
use crate::volume::Volume;

impl Volume {
    /// Mounts the image or block device at `path` of the host, after replaying its journal where
    /// that is due. The file is locked meanwhile: exclusively, or with other readers where
    /// `options` say `read_only`. An image in use is not waited for; who wants to wait, or has the
    /// file system in a part of the file, opens a [`FileDevice`] and gives it to [`Volume::open`].
    ///
    /// # Errors
    ///
    /// `Io` names the file, with the kind `ResourceBusy` if it is in use; the rest as
    /// [`Volume::open`].
    pub fn open_image(path: impl AsRef<Path>, options: MountOptions) -> Result<Self> {
        let access = match options.read_only {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let device = FileDevice::open(path.as_ref(), access, Duration::ZERO)?;
        Self::open(Arc::new(device), options)
    }
}
