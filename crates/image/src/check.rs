//! An independent checker: whether an image is the file system it claims to be.
//!
//! It shares only the decoders of bytes (`pext4-ondisk`) and the replay of the journal
//! (`pext4-jbd2`) with the file system, so agreement between the two is evidence. It only reads,
//! and it trusts no number: loops are bounded by the size of the image, memory by what the image
//! uses.
//!
//! The passes, each on all threads, group by group or directory by directory:
//!
//! 0. the superblock, the journal (replayed in memory if needed), group descriptors and their
//!    backups, the location of metadata;
//! 1. every inode in use, its attributes and its map; then the users of shared blocks;
//! 2. every directory, name by name, and its index;
//! 3. whether every directory is reachable from the root;
//! 4. whether every inode has as many names as it counts;
//! 5. bitmaps, counts and flags of every group; the usage that quota files record.
//!
//! A finding has a [`Kind`] with a stable name, a [`Grade`] and a [`Place`]; see `docs/CHECK.md`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use pext4_block::{Device, RamDevice};
//! use pext4_image::check::{self, Grade};
//! use pext4_image::mkfs;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(RamDevice::new(64 << 20));
//! mkfs::mkfs(&*device, &mkfs::Options::default())?;
//! let report = check::check(device.clone(), &check::Options::default())?;
//! assert!(report.is_clean());
//!
//! device.write_at(1024 + 0x78, b"x")?; // a new label, and the old checksum
//! let report = check::check(device, &check::Options::default())?;
//! for finding in &report.findings {
//!     println!("{} at {}: {}", finding.kind.name(), finding.place, finding.text);
//! }
//! assert!(report.worst() > Some(Grade::Note));
//! # Ok(())
//! # }
//! ```

mod attributes;
mod bad_blocks;
mod budget;
mod catalogue;
mod claims;
mod connectivity;
mod content;
mod descriptors;
mod directories;
mod encryption;
mod findings;
mod htree;
mod inode;
mod inodes;
mod journal;
mod leaf;
mod links;
mod mapping;
mod mmp;
mod names;
mod orphans;
mod parallel;
mod paths;
mod quota;
mod quota_tree;
mod shared;
mod special;
mod summary;
mod superblock;
mod volume;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pext4_block::Device;
use pext4_ondisk::Corrupt;
use pext4_ondisk::feature::Incompat;

pub use catalogue::{Grade, Kind};
pub use findings::{Finding, Place};
pub use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use attributes::UseCounts;
use claims::Claims;
use directories::Tree;
use encryption::Policies;
use findings::Findings;
use journal::AfterJournal;
use orphans::Orphans;
use parallel::Workers;
use volume::{Group, Volume};

use crate::holes::blocks_to_read;

/// Why an image could not be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed before there was anything to check.
    #[error("device error: {0}")]
    Io(#[from] io::Error),
    /// There is no usable superblock, and no backup at its usual location.
    #[error("no ext4 file system: {0}")]
    NoFileSystem(Corrupt),
    /// The image uses a feature that this checker does not support.
    #[error("cannot be checked: {0}")]
    Unsupported(String),
    /// [`Options::cancel`] was set.
    #[error("interrupted")]
    Interrupted,
}

/// Keeps the kind of a device's error; `error.get_ref()` and a downcast give the error back.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io(error) => error.kind(),
            Error::NoFileSystem(_) => io::ErrorKind::InvalidData,
            Error::Unsupported(_) => io::ErrorKind::Unsupported,
            Error::Interrupted => io::ErrorKind::Interrupted,
        };
        Self::new(kind, error)
    }
}

/// The result of a check.
pub type Result<T> = std::result::Result<T, Error>;

/// The passes of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pass {
    /// Superblock, journal, descriptors.
    Superblock,
    /// Inodes and the blocks that they map.
    Inodes,
    /// The users of shared blocks.
    SharedBlocks,
    /// Names.
    Directories,
    /// Counts of links.
    Links,
    /// Bitmaps and counts of groups, and quotas.
    Groups,
    /// Paths of the inodes that findings name.
    Paths,
}

impl Pass {
    /// What the pass checks, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock and descriptors",
            Self::Inodes => "inodes",
            Self::SharedBlocks => "shared blocks",
            Self::Directories => "directories",
            Self::Links => "link counts",
            Self::Groups => "group summaries",
            Self::Paths => "paths",
        }
    }
}

/// The progress of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The pass.
    pub pass: Pass,
    /// The number of groups or directories that are done, or being worked on: the total at the end.
    pub done: u32,
    /// The number of all groups or directories.
    pub total: u32,
}

/// The progress callback. It is called often, and from one thread.
pub type Progress = Box<dyn Fn(Step) + Send + Sync>;

/// Options of a check.
#[derive(Default)]
pub struct Options {
    /// The number of threads; 0 for one per processor. Of more than 1024 the rest is not started.
    pub threads: usize,
    /// Called with the progress.
    pub progress: Option<Progress>,
    /// Cancels the check when set. The type is the standard library's, so that a signal handler can
    /// set it.
    pub cancel: Arc<AtomicBool>,
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Options")
            .field("threads", &self.threads)
            .field("has_progress", &self.progress.is_some())
            .field("cancel", &self.cancel)
            .finish()
    }
}

/// The result of a check that ran.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "it says what is wrong with the image"]
pub struct Report {
    /// The findings that were kept, sorted by kind and place.
    pub findings: Vec<Finding>,
    /// The number of findings of each kind, including those that were not kept.
    pub counts: Vec<(Kind, u64)>,
    /// Whether every pass ran and skipped nothing.
    pub is_complete: bool,
    /// The number of inodes in use that are no directories.
    pub files: u64,
    /// The number of directories.
    pub directories: u64,
    /// The number of inodes in use.
    pub inodes: u64,
    /// The number of blocks in use.
    pub used_blocks: u64,
    /// The number of all blocks.
    pub blocks: u64,
    /// The block size in bytes.
    pub block_size: u32,
    /// The time that each pass took.
    pub times: Vec<(Pass, Duration)>,
}

impl Report {
    /// The worst grade of all findings.
    #[must_use]
    pub fn worst(&self) -> Option<Grade> {
        self.counts.iter().map(|(kind, _)| kind.grade()).max()
    }

    /// Whether the check is complete and found nothing but notes.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_complete && self.worst().is_none_or(|grade| grade == Grade::Note)
    }
}

/// The state that the passes share.
struct Examination {
    volume: Volume,
    groups: Vec<Group>,
    findings: Findings,
    /// The blocks of the image that hold something, and some more: what is read once at most reads
    /// no more.
    blocks_to_read: u64,
    claims: Claims,
    orphans: Orphans,
    /// Inodes that the superblock refers to and that have no names.
    hidden: Vec<InodeNumber>,
    attribute_blocks: UseCounts,
    values: UseCounts,
    policies: Policies,
}

/// Checks the image on a device.
///
/// # Errors
///
/// See [`Error`]. A defect of the image is not an error but a [`Finding`].
pub fn check(device: Arc<dyn Device>, options: &Options) -> Result<Report> {
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let workers = Workers { options, threads };
    let mut clock = Clock::start();
    let findings = Findings::new();
    let Some((volume, groups)) = open(device, &findings)? else {
        let (findings, counts) = findings.take();
        return Ok(Report {
            findings,
            counts,
            ..Report::default()
        });
    };
    let examination = prepare(volume, groups, findings, &workers);
    clock.lap(Pass::Superblock, &workers)?;
    passes(examination, &workers, clock)
}

/// What remains of pass 0 when the descriptors are read.
fn prepare(
    volume: Volume,
    mut groups: Vec<Group>,
    findings: Findings,
    workers: &Workers<'_>,
) -> Examination {
    let geometry = &volume.geometry;
    let (block_size, blocks) = (geometry.block_size, geometry.blocks_count);
    let is_cancelled = || workers.is_cancelled();
    let blocks_to_read = blocks_to_read(&*volume.device, block_size, blocks, &is_cancelled);
    let claims = Claims::new(geometry, blocks_to_read);
    descriptors::claim(&volume, &mut groups, &claims, &findings);
    if !groups.iter().all(Group::is_placed) {
        claims.leave_unknown();
    }
    descriptors::check_backups(&volume, &groups, workers, &findings);
    mmp::check(&volume, &findings);
    let orphans = orphans::collect(&volume, &groups, &findings);
    let examination = Examination {
        hidden: special::hidden(&volume),
        volume,
        groups,
        findings,
        blocks_to_read,
        claims,
        orphans,
        attribute_blocks: UseCounts::new(),
        values: UseCounts::new(),
        policies: Policies::new(),
    };
    special::check_resize(&examination);
    bad_blocks::claim(&examination);
    examination
}

/// The passes from 1 on.
fn passes(examination: Examination, workers: &Workers<'_>, mut clock: Clock) -> Result<Report> {
    let (inodes, directories, counts, usage) = inodes::examine(&examination, workers);
    attributes::check_counts(&examination);
    clock.lap(Pass::Inodes, workers)?;
    shared::report(&examination, &inodes, workers);
    clock.lap(Pass::SharedBlocks, workers)?;
    let tree = Tree::new(&examination, &inodes, &directories, workers);
    tree.examine();
    connectivity::check(&tree);
    clock.lap(Pass::Directories, workers)?;
    links::check(&tree, workers);
    clock.lap(Pass::Links, workers)?;
    let totals = summary::check(&examination, &inodes, workers);
    let usage = (!inodes.are_some_lost()).then_some(usage);
    quota::check(&examination, usage.as_ref(), workers);
    clock.lap(Pass::Groups, workers)?;
    let (mut found, kinds) = examination.findings.take();
    paths::fill_in(&tree, &mut found, workers);
    clock.lap(Pass::Paths, workers)?;
    let geometry = &examination.volume.geometry;
    Ok(Report {
        findings: found,
        is_complete: !tree.is_cut_short()
            && !examination.claims.is_cut_short()
            && !kinds.iter().any(|&(kind, _)| is_left_out(kind)),
        counts: kinds,
        files: counts.files,
        directories: counts.directories,
        inodes: counts.inodes,
        used_blocks: totals.used_blocks,
        blocks: geometry.blocks_count,
        block_size: geometry.block_size,
        times: clock.laps,
    })
}

/// Whether something was not checked where there is a finding of this kind.
fn is_left_out(kind: Kind) -> bool {
    matches!(kind, Kind::LimitReached | Kind::Unreadable)
}

/// Opens the image as it is after the replay of its journal. `None` if nothing of it can be
/// checked; the findings then say why.
fn open(device: Arc<dyn Device>, findings: &Findings) -> Result<Option<(Volume, Vec<Group>)>> {
    let opened = superblock::open(&*device, findings)?;
    // A mount needs a sound superblock before the replay, so its defects are reported even if the
    // replay mends them, but not again if they remain.
    let repeated = Findings::new();
    let after = match findings.is_empty() {
        true => findings,
        false => &repeated,
    };
    if !superblock::check_size(&device, &opened.geometry, findings)? {
        return Ok(None);
    }
    let mut volume = Volume::new(device, opened.superblock, opened.geometry);
    let needs_replay = volume.geometry.features.has_incompat(Incompat::RECOVER);
    if needs_replay {
        // Errors before the replay may be gone after it, so these findings are dropped.
        let groups = descriptors::read(&volume, &Findings::new());
        match journal::check(&volume, &groups, findings) {
            AfterJournal::AsIs => {}
            AfterJournal::Replayed(replayed) => {
                let opened = superblock::open(&*replayed, after)?;
                if !superblock::check_size(&replayed, &opened.geometry, findings)? {
                    return Ok(None);
                }
                volume = Volume::new(replayed, opened.superblock, opened.geometry);
            }
            AfterJournal::Unknown => return Ok(None),
        }
    }
    let groups = descriptors::read(&volume, findings);
    superblock::check_fields(&volume.superblock, findings);
    if !needs_replay {
        journal::check(&volume, &groups, findings);
    }
    Ok(Some((volume, groups)))
}

/// Measures the passes.
struct Clock {
    since: Duration,
    laps: Vec<(Pass, Duration)>,
}

impl Clock {
    fn start() -> Self {
        Self {
            since: pext4_sync::time::now(),
            laps: Vec::new(),
        }
    }

    /// Ends a pass. An error if the check was cancelled.
    fn lap(&mut self, pass: Pass, workers: &Workers<'_>) -> Result<()> {
        if workers.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let now = pext4_sync::time::now();
        self.laps.push((pass, now.saturating_sub(self.since)));
        self.since = now;
        Ok(())
    }
}
