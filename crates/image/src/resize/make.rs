//! Creates a plan for a target size.

use pext4_block::Device;
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};

use super::claim::check_unused;
use super::image::{Image, read_superblock};
use super::journal;
use super::plan::Plan;
use super::{grow, orphans, shrink, smallest};
use crate::error::{Error, Result};

/// The features that a resize supports.
const HANDLED: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::SIXTY_FOUR_BIT)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const HANDLED_READ_ONLY: ReadOnlyCompat = ReadOnlyCompat::SPARSE_SUPER
    .union(ReadOnlyCompat::LARGE_FILE)
    .union(ReadOnlyCompat::HUGE_FILE)
    .union(ReadOnlyCompat::GDT_CSUM)
    .union(ReadOnlyCompat::DIR_NLINK)
    .union(ReadOnlyCompat::EXTRA_ISIZE)
    .union(ReadOnlyCompat::QUOTA)
    .union(ReadOnlyCompat::METADATA_CSUM)
    .union(ReadOnlyCompat::PROJECT)
    .union(ReadOnlyCompat::VERITY)
    .union(ReadOnlyCompat::ORPHAN_PRESENT);
const HANDLED_COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::IMAGIC_INODES)
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);

/// The requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// This many bytes.
    Bytes(u64),
    /// This many bytes more than now.
    More(u64),
    /// This many bytes less than now.
    Less(u64),
    /// The smallest size that holds the contents.
    Smallest,
    /// All of the file or device.
    Largest,
}

impl Plan {
    /// Computes how the file system on `device` gets the requested size. Replays the journal first;
    /// writes nothing else. An image with multiple mount protection must be unused, and must not
    /// come into use on another machine meanwhile ([`Resize`](super::Resize) sees to that).
    ///
    /// # Errors
    ///
    /// `Impossible`, with the reason, if the size is; `Unsupported`, which names the feature;
    /// `Corrupt`; `Io`.
    pub fn make(device: &dyn Device, target: Target) -> Result<Self> {
        check_features(device)?;
        check_unused(device)?;
        Self::make_claimed(device, target)
    }

    /// As [`Plan::make`], for an image that nobody else uses and whose features are known.
    pub(super) fn make_claimed(device: &dyn Device, target: Target) -> Result<Self> {
        let found = journal::recover(device)?;
        let image = Image::open(device)?;
        orphans::check_none(&image)?;
        let blocks = wanted(&image, device, target)?;
        let mut plan = match blocks {
            None => smallest::plan(device, &image)?,
            Some(blocks) => {
                let shape = smallest::shape(&image, blocks)?;
                if shape.geometry.blocks_count >= image.geometry.blocks_count {
                    grow::plan(image, shape)?
                } else {
                    shrink::plan(image, shape)?
                }
            }
        };
        plan.replayed = found.replayed;
        plan.has_dropped_log = found.has_dropped;
        plan.log = found.log;
        Ok(plan)
    }
}

/// The requested number of blocks; `None` for the minimum.
fn wanted(image: &Image<'_>, device: &dyn Device, target: Target) -> Result<Option<u64>> {
    let size = u64::from(image.geometry.block_size);
    let now = image.geometry.blocks_count;
    let blocks = match target {
        Target::Bytes(bytes) => bytes / size,
        Target::More(bytes) => now.saturating_add(bytes / size),
        Target::Less(bytes) => now.checked_sub(bytes.div_ceil(size)).ok_or_else(|| {
            Error::Impossible(format!("it has only {} bytes", now.saturating_mul(size)))
        })?,
        Target::Smallest => return Ok(None),
        Target::Largest => device.size() / size,
    };
    Ok(Some(blocks))
}

/// Refuses unsupported features by name.
pub(super) fn check_features(device: &dyn Device) -> Result<()> {
    let superblock = read_superblock(device)?;
    if superblock.is_for_hurd() {
        let what = "this version does not resize images that were made for the Hurd";
        return Err(Error::Unsupported(what.to_owned()));
    }
    let features = &superblock.features;
    if features.has_read_only_compat(ReadOnlyCompat::READONLY) {
        let what = "it has the feature read-only, which forbids every change of it: `tune2fs -O \
                    ^read-only` ends that";
        return Err(Error::Impossible(what.to_owned()));
    }
    if features.has_compat(Compat::RESIZE_INODE) && features.has_incompat(Incompat::META_BG) {
        let what =
            "it has features that exclude each other, resize_inode and meta_bg: run `e2fsck -f`";
        return Err(Error::Impossible(what.to_owned()));
    }
    let mut names = features.compat.difference(HANDLED_COMPAT).names();
    names.extend(features.incompat.difference(HANDLED).names());
    names.extend(
        features
            .read_only_compat
            .difference(HANDLED_READ_ONLY)
            .names(),
    );
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "this version does not resize images with the features: {}",
        names.join(", ")
    )))
}
