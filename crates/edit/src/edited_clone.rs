//! The clone of an image for an edit that no transaction takes.
//!
//! Until it is put in place its name is `.NAME.pext4-edit`.

use std::io;
use std::sync::Arc;

use pext4_block::{CloneError, CloneMethod, Device, FileDevice, ImageClone, Progress};
use pext4_fs::CommitOutcome;

use crate::error::{EditError, HostContext, Result};

/// A clone of an image, which is removed on drop unless it was put in place.
pub(crate) struct EditedClone {
    file: ImageClone,
    device: Arc<FileDevice>,
}

impl EditedClone {
    /// Copies an image, which is a file and locked for writing.
    ///
    /// # Errors
    ///
    /// An error of the host; [`EditError::Interrupted`]. The copy is removed then.
    pub(crate) fn new(image: &FileDevice, progress: &Progress) -> Result<Self> {
        let metadata = image.file().metadata();
        let metadata = metadata.with_host_file(image.path(), "look at it")?;
        let passed = |_| progress.check().map_err(io::Error::other);
        let length = metadata.len();
        let file = ImageClone::new(image, ".pext4-edit", length, length, &passed);
        progress.check()?;
        let file = file.map_err(from_clone)?;
        let device = file
            .open_device(image)
            .with_host_file(file.path(), "open it")?;
        Ok(Self {
            file,
            device: Arc::new(device),
        })
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::<FileDevice>::clone(&self.device)
    }

    /// Whether this device and inode number are those of the copy.
    pub(crate) fn is_stored_in(&self, device: u64, inode: u64) -> bool {
        self.device.is_stored_in(device, inode)
    }

    pub(crate) fn method(&self) -> CloneMethod {
        self.file.method()
    }

    /// Puts the clone in the place of the image, durably.
    ///
    /// # Errors
    ///
    /// Errors of the host, or [`EditError::Interrupted`]. The image is the old one then, unless
    /// only the last flush failed: then it is an [`EditError::Commit`] with an unknown outcome.
    pub(crate) fn put_in_place(self, progress: &Progress) -> Result<()> {
        self.file.sync().map_err(from_clone)?;
        progress.check()?;
        let path = self.file.image().to_owned();
        self.file.put_in_place().map_err(|error| match error {
            CloneError::NotDurable(ref cause) => EditError::Commit {
                path,
                outcome: CommitOutcome::Unknown,
                source: io::Error::new(cause.kind(), error.to_string()).into(),
            },
            error => from_clone(error),
        })
    }
}

/// An error before the image is replaced.
pub(crate) fn from_clone(error: CloneError) -> EditError {
    match error {
        CloneError::Host {
            path,
            action,
            source,
        } => EditError::Host {
            path,
            action,
            source,
        },
        error => EditError::Refused(error.to_string()),
    }
}
