//! Applies fast commits: what they record becomes true on a volume that has no log.
//!
//! The volume is the file system as the last full commit left it, over a device that keeps writes
//! in memory (`mount/fast_commits.rs`); nothing else uses it yet. An error leaves it half changed:
//! the caller throws it away.
//!
//! What Linux records, observed on the areas that Linux 6.18 wrote:
//!
//! - A commit has first the changes of names, in the order in which they were made, and then what
//!   changed of files: their blocks, then their attributes. Before the name of a new inode there
//!   are its attributes and blocks already.
//! - Attributes and blocks are those at the time of the commit. So the links that an inode counts
//!   when its name is made include those of names that follow; the attributes at the end set them
//!   right.
//! - Of a directory there are attributes only where it is new, and never blocks. Its entries, its
//!   size, its subdirectories' links and its times follow from the names.
//! - An inode that was gone again at the commit has neither attributes nor a first name, but
//!   further names of it, and their removal, may be there.
//! - The number of an inode that is gone may belong to a new one at once, in the same commit.
//!   Generations tell it from one that has lost its last name. (That of an inode with a name can be
//!   changed.)
//! - A file that is renamed gets the new name first and then loses the old one.
//! - What cannot be said in these records (directories that are renamed, attributes by name,
//!   collapsed ranges) makes Linux write a full commit instead.
//!
//! So records of inodes that are not in use are passed over. A file without a name that got one
//! later has its attributes behind that name; so has one that left its inode behind its first
//! blocks. Where the next attributes in a commit are not of the inode as it is, they are therefore
//! applied first ([`Application::settled`]), unless they belong to an inode that is created later.
//! Every record says how something is, not how it changed, and is passed over where it is so
//! already.
//!
//! How often directories are searched for names is bounded: a few records would otherwise make a
//! mount read a directory without an index for hours.
//!
//! Blocks: nothing but the file that a record names may have the blocks that it maps, so all of
//! them are claimed before anything else is allocated, and one that is neither claimed nor unmapped
//! by a record is refused. The blocks of files and links are not freed while records are applied,
//! since they may be mapped again; what is not mapped in the end is freed then.

mod inode;
mod name;
mod range;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use pext4_ondisk::inode::MAX_LINKS;
use pext4_ondisk::journal::fast_commit::Record;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};
use rangemap::RangeSet;

use crate::error::{Refusal, Result};
use crate::groups::CREDITS_PER_GROUP;
use crate::inode::{Inode, Reach};
use crate::orphan::OrphanPlace;
use crate::volume::Volume;

/// The most blocks that are claimed or freed under one handle.
const MOST_BLOCKS: u32 = 1 << 15;

/// The most bytes of directories that names may make a replay search, which takes about a minute.
/// In directories without an index each name is searched for in all blocks.
const MOST_SEARCHED: u64 = 1 << 37;

/// Fast commits that are being applied.
struct Application<'a> {
    volume: &'a Volume,
    /// Blocks that were claimed or unmapped and are not mapped: what is left in the end is freed.
    undecided: RangeSet<u64>,
    /// Bytes of slots that were written because a new inode lies behind them.
    filled: u64,
    /// New directories that have no name yet and no first block; whether they are to be stored in
    /// their inodes.
    unnamed_directories: BTreeMap<InodeNumber, bool>,
    /// The orphans of the last full commit.
    orphans: HashMap<InodeNumber, OrphanPlace>,
    /// Files that had more links than the format counts. One that is renamed has one too many
    /// between the new name and the end of the old one.
    overfull: BTreeSet<InodeNumber>,
    /// Bytes of directories that may still be searched.
    searches_left: u64,
}

/// The links of an inode whose attributes are applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// As the record has them: the names of its commit are there.
    AsRecorded,
    /// As they are: names of its commit come and go still. (A new inode has the recorded ones.)
    AsCounted,
}

/// One fast commit, and where in it what is of each inode.
struct Commit<'a> {
    records: &'a [Record],
    attributes: HashMap<InodeNumber, Vec<usize>>,
    last_creation: HashMap<InodeNumber, usize>,
}

impl<'a> Commit<'a> {
    fn new(records: &'a [Record]) -> Self {
        let mut attributes: HashMap<_, Vec<usize>> = HashMap::new();
        let mut last_creation = HashMap::new();
        for (at, record) in records.iter().enumerate() {
            match record {
                Record::Inode { inode, .. } => attributes.entry(*inode).or_default().push(at),
                Record::Create(named) => drop(last_creation.insert(named.inode, at)),
                _ => {}
            }
        }
        Self {
            records,
            attributes,
            last_creation,
        }
    }

    /// The next attributes, from the record `at` on, of the inode that this record is about. Those
    /// of an inode that is created later are not its own.
    fn attributes_from(&self, at: usize, inode: InodeNumber) -> Option<&'a [u8]> {
        let is_of_another = |&creation: &usize| creation > at;
        if self.last_creation.get(&inode).is_some_and(is_of_another) {
            return None;
        }
        let places = self.attributes.get(&inode)?;
        let next = places.partition_point(|place| *place < at);
        match &self.records[*places.get(next)?] {
            Record::Inode { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

impl Volume {
    /// Applies the records of fast commits, commit by commit.
    ///
    /// # Errors
    ///
    /// `Corrupt` if records contradict the file system or are none that Linux writes,
    /// `Unsupported`, `Refused(NoSpace)`, `Io`.
    pub(crate) fn apply_fast_commits(&self, commits: &[Vec<Record>]) -> Result<()> {
        let mut application = Application::on(self);
        for record in commits.iter().flatten() {
            if let Record::AddRange { extent, .. } = record {
                application.claim(extent)?;
            }
        }
        for records in commits {
            let commit = Commit::new(records);
            for at in 0..records.len() {
                application.apply(&commit, at)?;
            }
        }
        application.finish()
    }
}

impl<'a> Application<'a> {
    /// Nothing is applied yet.
    fn on(volume: &'a Volume) -> Self {
        let orphans = volume.inodes.orphans.snapshot();
        Self {
            volume,
            undecided: RangeSet::new(),
            filled: 0,
            unnamed_directories: BTreeMap::new(),
            orphans: orphans.into_iter().collect(),
            overfull: BTreeSet::new(),
            searches_left: MOST_SEARCHED,
        }
    }
}

impl Application<'_> {
    fn apply(&mut self, commit: &Commit<'_>, at: usize) -> Result<()> {
        let record = &commit.records[at];
        let settled = match record {
            Record::Inode { inode, bytes } => {
                return self.set_attributes(*inode, bytes, Links::AsRecorded);
            }
            Record::Unlink(named) => return self.unlink(named),
            _ => self.settled(commit, at, record.inode())?,
        };
        match (record, settled) {
            (Record::AddRange { extent, .. }, Some(inode)) => self.add_range(&inode, extent),
            (
                Record::DeleteRange {
                    logical, length, ..
                },
                Some(inode),
            ) => self.delete_range(&inode, *logical, *length),
            (Record::Create(named), Some(inode)) => self.create(named, &inode),
            (Record::Link(named), Some(inode)) => self.link(named, &inode),
            _ => Ok(()),
        }
    }

    /// The inode that the record `at` is about; `None` if it is not in use.
    fn settled(
        &mut self,
        commit: &Commit<'_>,
        at: usize,
        number: InodeNumber,
    ) -> Result<Option<Arc<Inode>>> {
        let current = self.in_use(number)?;
        let Some(bytes) = commit.attributes_from(at, number) else {
            return Ok(current);
        };
        if let Some(current) = current
            && self.is_of(&current, bytes)?
        {
            return Ok(Some(current));
        }
        self.set_attributes(number, bytes, Links::AsCounted)?;
        self.in_use(number)
    }

    /// The inode of a number, if it is in use. It knows its place among the orphans.
    fn in_use(&self, number: InodeNumber) -> Result<Option<Arc<Inode>>> {
        let inodes = &self.volume.inodes;
        if number != InodeNumber::ROOT && !inodes.store.may_have_name(number) {
            return Err(contradiction("is about a reserved inode", number).into());
        }
        if !inodes.groups.is_inode_claimed(number)? {
            return Ok(None);
        }
        let place = self.orphans.get(&number).copied();
        let inode = match inodes.get_orphan(number, place) {
            Ok(inode) if inode.is_dead() => return Ok(None),
            Err(error) if error.is(Refusal::Stale) => return Ok(None),
            found => found?,
        };
        if place.is_some() && !inode.is_orphan() {
            inode.note(|state| state.orphan = place);
        }
        Ok(Some(inode))
    }

    /// Ends an inode that has no name any more, or whose number another one has.
    fn end(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let (volume, number) = (self.volume, inode.number());
        if inode.state(|state| inode::has_map(&state.slot)) {
            self.detach_all(inode)?;
        }
        let mut handle = volume.inodes.store.start(super::INODE_CREDITS)?;
        inode.edit(&mut handle, Reach::Attributes, |state| state.slot.links = 0);
        drop(handle);
        volume.reap_if_due(inode)?;
        self.orphans.remove(&number);
        self.unnamed_directories.remove(&number);
        Ok(())
    }

    /// Notes a file that has more links than the format counts, to be checked in the end.
    fn note_links(&mut self, inode: &Inode) {
        if !inode.is_directory() && inode.links() > u32::from(MAX_LINKS) {
            self.overfull.insert(inode.number());
        }
    }

    fn check_links(&mut self) -> Result<()> {
        for number in std::mem::take(&mut self.overfull) {
            let inode = self.in_use(number)?;
            if inode.is_some_and(|inode| inode.links() > u32::from(MAX_LINKS)) {
                let problem = "gives a file more links than the format counts";
                return Err(contradiction(problem, number).into());
            }
        }
        Ok(())
    }

    /// Ends directories that have no name, and frees the blocks that no file has. Files without a
    /// name end when the volume is closed.
    fn finish(mut self) -> Result<()> {
        self.check_links()?;
        for number in std::mem::take(&mut self.unnamed_directories).into_keys() {
            if let Some(directory) = self.in_use(number)? {
                self.end(&directory)?;
            }
        }
        for blocks in std::mem::take(&mut self.undecided) {
            self.free(blocks)?;
        }
        Ok(())
    }

    fn free(&self, blocks: Range<u64>) -> Result<()> {
        let inodes = &self.volume.inodes;
        let mut start = blocks.start;
        while start < blocks.end {
            let left = u32::try_from(blocks.end - start).unwrap_or(u32::MAX);
            let length = left.min(MOST_BLOCKS);
            let mut handle = inodes.store.start(self.group_credits(length))?;
            inodes
                .groups
                .free(&mut handle, BlockNumber(start), length)?;
            start += u64::from(length);
        }
        Ok(())
    }

    /// Metadata blocks that claiming or freeing a run may dirty.
    fn group_credits(&self, length: u32) -> u32 {
        let per_group = self.volume.inodes.store.geometry.blocks_per_group;
        let groups = length.div_ceil(per_group).saturating_add(1);
        groups.saturating_mul(CREDITS_PER_GROUP)
    }
}

/// A record that contradicts the file system, or the others.
fn contradiction(problem: impl Into<Cow<'static, str>>, inode: InodeNumber) -> Corrupt {
    Corrupt::new("fast commit", problem).in_inode(inode)
}
