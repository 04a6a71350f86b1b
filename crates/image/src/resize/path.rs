//! Resizing a file or block device of the system: which way is taken, and how long the file is
//! before and after.
//!
//! A file grows before anything is written to it and is cut after everything is durable, so at no
//! moment it is shorter than the file system in it says.

use std::fs;
use std::sync::Arc;

use pext4_block::{Device, FileDevice};

use super::Summary;
use super::clone::Replacement;
use super::make::Target;
use super::plan::Plan;
use super::progress::Progress;
use super::run::Way;
use crate::error::{Error, Result};

/// Choices of whoever resizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Work on the image itself also where that cannot be undone.
    pub in_place: bool,
}

/// A resize that is possible, not begun.
pub struct Resize {
    device: FileDevice,
    is_file: bool,
    plan: Plan,
    way: Way,
}

impl Resize {
    /// Works out how to resize an image that was opened for writing. Its journal is replayed for
    /// that; nothing else is written.
    ///
    /// # Errors
    /// As [`Plan::make`]; `Impossible` where only [`Way::InPlace`] is left and not chosen, or a
    /// block device is too small.
    pub fn prepare(device: FileDevice, target: Target, options: Options) -> Result<Self> {
        let is_file = fs::metadata(device.path())?.is_file();
        let plan = Plan::make(&device, target)?;
        let bytes = plan.summary().bytes();
        if !is_file && bytes > device.size() {
            return Err(Error::Impossible(format!(
                "the device has only {} bytes, the file system would have {bytes}",
                device.size()
            )));
        }
        let way = choose(&plan, is_file, options)?;
        Ok(Self {
            device,
            is_file,
            plan,
            way,
        })
    }

    /// What will be done.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.plan.summary()
    }

    /// In which way it will be done.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether the file system has the wanted size already.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.plan.is_idle()
    }

    /// How far it is, to be looked at while it runs.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.plan.progress)
    }

    /// Does it. The answer is how many bytes the file or device has now.
    ///
    /// # Errors
    /// `Io`. Unless the way is [`Way::InPlace`], the image then holds the old file system or, if
    /// only the last steps failed, the new one.
    pub fn run(mut self) -> Result<u64> {
        let before = self.device.size();
        if self.is_idle() {
            return Ok(before);
        }
        let after = if self.is_file {
            self.length_after()
        } else {
            before
        };
        if self.way == Way::Clone {
            let kept = before.min(after);
            let clone = Replacement::of(self.device.path(), kept, after, &self.plan.progress)?;
            self.plan
                .run(&self.device, clone.device(), Way::Clone, before)?;
            clone.put_in_place()?;
            return Ok(after);
        }
        if after > before {
            self.device.set_length(after)?;
        }
        self.plan
            .run(&self.device, &self.device, self.way, before)?;
        if after < before {
            self.device.set_length(after)?;
            self.device.flush()?;
        }
        Ok(after)
    }

    /// A file ends where its file system does, unless something else lies behind that.
    fn length_after(&self) -> u64 {
        let length = self.device.size();
        let summary = self.plan.summary();
        let block_size = u64::from(summary.block_size);
        let ended_with_it = length < (summary.old_blocks + 1) * block_size;
        if summary.bytes() >= length || ended_with_it {
            summary.bytes()
        } else {
            length
        }
    }
}

fn choose(plan: &Plan, is_file: bool, options: Options) -> Result<Way> {
    if plan.is_idle() || plan.fits_journal() {
        return Ok(Way::Journal);
    }
    match (options.in_place, is_file) {
        (true, _) => Ok(Way::InPlace),
        (false, true) => Ok(Way::Clone),
        (false, false) => Err(Error::Impossible(
            "on a block device this resize has no way back once it has begun: --in-place does it all \
             the same, after a backup"
                .to_owned(),
        )),
    }
}
