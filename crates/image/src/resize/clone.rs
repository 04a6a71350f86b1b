//! The clone of an image for a resize that no transaction takes.
//!
//! Until it is put in place its name is `.NAME.pext4-resize`.

use std::io;
use std::os::unix::fs::MetadataExt;

use pext4_block::{CloneError, Device, FileDevice, ImageClone, Phase, Progress};

use crate::error::{Error, Result};

/// A clone that will replace its image.
pub(super) struct ResizedClone {
    file: ImageClone,
    device: FileDevice,
}

impl ResizedClone {
    /// Copies an image, which is locked for writing, and makes the copy `length` bytes long. If the
    /// image is a part of a file, copies the whole file, which keeps its length.
    pub fn create(locked: &FileDevice, length: u64, progress: &Progress) -> Result<Self> {
        // It may have got another name since the resize was planned.
        check_clone(locked)?;
        let (kept, length) = match locked.range() {
            None => (locked.size().min(length), length),
            Some(_) => [locked.file().metadata()?.len(); 2].into(),
        };
        progress.enter(Phase::Cloning, 0, kept);
        let passed = |bytes| progress.count(0, bytes).map_err(io::Error::other);
        let file = ImageClone::new(locked, ".pext4-resize", kept, length, &passed);
        progress.check()?;
        let file = file.map_err(|error| match error {
            CloneError::Host { ref source, .. } => {
                let text = format!(
                    "making a clone beside the image: {error}; --in-place works on the image itself"
                );
                io::Error::new(source.kind(), text).into()
            }
            error => from_clone(error),
        })?;
        let device = file.open_device(locked)?;
        Ok(Self { file, device })
    }

    /// The copy.
    pub fn device(&self) -> &FileDevice {
        &self.device
    }

    /// Replaces the image, of which this is a clone, durably, unless a stop was requested.
    pub fn put_in_place(self, progress: &Progress) -> Result<()> {
        self.file.sync().map_err(from_clone)?;
        progress.check()?;
        self.file.put_in_place().map_err(from_clone)
    }
}

/// Refuses a clone of a file that must not be replaced by one: a plan must not promise what running
/// it refuses.
pub(super) fn check_clone(device: &FileDevice) -> Result<()> {
    let names = device.file().metadata()?.nlink();
    if names > 1 {
        return Err(Error::Impossible(format!(
            "the file has {names} names (hard links), and a clone would replace it under one of \
             them only: --in-place works on the file itself"
        )));
    }
    // Who only reads makes a plan for somebody who opens the file again.
    if device.is_read_only() || device.locks_whole_file() {
        return Ok(());
    }
    let problem = CloneError::PartlyLocked(device.path().to_owned());
    Err(Error::Impossible(problem.to_string()))
}

fn from_clone(error: CloneError) -> Error {
    match error {
        CloneError::Host { ref source, .. } => {
            io::Error::new(source.kind(), error.to_string()).into()
        }
        CloneError::NotDurable(cause) => Error::AfterCommit(Box::new(cause.into())),
        error => Error::Impossible(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use pext4_block::CloneError;

    use super::{Error, from_clone};

    /// Whoever repeats a relative resize after another error than this one resizes twice.
    #[test]
    fn a_clone_whose_new_name_is_not_durable_is_a_resize_that_is_made() {
        let error = from_clone(CloneError::NotDurable(io::ErrorKind::StorageFull.into()));
        assert!(matches!(error, Error::AfterCommit(_)), "{error}");
        let text = error.to_string();
        assert!(
            text.starts_with("the resize is made, so do not repeat it"),
            "{text}"
        );
    }
}
