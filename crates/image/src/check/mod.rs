//! An independent checker: whether an image is the file system it claims to be.
//!
//! It shares nothing with the file system but the decoders of bytes (`pext4-ondisk`) and the replay
//! of the journal (`pext4-jbd2`), so that where the two agree, that is evidence. It only reads, and
//! it believes no number: loops are bounded by what the image has, memory by what it uses.
//!
//! The passes, each on all threads, group by group or directory by directory:
//!
//! 0. the superblock, the journal (replayed in memory where that is due), group descriptors and
//!    their backups, where metadata lies;
//! 1. every inode in use, its attributes and its map; then who shares blocks with whom;
//! 2. every directory, name by name, and its index;
//! 3. whether the root leads to every directory;
//! 4. whether every inode has the names it counts;
//! 5. bitmaps, counts and flags of every group; what quota files say of who takes how much.
//!
//! What is found has a [`Kind`] with a stable name, a [`Grade`] and a [`Place`]; see
//! `docs/CHECK.md`.

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

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pext4_block::Device;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::{Corrupt, InodeNumber};

pub use catalogue::{Grade, Kind};
pub use findings::{Finding, Place};

use attributes::Counted;
use claims::Claims;
use directories::Tree;
use encryption::Policies;
use findings::Findings;
use orphans::Orphans;
use parallel::Workers;
use volume::{Group, Volume};

/// Why an image could not be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed before there was anything to check.
    #[error("device error: {0}")]
    Io(#[from] io::Error),
    /// There is no superblock to go by, and no backup where one usually lies.
    #[error("no ext4 file system: {0}")]
    NoFileSystem(Corrupt),
    /// The image uses something that this checker does not know.
    #[error("cannot be checked: {0}")]
    Unsupported(String),
    /// The caller wanted no more.
    #[error("cancelled")]
    Cancelled,
}

/// The result of a check.
pub type Result<T> = std::result::Result<T, Error>;

/// What the checker is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Superblock, journal, descriptors.
    Superblock,
    /// Inodes and what they map.
    Inodes,
    /// Who shares blocks with whom.
    SharedBlocks,
    /// Names.
    Directories,
    /// Counts of links.
    Links,
    /// Bitmaps and counts of groups, and quotas.
    Groups,
    /// Paths to what was found.
    Paths,
}

impl Pass {
    /// What it looks at, in words.
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

/// How far a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The pass.
    pub pass: Pass,
    /// Groups or directories done.
    pub done: u32,
    /// All of them.
    pub total: u32,
}

/// Who is told how far the check is: called often, and from one thread.
pub type Progress = Box<dyn Fn(Step) + Send + Sync>;

/// How to check.
#[derive(Default)]
pub struct Options {
    /// Threads; 0 for one a processor.
    pub threads: usize,
    /// Who is told how far it is.
    pub progress: Option<Progress>,
    /// Set from outside to stop: the standard library's own flag, so that a handler of signals can.
    pub cancel: Arc<AtomicBool>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// All findings that were kept, sorted by kind and place.
    pub findings: Vec<Finding>,
    /// How many findings of each kind there were, those not kept included.
    pub counts: Vec<(Kind, u64)>,
    /// Whether every pass was run, and looked at all there is.
    pub is_complete: bool,
    /// Inodes in use that are no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// All inodes.
    pub inodes: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// All blocks.
    pub blocks: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Time that each pass took.
    pub times: Vec<(Pass, Duration)>,
}

impl Report {
    /// The worst grade of all findings.
    #[must_use]
    pub fn worst(&self) -> Option<Grade> {
        self.counts.iter().map(|(kind, _)| kind.grade()).max()
    }

    /// Whether nothing is wrong; notes may have been made.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_complete && self.worst().is_none_or(|grade| grade == Grade::Note)
    }
}

/// What the passes share.
struct Examination {
    volume: Volume,
    groups: Vec<Group>,
    findings: Findings,
    claims: Claims,
    orphans: Orphans,
    /// Inodes without names that the superblock knows.
    hidden: Vec<InodeNumber>,
    attribute_blocks: Counted,
    values: Counted,
    policies: Policies,
}

/// Checks the image on a device.
///
/// # Errors
/// See [`Error`]; what is wrong with the image is no error but a [`Finding`].
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
    let claims = Claims::new(&volume.geometry);
    descriptors::claim(&volume, &groups, &claims, &findings);
    descriptors::check_backups(&volume, &groups, &workers, &findings);
    mmp::check(&volume, &findings);
    let orphans = orphans::collect(&volume, &groups, &findings);
    let examination = Examination {
        hidden: special::hidden(&volume),
        volume,
        groups,
        findings,
        claims,
        orphans,
        attribute_blocks: Counted::new(),
        values: Counted::new(),
        policies: Policies::new(),
    };
    special::check_resize(&examination);
    bad_blocks::claim(&examination);
    clock.lap(Pass::Superblock, &workers)?;
    passes(examination, &workers, clock)
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
    quota::check(&examination, &usage);
    clock.lap(Pass::Groups, workers)?;
    let (mut found, kinds) = examination.findings.take();
    paths::fill_in(&tree, &mut found, workers);
    clock.lap(Pass::Paths, workers)?;
    let geometry = &examination.volume.geometry;
    Ok(Report {
        findings: found,
        counts: kinds,
        is_complete: !tree.is_cut_short() && !examination.claims.is_cut_short(),
        files: counts.files,
        directories: counts.directories,
        inodes: counts.inodes,
        used_blocks: totals.used_blocks,
        blocks: geometry.blocks_count,
        block_size: geometry.block_size,
        times: clock.laps,
    })
}

/// Opens the image, as it is after the replay of its journal. `None` where nothing of it can be
/// checked; then the findings say why.
fn open(device: Arc<dyn Device>, findings: &Findings) -> Result<Option<(Volume, Vec<Group>)>> {
    let opened = superblock::open(&*device, findings)?;
    if !superblock::check_size(&device, &opened.geometry, findings)? {
        return Ok(None);
    }
    let mut volume = Volume::new(device, opened.superblock, opened.geometry);
    if volume.geometry.features.has_incompat(Incompat::RECOVER) {
        // What is wrong before the replay may be right after it.
        let groups = descriptors::read(&volume, &Findings::new());
        if let Some(replayed) = journal::check(&volume, &groups, findings) {
            let opened = superblock::open(&*replayed, findings)?;
            if !superblock::check_size(&replayed, &opened.geometry, findings)? {
                return Ok(None);
            }
            volume = Volume::new(replayed, opened.superblock, opened.geometry);
        }
        let groups = descriptors::read(&volume, findings);
        superblock::check_fields(&volume.superblock, findings);
        return Ok(Some((volume, groups)));
    }
    let groups = descriptors::read(&volume, findings);
    superblock::check_fields(&volume.superblock, findings);
    journal::check(&volume, &groups, findings);
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

    /// Ends a pass; an error if the caller wants no more.
    fn lap(&mut self, pass: Pass, workers: &Workers<'_>) -> Result<()> {
        if workers.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let now = pext4_sync::time::now();
        self.laps.push((pass, now.saturating_sub(self.since)));
        self.since = now;
        Ok(())
    }
}
