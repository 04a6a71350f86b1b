//! Resizing a file or block device of the system: which way is taken, and how long the file is
//! before and after.
//!
//! A file grows before anything is written to it and is cut after everything is durable, so at no
//! moment it is shorter than the file system in it says.

use std::fs;
use std::sync::Arc;

use pext4_block::{Device, FileDevice, OverlayDevice};
use pext4_ondisk::feature::Incompat;

use super::Summary;
use super::clone::ImageClone;
use super::image::read_superblock;
use super::make::Target;
use super::plan::Plan;
use super::progress::Progress;
use super::run::Way;
use super::trailing;
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

/// What a resize would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// In numbers.
    pub summary: Summary,
    /// In which way.
    pub way: Way,
    /// Whether the file system has the wanted size already.
    pub is_idle: bool,
}

impl Preview {
    fn of(plan: &Plan, way: Way) -> Self {
        Self {
            summary: plan.summary(),
            way,
            is_idle: plan.is_idle(),
        }
    }
}

impl Resize {
    /// Works out what resizing an image would do. Nothing is written: a journal is replayed in
    /// memory.
    ///
    /// # Errors
    /// As [`Resize::prepare`].
    pub fn preview(device: FileDevice, target: Target, options: Options) -> Result<Preview> {
        preview(&Arc::new(device), target, options)
    }

    /// Works out how to resize an image that was opened for writing. Its journal is replayed for
    /// that, unless the resize is found impossible; nothing else is written.
    ///
    /// # Errors
    /// As [`Plan::make`]; `Impossible` where only [`Way::InPlace`] is left and not chosen, a block
    /// device is too small, or a file has something behind its file system that would be overwritten.
    pub fn prepare(device: FileDevice, target: Target, options: Options) -> Result<Self> {
        let device = Arc::new(device);
        if must_replay(&*device)? {
            preview(&device, target, options)?;
        }
        let device = Arc::into_inner(device).expect("the overlay is gone");
        let is_file = fs::metadata(device.path())?.is_file();
        let (plan, way) = plan(&device, is_file, target, options)?;
        check_trailing(&device, is_file, &plan)?;
        Ok(Self {
            device,
            is_file,
            plan,
            way,
        })
    }

    /// What will be done.
    #[must_use]
    pub fn planned(&self) -> Preview {
        Preview::of(&self.plan, self.way)
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
        if self.plan.is_idle() {
            return Ok(before);
        }
        let after = if self.is_file {
            self.length_after()?
        } else {
            before
        };
        if self.way == Way::Clone {
            let kept = before.min(after);
            let clone = ImageClone::create(self.device.path(), kept, after, &self.plan.progress)?;
            let progress = Arc::clone(&self.plan.progress);
            self.plan
                .run(&self.device, clone.device(), Way::Clone, before)?;
            clone.put_in_place(&progress)?;
            return Ok(after);
        }
        if after > before {
            self.device.set_length(after)?;
        }
        let done = self.plan.run(&self.device, &self.device, self.way, before);
        if done.is_err() && self.way == Way::Journal && self.is_unchanged() {
            // What cannot be cut off stays a hole behind the file system.
            let _ = self.device.set_length(before);
        }
        done?;
        if after < before {
            self.device.set_length(after)?;
            self.device.flush()?;
        }
        Ok(after)
    }

    /// Whether nothing of the new file system has come into force, nor will by a replay.
    fn is_unchanged(&self) -> bool {
        let blocks = read_superblock(&self.device).map(|superblock| superblock.blocks_count);
        let waits = must_replay(&self.device).unwrap_or(true);
        !waits && blocks.is_ok_and(|blocks| blocks == self.plan.summary().old_blocks)
    }

    /// A file ends where its file system does, unless something else lies behind that.
    fn length_after(&self) -> Result<u64> {
        let length = self.device.size();
        let summary = self.plan.summary();
        if summary.bytes() >= length {
            return Ok(summary.bytes());
        }
        let old_end = old_bytes(&self.plan);
        // Less than a block is what is left over where a file is no multiple of a block, unless someone
        // has put something there: a signature, a footer.
        let ended_with_it = length < old_end + u64::from(summary.block_size)
            && trailing::first_byte(&self.device, old_end, length)?.is_none();
        Ok(if ended_with_it {
            summary.bytes()
        } else {
            length
        })
    }
}

fn must_replay(device: &dyn Device) -> Result<bool> {
    let features = read_superblock(device)?.features;
    Ok(features.has_incompat(Incompat::RECOVER))
}

fn preview(device: &Arc<FileDevice>, target: Target, options: Options) -> Result<Preview> {
    let is_file = fs::metadata(device.path())?.is_file();
    let overlay = OverlayDevice::new(Arc::clone(device) as Arc<dyn Device>);
    let (plan, way) = plan(&overlay, is_file, target, options)?;
    check_trailing(device, is_file, &plan)?;
    Ok(Preview::of(&plan, way))
}

/// Refuses to grow over something else in the file. What lies on a device behind its file system is room.
fn check_trailing(device: &FileDevice, is_file: bool, plan: &Plan) -> Result<()> {
    let (old, new) = (old_bytes(plan), plan.summary().bytes());
    if is_file {
        trailing::check_growth(device, old, new)?;
    }
    Ok(())
}

/// Where the file system ends as yet.
fn old_bytes(plan: &Plan) -> u64 {
    let summary = plan.summary();
    summary.old_blocks * u64::from(summary.block_size)
}

fn plan(
    device: &dyn Device,
    is_file: bool,
    target: Target,
    options: Options,
) -> Result<(Plan, Way)> {
    let plan = Plan::make(device, target)?;
    let bytes = plan.summary().bytes();
    if !is_file && bytes > device.size() {
        return Err(Error::Impossible(format!(
            "the device has only {} bytes, the file system would have {bytes}",
            device.size()
        )));
    }
    let way = choose(&plan, is_file, options)?;
    Ok((plan, way))
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
