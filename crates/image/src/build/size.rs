//! The size of the image, and its frame: an empty file system of that size, without root directory
//! and `lost+found`.

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;

use super::error::{Error, Result};
use crate::mkfs::contents::{self, Files};
use crate::mkfs::layout::Layout;
use crate::mkfs::quotas::Usage;
use crate::mkfs::{Options, inode_counts, plan};

/// The size search tries multiples of this number of blocks.
const GRANULARITY_BLOCKS: u64 = 16;
/// Bytes of free space per additional inode, as mke2fs provides them.
const BYTES_PER_INODE: u64 = 16384;
/// The largest image size in bytes that the search tries.
const MAX_SIZE: u64 = 1 << 60;

/// The size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As large as the contents and this free space need.
    Auto(Free),
    /// So many bytes.
    Bytes(u64),
}

/// The free space in an image that is sized to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// A share of the image, in thousandths.
    Thousandths(u32),
    /// So many bytes.
    Bytes(u64),
}

impl Default for Size {
    /// Sized to fit, with a tenth of the image free.
    fn default() -> Self {
        Self::Auto(Free::Thousandths(100))
    }
}

/// A file system without contents: metadata, journal, orphan file and resize inode.
pub(super) struct Frame {
    pub superblock: Superblock,
    pub geometry: Geometry,
    pub layout: Layout,
    pub files: Files,
    /// Bytes of the image.
    pub size: u64,
}

/// What the image must hold.
#[derive(Clone, Debug)]
pub(super) struct Requirements {
    pub blocks: u64,
    /// Used inodes, including the reserved ones.
    pub inodes: u64,
    pub block_size: u64,
    /// Who owns files, if quota files count that.
    pub owners: Usage,
}

impl Frame {
    /// Lays out a file system of `size` bytes, with quota files for these owners.
    pub fn new(size: u64, options: &Options, owners: &Usage) -> crate::Result<Self> {
        let (mut superblock, geometry) = plan::plan(size, options)?;
        let mut layout = Layout::place(geometry)?;
        let mut files = Files::default();
        superblock.lost_found_inode = layout.allocate_inode();
        contents::place_system(&mut layout, &mut superblock, options, owners, &mut files)?;
        Ok(Self {
            superblock,
            geometry,
            layout,
            files,
            size,
        })
    }

    fn free_blocks(&self) -> u64 {
        let runs = self.layout.free_runs();
        runs.iter().map(|run| run.end - run.start).sum()
    }

    /// Whether the requirements and `free` more blocks fit, in addition to the reserved blocks.
    fn holds(&self, required: &Requirements, free: u64) -> bool {
        let wanted = required.blocks.saturating_add(free);
        u64::from(self.geometry.inodes_count) >= required.inodes
            && self.free_blocks() >= wanted.saturating_add(self.superblock.reserved_blocks)
    }
}

/// The frame that satisfies the requirements, of the requested size.
pub(super) fn fit(required: &Requirements, size: Size, options: &Options) -> Result<Frame> {
    match size {
        Size::Auto(free) => smallest(required, free, options),
        Size::Bytes(bytes) => fixed(required, bytes, options),
    }
}

/// Fails if the free space and the reserved blocks leave nothing of the image to the contents.
pub(super) fn check_free(size: Size, reserved_percent: f64) -> Result<()> {
    let Size::Auto(Free::Thousandths(free)) = size else {
        return Ok(());
    };
    let free = f64::from(free) / 10.0;
    if free + reserved_percent < 100.0 {
        return Ok(());
    }
    Err(Error::impossible(format!(
        "--free {free}% and -m {reserved_percent} leave no room for the contents: blocks reserved \
         for root do not count as free, so both together must be below 100 %"
    )))
}

fn fixed(required: &Requirements, bytes: u64, options: &Options) -> Result<Frame> {
    if options
        .inodes
        .is_some_and(|inodes| inodes < required.inodes)
    {
        return Err(too_few(required));
    }
    let usual = bytes / inode_counts::default_bytes_per_inode(bytes, required.block_size);
    let some_more = required.inodes + required.inodes / 10;
    let counts = match options.inodes {
        Some(count) => vec![count],
        // More inodes than required are desirable, but not necessary.
        None => vec![usual.max(some_more), some_more, required.inodes],
    };
    let mut impossible = None;
    for count in counts {
        let options = Options {
            inodes: Some(count),
            ..options.clone()
        };
        match Frame::new(bytes, &options, &required.owners) {
            Ok(frame) if frame.holds(required, 0) => return Ok(frame),
            Ok(_) => {}
            Err(error) => impossible = Some(error),
        }
    }
    let smallest = smallest(required, Free::Bytes(0), options);
    let is_no_larger = smallest.as_ref().map_or(true, |frame| frame.size <= bytes);
    if let Some(error) = impossible.filter(|_| is_no_larger) {
        return Err(Error::impossible(format!(
            "an image of {bytes} bytes cannot be made: {error}"
        )));
    }
    let smallest = smallest?;
    Err(Error::impossible(format!(
        "{bytes} bytes are too small: with these options at least {} are needed{}",
        smallest.size,
        without_journal(required, bytes, options)
    )))
}

/// The end of the sentence if `bytes` are enough without a journal.
fn without_journal(required: &Requirements, bytes: u64, options: &Options) -> String {
    let mut without = options.clone();
    without.features.push("^has_journal".to_owned());
    without.journal_blocks = None;
    match smallest(required, Free::Bytes(0), &without) {
        Ok(frame) if frame.size <= bytes => format!(
            ", mostly for the journal; without one (-O ^has_journal) {} suffice",
            frame.size
        ),
        _ => String::new(),
    }
}

fn too_few(required: &Requirements) -> Error {
    Error::impossible(format!(
        "too few inodes: at least {} are needed",
        required.inodes
    ))
}

/// The smallest frame, within about 0.1%, that satisfies the requirements and has the free space.
fn smallest(required: &Requirements, free: Free, options: &Options) -> Result<Frame> {
    if options
        .inodes
        .is_some_and(|inodes| inodes < required.inodes)
    {
        return Err(too_few(required));
    }
    let attempt = |units: u64| {
        attempt(
            units * GRANULARITY_BLOCKS * required.block_size,
            required,
            free,
            options,
        )
    };
    let max_units = MAX_SIZE / (GRANULARITY_BLOCKS * required.block_size);
    let mut low = 0;
    let mut high = (required.blocks + required.blocks / 8 + 1024).div_ceil(GRANULARITY_BLOCKS);
    let mut best = loop {
        match attempt(high) {
            Ok((true, frame)) => break frame,
            Err(error) if high >= max_units => return Err(no_size(options, &error.to_string())),
            Ok(_) if high >= max_units => return Err(no_size(options, "it is never enough")),
            _ => {
                low = high;
                high = (high + high / 2).min(max_units);
            }
        }
    };
    while high - low > 1 + high / 1024 {
        let middle = low + (high - low) / 2;
        match attempt(middle) {
            Ok((true, frame)) => (high, best) = (middle, frame),
            _ => low = middle,
        }
    }
    Ok(best)
}

fn no_size(options: &Options, problem: &str) -> Error {
    Error::impossible(match options.inodes {
        Some(count) => format!(
            "no size of the image was found that holds {count} inodes, the contents and the free \
             space: ask for fewer with -N, or for less with --free"
        ),
        None => {
            format!("no size of the image holds the contents and that much free space: {problem}")
        }
    })
}

/// The frame of this size, and whether it satisfies the requirements and has the free space.
fn attempt(
    size: u64,
    required: &Requirements,
    free: Free,
    options: &Options,
) -> crate::Result<(bool, Frame)> {
    let wanted = free_blocks(free, size, required.block_size);
    if options.inodes.is_some() {
        let frame = Frame::new(size, options, &required.owners)?;
        return Ok((frame.holds(required, wanted), frame));
    }
    let with_inodes_for = |blocks: u64| {
        let options = Options {
            inodes: Some(inodes_for(required, blocks)),
            ..options.clone()
        };
        Frame::new(size, &options, &required.owners)
    };
    let frame = with_inodes_for(wanted)?;
    if !frame.holds(required, wanted) {
        return Ok((false, frame));
    }
    // More may be free than requested, since a journal has a minimum size. Additional inodes for
    // the surplus reduce it, so these inodes are enough.
    let left = frame.free_blocks() - required.blocks;
    if u64::from(frame.geometry.inodes_count) >= inodes_for(required, left) {
        return Ok((true, frame));
    }
    let frame = with_inodes_for(left)?;
    Ok((frame.holds(required, wanted), frame))
}

/// The required inodes, plus a tenth or one for each 16 KiB of `free` blocks, whichever is more.
fn inodes_for(required: &Requirements, free: u64) -> u64 {
    let bytes = free.saturating_mul(required.block_size);
    required.inodes + (bytes / BYTES_PER_INODE).max(required.inodes / 10)
}

fn free_blocks(free: Free, size: u64, block_size: u64) -> u64 {
    match free {
        Free::Bytes(bytes) => bytes.div_ceil(block_size),
        Free::Thousandths(share) => {
            let bytes = u128::from(size) * u128::from(share) / 1000;
            u64::try_from(bytes)
                .unwrap_or(u64::MAX)
                .div_ceil(block_size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Free, Requirements, Size, fit};
    use crate::mkfs::Options;
    use crate::mkfs::quotas::Usage;

    fn options() -> Options {
        Options {
            block_size: Some(4096),
            reserved_percent: 0.0,
            ..Options::default()
        }
    }

    #[test]
    fn sizes_fit_and_are_nearly_minimal() {
        for blocks in [1, 1000, 30_000, 300_000, 5_000_000] {
            let required = Requirements {
                blocks,
                inodes: 100,
                block_size: 4096,
                owners: Usage::default(),
            };
            for share in [0, 100, 500] {
                let free = Size::Auto(Free::Thousandths(share));
                let frame = fit(&required, free, &options()).unwrap();
                let left = frame.free_blocks() - blocks;
                let wanted = frame.geometry.blocks_count * u64::from(share) / 1000;
                assert!(left >= wanted, "{blocks} {share}: {left} of {wanted}");
                // A journal needs a file system twice its size.
                let waste = left - wanted;
                assert!(
                    waste <= 1100 + frame.geometry.blocks_count / 200,
                    "{blocks}: {waste}"
                );
            }
        }
    }

    #[test]
    fn surplus_free_space_has_inodes() {
        for blocks in [1, 1000, 30_000, 300_000] {
            let required = Requirements {
                blocks,
                inodes: 20,
                block_size: 4096,
                owners: Usage::default(),
            };
            for free in [
                Free::Bytes(0),
                Free::Thousandths(100),
                Free::Bytes(64 << 20),
            ] {
                let frame = fit(&required, Size::Auto(free), &options()).unwrap();
                let left = (frame.free_blocks() - blocks) * 4096;
                let spare = u64::from(frame.geometry.inodes_count) - required.inodes;
                assert!(
                    spare >= left / 16384,
                    "{blocks} {free:?}: {spare} for {left}"
                );
            }
        }
    }

    #[test]
    fn errors_name_the_size_that_suffices() {
        let required = Requirements {
            blocks: 10_000,
            inodes: 100,
            block_size: 4096,
            owners: Usage::default(),
        };
        let error = fit(&required, Size::Bytes(16 << 20), &options())
            .err()
            .unwrap();
        assert!(error.to_string().contains("at least"), "{error}");
        let all = Size::Auto(Free::Bytes(u64::MAX));
        assert!(
            fit(&required, all, &options()).is_err(),
            "more than there is"
        );
        let few = Options {
            inodes: Some(50),
            ..options()
        };
        let error = fit(&required, Size::default(), &few).err().unwrap();
        assert!(error.to_string().contains("inodes"), "{error}");
    }
}
