//! The fast commits behind a log, applied in memory.
//!
//! A volume without a log is opened on a device that keeps writes in memory, over the image as its
//! log leaves it; the records are applied there by the same layers as any change
//! (`ops/fast_commit`). Closed, it leaves a sound file system in memory, which a read-only mount
//! shows. A writable one makes its changed blocks durable as one transaction
//! (`pext4_jbd2::recovery::Replay::write_with_fast_commits`) and goes on from there. Orphans that
//! no record is about stay for it to finish.

use std::sync::Arc;

use pext4_block::{Device, OverlayDevice};
use pext4_ondisk::feature::{Incompat, ReadOnlyCompat};
use pext4_ondisk::journal::fast_commit::Record;
use pext4_ondisk::superblock::{OFFSET, State, Superblock};

use super::superblock::{self, Found};
use crate::error::{Error, Result};
use crate::options::{MountOptions, OnError, Reserve};
use crate::volume::Volume;

/// The image `below`, whose log is replayed, as the fast commits leave it. Before that log was
/// replayed, its superblock was `found`. Memory is used for the blocks that they change.
///
/// # Errors
///
/// `Unsupported` if the image can only be read; those of applying the records.
pub(super) fn apply(
    below: Arc<dyn Device>,
    found: &Found,
    commits: &[Vec<Record>],
    options: &MountOptions,
) -> Result<Arc<OverlayDevice>> {
    let overlay = Arc::new(OverlayDevice::new(below));
    let mut own = MountOptions {
        read_only: false,
        skip_replay: false,
        bypass_journal: true,
        discard: Some(false),
        // In Linux there was room, and what is damaged besides is left to who mounts it.
        reserve: Reserve::Everybody,
        on_error: Some(OnError::Continue),
        // Who mounts it has claimed it.
        is_device_shared: false,
        ..options.clone()
    };
    let before = found.as_replayed(&*overlay, &mut own, &mut Vec::new())?;
    if before
        .features
        .has_read_only_compat(ReadOnlyCompat::BIGALLOC)
    {
        let text = "fast commits on an image with bigalloc; `e2fsck` replays them";
        return Err(Error::unsupported(text));
    }
    let mut replayed = before.clone();
    replayed.features.incompat.remove(Incompat::RECOVER);
    overlay.write_at(OFFSET, &replayed.encode())?;
    let volume = Volume::open_unfinished(Arc::clone(&overlay) as Arc<dyn Device>, own)?;
    if volume.is_read_only() {
        let why = volume.notes().join("; ");
        return Err(Error::unsupported(format!(
            "fast commits on an image that can only be read here ({why}); `e2fsck` replays them"
        )));
    }
    volume.apply_fast_commits(commits)?;
    volume.close()?;
    let after = superblock::read(&*overlay, &mut options.clone(), &mut Vec::new())?;
    let after = after.confirmed(&*overlay)?;
    overlay.write_at(OFFSET, &as_of_no_mount(&before, after).encode())?;
    Ok(overlay)
}

/// The superblock `after` a mount, without what every mount leaves in it.
fn as_of_no_mount(before: &Superblock, mut after: Superblock) -> Superblock {
    after.features.incompat |= before.features.incompat & Incompat::RECOVER;
    after.mount_time = before.mount_time;
    after.write_time = before.write_time;
    after.mount_count = before.mount_count;
    after.last_mounted = before.last_mounted;
    after.kbytes_written = before.kbytes_written;
    after.flags = before.flags;
    after.state = before.state | (after.state & State::ERRORS);
    after
}
