//! The size of the image, and its frame: an empty file system of that size, without root directory
//! and `lost+found`.

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::superblock::Superblock;

use super::error::{Error, Result};
use crate::mkfs::contents::{self, Files};
use crate::mkfs::layout::Layout;
use crate::mkfs::quotas::Usage;
use crate::mkfs::{Options, inode_counts, plan};

/// Bytes of free space per additional inode, as mke2fs provides them.
const BYTES_PER_INODE: u64 = 16384;
/// The part of what need not be free that the tables of these inodes may take, where a share of the
/// image is to be free: one byte in so many. Without a bound there may be no room for them at all.
const PART_FOR_TABLES: u64 = 8;
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

/// How precisely the smallest size is searched for.
struct Precision {
    /// Multiples of this number of blocks are tried.
    unit_blocks: u64,
    /// The search ends within one in so many units.
    units_per_slack: u64,
}

/// Each attempt lays out a file system, and a size that is a little larger than necessary does no
/// harm.
const ROUGH: Precision = Precision {
    unit_blocks: 16,
    units_per_slack: 1024,
};
/// For a message that says which size suffices.
const EXACT: Precision = Precision {
    unit_blocks: 1,
    units_per_slack: u64::MAX,
};

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

/// The frame that satisfies the requirements and has the free space.
pub(super) fn fit(required: &Requirements, free: Free, options: &Options) -> Result<Frame> {
    smallest(required, free, options, &ROUGH)
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

/// The frames of this size that satisfy the requirements. The first has the most inodes.
///
/// # Errors
///
/// Fewer inodes are asked for than are required.
pub(super) fn frames_of(
    required: &Requirements,
    bytes: u64,
    options: &Options,
) -> Result<impl Iterator<Item = Frame>> {
    check_inodes(required, options)?;
    let usual = bytes / inode_counts::default_bytes_per_inode(bytes, required.block_size);
    let some_more = required.inodes + required.inodes / 10;
    let counts = match options.inodes {
        Some(count) => vec![count],
        // More inodes than required are desirable, but not necessary.
        None => vec![usual.max(some_more), some_more, required.inodes],
    };
    Ok(counts.into_iter().filter_map(move |count| {
        let options = Options {
            inodes: Some(count),
            ..options.clone()
        };
        let frame = Frame::new(bytes, &options, &required.owners).ok()?;
        frame.holds(required, 0).then_some(frame)
    }))
}

/// What to say if no frame of this size will do. `fits` tells whether everything can be placed in a
/// frame that satisfies the requirements.
pub(super) fn too_small(
    required: &Requirements,
    bytes: u64,
    options: &Options,
    mut fits: impl FnMut(Frame) -> bool,
) -> Error {
    let smallest = minimum(required, options, &mut fits);
    let is_no_larger = smallest.as_ref().map_or(true, |&size| size <= bytes);
    if is_no_larger
        && let Err(error) = Frame::new(bytes, &bare(required, options), &required.owners)
    {
        return Error::impossible(format!("an image of {bytes} bytes cannot be made: {error}"));
    }
    match smallest {
        Ok(size) => Error::impossible(format!(
            "{bytes} bytes are too small: with these options at least {size} are needed{}",
            without_journal(required, bytes, options, &mut fits)
        )),
        Err(error) => error,
    }
}

/// The end of the sentence if `bytes` are enough without a journal.
fn without_journal(
    required: &Requirements,
    bytes: u64,
    options: &Options,
    fits: &mut impl FnMut(Frame) -> bool,
) -> String {
    let mut without = options.clone();
    without.features.push("^has_journal".to_owned());
    without.journal_blocks = None;
    match minimum(required, &without, fits) {
        Ok(size) if size <= bytes => {
            format!(", mostly for the journal; without one (-O ^has_journal) {size} suffice")
        }
        _ => String::new(),
    }
}

fn check_inodes(required: &Requirements, options: &Options) -> Result<()> {
    match options.inodes {
        Some(inodes) if inodes < required.inodes => Err(Error::impossible(format!(
            "too few inodes: at least {} are needed",
            required.inodes
        ))),
        _ => Ok(()),
    }
}

/// Options with no inode that is neither required nor asked for.
fn bare(required: &Requirements, options: &Options) -> Options {
    Options {
        inodes: options.inodes.or(Some(required.inodes)),
        ..options.clone()
    }
}

/// The smallest size, in bytes, of which a frame of [`frames_of`] fits. That the free blocks are
/// enough is not enough: they lie in pieces, and a file in many pieces takes more of them.
fn minimum(
    required: &Requirements,
    options: &Options,
    fits: &mut impl FnMut(Frame) -> bool,
) -> Result<u64> {
    let options = bare(required, options);
    let unit = required.block_size;
    let counted = smallest(required, Free::Bytes(0), &options, &EXACT)?;
    let (mut low, mut high) = (counted.size / unit, counted.size / unit);
    let mut is_enough = fits(counted);
    let mut attempt = |units: u64| {
        let attempted = attempt(units * unit, required, Free::Bytes(0), &options);
        attempted.is_ok_and(|(holds, frame)| holds && fits(frame))
    };
    let mut step = 1;
    while !is_enough {
        low = high;
        high += step;
        step *= 2;
        if high > MAX_SIZE / unit {
            return Err(no_size(&options, "it lies in too many pieces"));
        }
        is_enough = attempt(high);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match attempt(middle) {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok(high * unit)
}

/// The smallest frame, within the precision, that satisfies the requirements and has the free
/// space.
fn smallest(
    required: &Requirements,
    free: Free,
    options: &Options,
    precision: &Precision,
) -> Result<Frame> {
    check_inodes(required, options)?;
    let unit = precision.unit_blocks * required.block_size;
    let attempt = |units: u64| attempt(units * unit, required, free, options);
    let max_units = MAX_SIZE / unit;
    let mut low = 0;
    let mut high = (required.blocks + required.blocks / 8 + 1024).div_ceil(precision.unit_blocks);
    let mut was_possible = false;
    let mut best = loop {
        let attempted = attempt(high);
        was_possible |= attempted.is_ok();
        match attempted {
            Ok((true, frame)) => break frame,
            Err(error) if high >= max_units && !was_possible => {
                return Err(no_size(options, &error.to_string()));
            }
            // That the largest of all sizes is impossible explains nothing.
            _ if high >= max_units => return Err(no_size(options, "it is never enough")),
            _ => {
                low = high;
                high = (high + high / 2).min(max_units);
            }
        }
    };
    while high - low > 1 + high / precision.units_per_slack {
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
    let most = most_extra_inodes(free, size, required.block_size, options)?;
    let inodes_for = |blocks| inodes_for(required, blocks, most);
    let with_inodes_for = |blocks: u64| {
        let options = Options {
            inodes: Some(inodes_for(blocks)),
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
    if u64::from(frame.geometry.inodes_count) >= inodes_for(left) {
        return Ok((true, frame));
    }
    let frame = with_inodes_for(left)?;
    Ok((frame.holds(required, wanted), frame))
}

/// The required inodes, plus a tenth or one for each 16 KiB of `free` blocks, but at most `most`,
/// whichever is more.
fn inodes_for(required: &Requirements, free: u64, most: u64) -> u64 {
    let bytes = free.saturating_mul(required.block_size);
    let extra = (bytes / BYTES_PER_INODE).min(most);
    required.inodes + extra.max(required.inodes / 10)
}

/// How many inodes free space may have at most. If a share of the image is to be free, a larger
/// image has more free space, and the tables for it must leave room for the contents.
fn most_extra_inodes(
    free: Free,
    size: u64,
    block_size: u64,
    options: &Options,
) -> crate::Result<u64> {
    if matches!(free, Free::Bytes(_)) {
        return Ok(u64::MAX);
    }
    let blocks = size / block_size;
    let reserved = plan::reserved_blocks(blocks, options.reserved_percent)?;
    let taken = free_blocks(free, size, block_size).saturating_add(reserved);
    let tables = blocks.saturating_sub(taken) * block_size / PART_FOR_TABLES;
    Ok(tables / u64::from(options.inode_size.max(1)))
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
    use super::{Error, Frame, Free, Requirements, bare, fit, frames_of, too_small};
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
                let free = Free::Thousandths(share);
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
                let frame = fit(&required, free, &options()).unwrap();
                let left = (frame.free_blocks() - blocks) * 4096;
                let spare = u64::from(frame.geometry.inodes_count) - required.inodes;
                assert!(
                    spare >= left / 16384,
                    "{blocks} {free:?}: {spare} for {left}"
                );
            }
        }
    }

    /// The tables of the inodes for free space give way to the share that is to be free.
    #[test]
    fn any_share_and_size_of_inodes_give_a_size_near_the_contents() {
        for (blocks, inodes) in [(100, 20), (30_000, 5000)] {
            let required = Requirements {
                blocks,
                inodes,
                block_size: 4096,
                owners: Usage::default(),
            };
            for (inode_size, share, reserved_percent) in [128, 256, 1024, 4096]
                .into_iter()
                .flat_map(|size| [(size, 500, 0.0), (size, 930, 0.0), (size, 959, 3.0)])
            {
                let options = Options {
                    inode_size,
                    reserved_percent,
                    features: ["^has_journal", "^resize_inode"]
                        .map(str::to_owned)
                        .to_vec(),
                    ..options()
                };
                let frame = fit(&required, Free::Thousandths(share), &options).unwrap();
                let tables = inodes * 11 / 10 * u64::from(inode_size) / 4096;
                let left = 1.0 - f64::from(share) / 1000.0 - reserved_percent / 100.0;
                // The groups' own blocks are content as well.
                let content = u32::try_from(blocks + tables + 300).unwrap();
                let near = f64::from(content) / left * 1.2;
                let found = u32::try_from(frame.geometry.blocks_count).unwrap();
                assert!(
                    f64::from(found) <= near,
                    "{blocks} -I {inode_size} --free {share} -m {reserved_percent}: {found} of {near}"
                );
            }
        }
    }

    #[test]
    fn the_size_that_an_error_names_is_the_smallest() {
        for (blocks, inodes, inode_size) in [(100, 20, 256), (100, 3000, 1024), (70_000, 50, 256)] {
            let required = Requirements {
                blocks,
                inodes,
                block_size: 4096,
                owners: Usage::default(),
            };
            let options = Options {
                inode_size,
                features: vec!["^has_journal".to_owned()],
                ..options()
            };
            let holds = |bytes| {
                let mut frames = frames_of(&required, bytes, &options).unwrap();
                frames.next().is_some()
            };
            // Contents that take so many more blocks than were counted.
            for more in [0, 1, 500] {
                let fits = |frame: Frame| frame.free_blocks() >= blocks + more;
                let named = named(&too_small(&required, 64 << 10, &options, fits));
                assert!(holds(named), "{named}");
                assert!(more > 0 || !holds(named - 4096), "{named}");
                let frame = |bytes| Frame::new(bytes, &bare(&required, &options), &required.owners);
                assert!(fits(frame(named).unwrap()), "{named}");
                assert!(!frame(named - 4096).is_ok_and(fits), "{named}");
            }
        }
    }

    fn named(error: &Error) -> u64 {
        let told = error.to_string();
        let (_, rest) = told.split_once("at least ").expect("it names a size");
        let digits = rest.split(|one: char| !one.is_ascii_digit()).next();
        digits.unwrap_or_default().parse().expect("a number")
    }

    #[test]
    fn what_no_size_satisfies_is_told() {
        let required = Requirements {
            blocks: 10_000,
            inodes: 100,
            block_size: 4096,
            owners: Usage::default(),
        };
        assert!(
            fit(&required, Free::Bytes(u64::MAX), &options()).is_err(),
            "more than there is"
        );
        let few = Options {
            inodes: Some(50),
            ..options()
        };
        let error = fit(&required, Free::Bytes(0), &few).err().unwrap();
        assert!(error.to_string().contains("inodes"), "{error}");
        assert!(frames_of(&required, 64 << 20, &few).is_err());
    }
}
