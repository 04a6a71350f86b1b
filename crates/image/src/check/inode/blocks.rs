//! The blocks of an inode: walks its map, claims what it finds, and counts.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::{InodeSubject, has_map};
use crate::check::catalogue::Kind;
use crate::check::claims::Claimed;
use crate::check::findings::Place;
use crate::check::inodes::{DirectoryRun, Gathered};
use crate::check::mapping::{self, Run, Visitor};

/// The result of a walk over an inode's map.
#[derive(Debug, Default)]
pub(in crate::check) struct Mapped {
    /// The number of clusters, including those of the map itself.
    pub(super) clusters: u64,
    /// The first logical block behind the last written one.
    pub(in crate::check) written_end: u64,
    /// The first logical block behind the last mapped one.
    pub(in crate::check) mapped_end: u64,
    /// Parts of the map were skipped, so the counts have no meaning.
    is_partial: bool,
    /// Blocks of its data were claimed before, by another inode or by itself.
    is_shared: bool,
    /// The location of logical block 0, if it is mapped and written.
    pub(in crate::check) first: Option<BlockNumber>,
    /// For a directory: the index of its first run in the gathered list.
    pub(super) first_run: usize,
}

impl Mapped {
    /// Whether parts of the map were skipped.
    pub(in crate::check) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whether blocks of its data were claimed before.
    pub(in crate::check) fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// Claims the blocks of a walk.
struct Claimer<'a, 'b> {
    subject: &'a InodeSubject<'a>,
    mapped: Mapped,
    /// The list to which a directory's runs are added.
    runs: Option<&'b mut Vec<DirectoryRun>>,
    /// The last cluster that was claimed: its number on the device and in the file.
    last: Option<(u64, u64)>,
}

/// Walks the map of an inode and claims its blocks.
pub(super) fn map(subject: &InodeSubject<'_>, gathered: &mut Gathered) -> Mapped {
    let is_directory = subject.kind == Some(FileType::Directory);
    let runs = &mut gathered.directories.runs;
    let mapped = Mapped {
        first_run: runs.len(),
        ..Mapped::default()
    };
    if !has_map(subject) || subject.number == InodeNumber::RESIZE {
        return mapped;
    }
    let mut claimer = Claimer {
        subject,
        mapped,
        runs: is_directory.then_some(runs),
        last: None,
    };
    let volume = &subject.examination.volume;
    mapping::walk(volume, subject.number, subject.inode, &mut claimer);
    claimer.mapped
}

impl Claimer<'_, '_> {
    fn report(&self, kind: Kind, block: Option<BlockNumber>, text: String) {
        let mut place = Place::inode(self.subject.number);
        place.block = block;
        self.subject.examination.findings.add(kind, place, || text);
    }

    fn claim_run(&mut self, start: BlockNumber, length: u64) {
        let examination = self.subject.examination;
        let claimed = examination.claims.claim_run(start, length);
        self.mapped.is_shared |= claimed != Claimed::First;
        if claimed == Claimed::Uncounted && examination.claims.cut_short() {
            let text = "files claim so many blocks of each other that the blocks of this file and of \
                        later ones were not counted";
            self.report(Kind::BlockShared, Some(start), text.to_owned());
        }
    }

    /// Claims a run. In a file system with clusters, two runs may share one.
    fn claim(&mut self, run: Run) {
        let examination = self.subject.examination;
        let ratio = u64::from(examination.volume.geometry.blocks_per_cluster);
        let (start, length) = (run.start.get(), u64::from(run.length));
        if ratio == 1 {
            self.mapped.clusters += length;
            self.claim_run(run.start, length);
            return;
        }
        let logical = u64::from(run.logical);
        if logical % ratio != start % ratio {
            let text = format!("logical block {logical} is block {start}, {ratio} in a cluster");
            self.report(Kind::ClusterMisaligned, Some(run.start), text);
        }
        let mut first = start / ratio;
        let end = (start + length).div_ceil(ratio);
        match self.last {
            Some(last) if last == (first, logical / ratio) => first += 1,
            Some((other, cluster)) if cluster == logical / ratio => {
                let text = format!("logical cluster {cluster} is in clusters {other} and {first}");
                self.report(Kind::ClusterMisaligned, Some(run.start), text);
            }
            _ => {}
        }
        self.last = Some((end - 1, (logical + length - 1) / ratio));
        if first < end {
            self.mapped.clusters += end - first;
            let start = BlockNumber(first * ratio);
            self.claim_run(start, (end - first) * ratio);
        }
    }
}

impl Visitor for Claimer<'_, '_> {
    fn node(&mut self, block: BlockNumber) -> bool {
        self.mapped.clusters += 1;
        let is_new = self.subject.examination.claims.claim(block, 1);
        self.mapped.is_partial |= !is_new;
        is_new
    }

    fn run(&mut self, run: Run) {
        self.claim(run);
        self.mapped.mapped_end = self.mapped.mapped_end.max(run.end());
        if !run.unwritten {
            self.mapped.written_end = self.mapped.written_end.max(run.end());
            if run.logical == 0 {
                self.mapped.first = Some(run.start);
            }
        }
        if let Some(runs) = &mut self.runs {
            runs.push(DirectoryRun {
                start: run.start.get(),
                logical: run.logical,
                length: run.length,
            });
            if run.unwritten {
                let text = format!("logical block {}, {} long", run.logical, run.length);
                self.report(Kind::ExtentUnwritten, Some(run.start), text);
            }
        }
    }

    fn fault(&mut self, kind: Kind, block: Option<BlockNumber>, text: String) {
        self.mapped.is_partial = true;
        if kind == Kind::Unreadable {
            self.subject.examination.claims.leave_unknown();
        }
        self.report(kind, block, text);
    }

    fn flaw(&mut self, kind: Kind, block: Option<BlockNumber>, text: String) {
        self.report(kind, block, text);
    }
}
