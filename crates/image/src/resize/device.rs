//! Resizes an image file, a partition of one, or a block device: chooses the way, and sets the
//! length of the file.
//!
//! A file is extended before anything is written and truncated after everything is durable, so it
//! is never shorter than its file system. Partitions and block devices keep their length.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Device, FileDevice, OverlayDevice, Phase, Progress};
use pext4_ondisk::feature::Incompat;

use super::Summary;
use super::claim::ClaimedDevice;
use super::clone::{ResizedClone, check_clone};
use super::container::Container;
use super::image::read_superblock;
use super::make::{Target, check_features};
use super::plan::Plan;
use super::run::{Way, zero};
use super::trailing;
use crate::error::{Error, Result};

/// Options of a resize.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Work on the image itself even if an interruption would damage it.
    pub in_place: bool,
    /// The time (since 1970) of all time stamps. With it the same resize of the same image gives
    /// the same bytes.
    pub time: Option<Duration>,
    /// Counts what is copied and written. A stop ends the work on a clone, and leaves nothing
    /// behind; work on the image itself goes on.
    pub progress: Arc<Progress>,
}

/// A resize that was planned but not started.
#[must_use = "nothing is resized unless it is run"]
pub struct Resize {
    device: ClaimedDevice,
    plan: Plan,
    way: Way,
    /// The length of the device after the resize.
    length: u64,
}

/// A description of a planned resize.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// The effects in numbers.
    pub summary: Summary,
    /// How the plan would be written.
    pub way: Way,
    /// Whether the file system has the requested size already.
    pub is_idle: bool,
    /// The length of the file in bytes, if it remains longer than its file system.
    pub kept_length: Option<u64>,
}

impl fmt::Debug for Resize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Resize")
            .field("device", &self.device.path())
            .field("planned", &self.planned())
            .finish_non_exhaustive()
    }
}

impl Resize {
    /// Plans a resize without writing anything: a journal is replayed in memory. On a block device
    /// the way may be [`Way::InPlace`] without being asked for, since it is not gone. The way may
    /// be a clone although only a part of the file is locked, if the file is open for reading only.
    ///
    /// # Errors
    ///
    /// As [`Resize::prepare`].
    pub fn preview(device: FileDevice, target: Target, mut options: Options) -> Result<Preview> {
        options.in_place |= device.is_block_device();
        preview(&Arc::new(device), target, &options)
    }

    /// Plans the resize of an image that is open for writing. Replays its journal, unless the
    /// resize is impossible; writes nothing else.
    ///
    /// # Errors
    ///
    /// As [`Plan::make`]; `Impossible` if only [`Way::InPlace`] is possible and not requested, if a
    /// block device or a part of a file is too small, if data behind the file system would be
    /// overwritten, or if a clone would replace a file of which only a part is locked.
    pub fn prepare(device: FileDevice, target: Target, options: Options) -> Result<Self> {
        let device = Arc::new(device);
        if must_replay(&*device)? {
            preview(&device, target, &options)?;
        }
        options.progress.enter(Phase::Planning, 0, 0);
        let device = Arc::into_inner(device).expect("the overlay is gone");
        check_features(&device)?;
        let device = ClaimedDevice::claim(device)?;
        let container = Container::of(&device);
        let mut plan = Plan::make_claimed(&*device, target)?;
        plan.set_time(options.time);
        let way = way_in(&device, container, &plan, &options)?;
        let length = checked_length(&device, container, &plan)?;
        plan.progress = options.progress;
        Ok(Self {
            device,
            plan,
            way,
            length,
        })
    }

    /// A description of this resize.
    #[must_use]
    pub fn planned(&self) -> Preview {
        describe(
            &self.plan,
            self.way,
            Container::of(&self.device),
            self.length,
        )
    }

    /// Runs the resize. Returns the new size of the device in bytes.
    ///
    /// # Errors
    ///
    /// `Io`: except for [`Way::InPlace`], the image then contains the old file system and has its
    /// length. `AfterCommit`: the image contains the new one, or will after the next open.
    pub fn run(mut self) -> Result<u64> {
        let (before, after) = (self.device.size(), self.length);
        if self.plan.is_idle() {
            return Ok(before);
        }
        if self.way == Way::Clone {
            let clone = ResizedClone::create(&self.device, after, &self.plan.progress)?;
            let progress = Arc::clone(&self.plan.progress);
            self.plan
                .run(&*self.device, clone.device(), Way::Clone, before)?;
            self.clear_left(clone.device())?;
            self.device.release_clone(clone.device())?;
            clone.put_in_place(&progress)?;
            return Ok(after);
        }
        if after > before {
            self.device.set_length(after)?;
        }
        let done = self
            .plan
            .run(&*self.device, &*self.device, self.way, before);
        if done.is_err() && self.way == Way::Journal && self.is_unchanged() {
            // If truncation fails, a hole stays behind the file system.
            let _ = self.device.set_length(before);
        }
        done?;
        if after < before {
            self.device.set_length(after)?;
            self.device.flush()?;
        }
        self.clear_left(&self.device)?;
        self.device
            .release()
            .map_err(|error| Error::AfterCommit(Box::new(error)))?;
        Ok(after)
    }

    /// Clears what a shrink leaves behind the new end in a file that keeps its length: growing
    /// again would take it for something else that lies there.
    fn clear_left(&self, device: &FileDevice) -> Result<()> {
        let (new, old) = (self.plan.summary().bytes(), old_bytes(&self.plan));
        let is_kept = Container::of(device).is_cleared() && self.length > new;
        if !is_kept || new >= old {
            return Ok(());
        }
        zero(device, new, old.min(self.length))?;
        Ok(device.flush()?)
    }

    /// Whether the image contains the old file system, and no transaction that a replay would
    /// apply.
    fn is_unchanged(&self) -> bool {
        let blocks = read_superblock(&*self.device).map(|superblock| superblock.blocks_count);
        let waits = must_replay(&*self.device)
            .and_then(|recover| Ok(recover && self.plan.is_committed(&*self.device)?));
        matches!(waits, Ok(false))
            && blocks.is_ok_and(|blocks| blocks == self.plan.summary().old_blocks)
    }
}

/// The length of the file after the resize: the file ends with its file system, unless it was
/// longer before. An incomplete block at its end does not count unless it contains data: a
/// signature, a footer.
fn length_after(device: &FileDevice, plan: &Plan) -> Result<u64> {
    let length = device.size();
    let summary = plan.summary();
    if summary.bytes() >= length {
        return Ok(summary.bytes());
    }
    let old_end = old_bytes(plan);
    let ends_with_file_system = length < old_end + u64::from(summary.block_size)
        && trailing::first_nonzero_byte(device, old_end, length)?.is_none();
    Ok(if ends_with_file_system {
        summary.bytes()
    } else {
        length
    })
}

fn describe(plan: &Plan, way: Way, container: Container, length: u64) -> Preview {
    let summary = plan.summary();
    let is_longer = container.follows() && length > summary.bytes();
    Preview {
        kept_length: is_longer.then_some(length),
        summary,
        way,
        is_idle: plan.is_idle(),
    }
}

fn must_replay(device: &dyn Device) -> Result<bool> {
    let features = read_superblock(device)?.features;
    Ok(features.has_incompat(Incompat::RECOVER))
}

fn preview(device: &Arc<FileDevice>, target: Target, options: &Options) -> Result<Preview> {
    options.progress.enter(Phase::Planning, 0, 0);
    let container = Container::of(device);
    let overlay = OverlayDevice::new(Arc::clone(device) as Arc<dyn Device>);
    let mut plan = Plan::make(&overlay, target)?;
    plan.set_time(options.time);
    let way = way_in(device, container, &plan, options)?;
    let length = checked_length(device, container, &plan)?;
    Ok(describe(&plan, way, container, length))
}

/// The length of the device after the resize. Refuses to grow over other data.
fn checked_length(device: &FileDevice, container: Container, plan: &Plan) -> Result<u64> {
    if container.may_have_other_data() {
        trailing::check_growth(device, plan, old_bytes(plan))?;
    }
    match container.follows() {
        true => length_after(device, plan),
        false => Ok(device.size()),
    }
}

/// The size of the old file system in bytes.
fn old_bytes(plan: &Plan) -> u64 {
    let summary = plan.summary();
    summary.old_blocks * u64::from(summary.block_size)
}

/// How a plan for this device would be written. Refuses one that has no room or no way.
fn way_in(
    device: &FileDevice,
    container: Container,
    plan: &Plan,
    options: &Options,
) -> Result<Way> {
    let bytes = plan.summary().bytes();
    if !container.follows() && bytes > device.size() {
        return Err(Error::Impossible(container.refusal(device, bytes)));
    }
    if plan.is_idle() || plan.fits_journal() {
        return Ok(Way::Journal);
    }
    if options.in_place {
        return Ok(Way::InPlace);
    }
    if !container.can_be_replaced() {
        return Err(Error::Impossible(
            "on a block device this resize has no way back once it has begun: --in-place does it all \
             the same, after a backup"
                .to_owned(),
        ));
    }
    check_clone(device)?;
    Ok(Way::Clone)
}
