//! Pass 1: every inode in use, and its map.
//!
//! Each thread takes group after group, reads the used part of its inode table in large pieces, and
//! checks inode after inode ([`super::inode`]). The data for later passes is kept small: for each
//! inode a byte of state and a counter of links, for each directory the location of its blocks. A
//! descriptor may claim that a table is used where the image has a hole: holes are not read, and
//! nothing is kept of pages of inodes none of which is in use.

use std::collections::BTreeSet;
use std::ops::Range;

use pext4_ondisk::bitmap;
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};
use pext4_sync::atomic::{AtomicU32, Ordering};

use super::catalogue::Kind;
use super::findings::Place;
use super::inode::{self, Examined};
use super::parallel::Workers;
use super::quota::Usage;
use super::{Examination, Pass};

/// Bytes of an inode table that are read at a time.
const CHUNK: usize = 1 << 20;
/// The number of inodes in a page, which is kept or not.
const PAGE: usize = 64;

/// The state of an inode for later passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InodeState(u8);

impl InodeState {
    const KIND: u8 = 0x07;
    const USED: u8 = 0x08;
    const VALUE: u8 = 0x10;
    const OVERFLOWN: u8 = 0x20;

    /// An inode that is not in use.
    const UNUSED: Self = Self(0);

    /// An inode in use. `kind` is the file type of directory entries; 0 if it is unknown.
    pub(super) fn used(kind: u8) -> Self {
        Self(Self::USED | kind & Self::KIND)
    }

    /// The same state, of an inode that holds the value of an extended attribute.
    pub(super) fn with_value(self) -> Self {
        Self(self.0 | Self::VALUE)
    }

    /// The same state, of a directory whose link count overflowed.
    pub(super) fn with_overflow(self) -> Self {
        Self(self.0 | Self::OVERFLOWN)
    }

    pub(super) fn is_used(self) -> bool {
        self.0 & Self::USED != 0
    }

    pub(super) fn kind(self) -> u8 {
        self.0 & Self::KIND
    }

    pub(super) fn is_directory(self) -> bool {
        self.kind() == FileType::Directory.to_entry()
    }

    pub(super) fn holds_value(self) -> bool {
        self.0 & Self::VALUE != 0
    }

    pub(super) fn is_overflown(self) -> bool {
        self.0 & Self::OVERFLOWN != 0
    }
}

/// The inodes in the used part of one group's table.
#[derive(Default)]
pub(super) struct GroupInodes {
    /// Nothing is known of the inodes with these indices that do not seem to be in use: the group
    /// has no table, or parts of it could not be read.
    lost: Range<u32>,
    /// The number of inodes in that part.
    count: usize,
    /// The numbers of the pages in which inodes are in use, in order.
    pages: Box<[u16]>,
    /// The states of the inodes of these pages.
    states: Box<[InodeState]>,
    /// The links that each of them counts, minus the names found so far. Wraps below zero.
    links: Box<[AtomicU32]>,
}

impl GroupInodes {
    /// Those that were found, none if no block of the table was read, but for those that are lost.
    fn of(count: u32, found: &[Examined], lost: Range<u32>) -> Self {
        let is_used = |page: &&[Examined]| page.iter().any(|one| one.state.is_used());
        let kept = || found.chunks(PAGE).filter(is_used).flatten();
        let pages = (0..).zip(found.chunks(PAGE));
        Self {
            lost,
            count: count as usize,
            pages: pages
                .filter_map(|(number, page)| is_used(&page).then_some(number))
                .collect(),
            states: kept().map(|one| one.state).collect(),
            links: kept().map(|one| AtomicU32::new(one.links.into())).collect(),
        }
    }

    /// The index of an inode among those that are kept.
    fn slot(&self, index: usize) -> Option<usize> {
        let page = u16::try_from(index / PAGE).ok()?;
        let at = match self.pages.get(usize::from(page)) {
            // Most tables are in use from their beginning on.
            Some(&there) if there == page => usize::from(page),
            _ => self.pages.binary_search(&page).ok()?,
        };
        Some(at * PAGE + index % PAGE)
    }

    fn state(&self, index: usize) -> Option<&InodeState> {
        if index >= self.count {
            return None;
        }
        let kept = self.slot(index).and_then(|slot| self.states.get(slot));
        Some(kept.unwrap_or(&InodeState::UNUSED))
    }

    /// Whether nothing is known of some of them.
    pub(super) fn are_some_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Index, state and links of the inodes in use, and of some that are not.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, InodeState, &AtomicU32)> {
        let first = |page: &u16| u32::from(*page) * PAGE as u32;
        let pages = self.pages.iter().map(first);
        let indices = pages.flat_map(|first| first..first + PAGE as u32);
        let slots = self.states.iter().zip(&self.links);
        indices
            .zip(slots)
            .map(|(index, (state, links))| (index, *state, links))
    }
}

/// All inodes, by group.
#[derive(Default)]
pub(super) struct Inodes {
    per_group: u32,
    groups: Vec<GroupInodes>,
}

/// The state of an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// There is no such inode.
    Absent,
    /// The table that it is in cannot be found or read there, which is reported of its group.
    Lost,
    /// It is in a part of the table that was never used.
    Uninitialised,
    /// It was checked.
    State(InodeState),
}

impl Inodes {
    fn position(&self, inode: InodeNumber) -> Option<(usize, usize)> {
        let index = inode.get().checked_sub(1)?;
        let group = (index / self.per_group.max(1)) as usize;
        Some((group, (index % self.per_group.max(1)) as usize))
    }

    pub(super) fn state(&self, inode: InodeNumber) -> Known {
        let Some((group, index)) = self.position(inode) else {
            return Known::Absent;
        };
        let Some(group) = self.groups.get(group) else {
            return Known::Absent;
        };
        let is_lost = u32::try_from(index).is_ok_and(|index| group.lost.contains(&index));
        match group.state(index) {
            Some(state) if state.is_used() || !is_lost => Known::State(*state),
            _ if is_lost => Known::Lost,
            _ => Known::Uninitialised,
        }
    }

    /// Counts a name that leads to an inode.
    pub(super) fn link(&self, inode: InodeNumber) {
        if let Some((group, index)) = self.position(inode)
            && let Some(group) = self.groups.get(group)
            && let Some(links) = group.slot(index).and_then(|slot| group.links.get(slot))
        {
            links.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether nothing is known of some inodes of some group.
    pub(super) fn are_some_lost(&self) -> bool {
        self.groups.iter().any(GroupInodes::are_some_lost)
    }

    /// The inodes of a group.
    pub(super) fn group(&self, group: GroupNumber) -> &GroupInodes {
        &self.groups[group.get() as usize]
    }
}

/// A directory, for pass 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub(super) inode: u32,
    pub(super) generation: u32,
    /// The number of its blocks, by its size.
    pub(super) blocks: u32,
    /// The index of its first run in [`Directories::runs`].
    pub(super) first_run: u32,
    /// The number of its runs.
    pub(super) runs: u32,
    pub(super) is_indexed: bool,
    pub(super) is_encrypted: bool,
    pub(super) folds_case: bool,
    pub(super) is_inline: bool,
}

impl Directory {
    /// How it compares and hashes names. Encrypted names are not folded without the key.
    pub(super) fn naming(&self) -> Naming {
        if self.folds_case && !self.is_encrypted {
            Naming::Folded
        } else {
            Naming::Exact
        }
    }
}

/// Contiguous blocks of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryRun {
    pub(super) start: u64,
    pub(super) logical: u32,
    pub(super) length: u32,
}

/// All directories by inode, and their runs.
#[derive(Default)]
pub(super) struct Directories {
    pub(super) list: Vec<Directory>,
    pub(super) runs: Vec<DirectoryRun>,
}

impl Directories {
    /// The index of a directory in the list.
    pub(super) fn find(&self, inode: InodeNumber) -> Option<usize> {
        self.list
            .binary_search_by_key(&inode.get(), |directory| directory.inode)
            .ok()
    }

    /// The runs of a directory, in order.
    pub(super) fn runs_of(&self, directory: &Directory) -> &[DirectoryRun] {
        let first = directory.first_run as usize;
        &self.runs[first..first + directory.runs as usize]
    }
}

/// The numbers of inodes in use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) inodes: u64,
}

/// The results of one thread.
#[derive(Default)]
pub(super) struct Gathered {
    buffer: Vec<u8>,
    groups: Vec<(u32, GroupInodes)>,
    pub(super) directories: Directories,
    pub(super) counts: Counts,
    pub(super) usage: Usage,
}

/// Runs the pass.
pub(super) fn examine(
    examination: &Examination,
    workers: &Workers<'_>,
) -> (Inodes, Directories, Counts, Usage) {
    let geometry = &examination.volume.geometry;
    let gathered = workers.each(
        Pass::Inodes,
        geometry.group_count,
        Gathered::default,
        |gathered, group| examine_group(examination, gathered, GroupNumber(group)),
    );
    let mut inodes = Inodes {
        per_group: geometry.inodes_per_group,
        groups: Vec::new(),
    };
    let groups = examination.groups.iter().map(|group| GroupInodes {
        lost: match group.has_table {
            true => 0..0,
            false => 0..geometry.inodes_per_group,
        },
        ..GroupInodes::default()
    });
    inodes.groups.extend(groups);
    let mut directories = Directories::default();
    let mut counts = Counts::default();
    let mut usage = Usage::default();
    for mut one in gathered {
        for (group, found) in one.groups {
            inodes.groups[group as usize] = found;
        }
        let offset = u32::try_from(directories.runs.len()).unwrap_or(u32::MAX);
        directories.runs.append(&mut one.directories.runs);
        let moved = one.directories.list.into_iter().map(|directory| Directory {
            first_run: directory.first_run + offset,
            ..directory
        });
        directories.list.extend(moved);
        counts.files += one.counts.files;
        counts.directories += one.counts.directories;
        counts.inodes += one.counts.inodes;
        usage.join(one.usage);
    }
    directories
        .list
        .sort_unstable_by_key(|directory| directory.inode);
    (inodes, directories, counts, usage)
}

fn examine_group(examination: &Examination, gathered: &mut Gathered, number: GroupNumber) {
    let count = in_use(examination, number);
    if count == 0 {
        return;
    }
    let geometry = &examination.volume.geometry;
    let table = examination.groups[number.get() as usize].inode_table;
    let (block_size, inode_size) = (geometry.block_size, usize::from(geometry.inode_size));
    let per_block = geometry.inodes_per_block();
    let mut found = Vec::new();
    let mut buffer = std::mem::take(&mut gathered.buffer);
    let mut done = 0;
    let mut lost = 0..0;
    while let Some(piece) = next_piece(examination, number, done..count.div_ceil(per_block)) {
        found.resize(count as usize, Examined::default());
        buffer.resize(piece.len() * block_size as usize, 0);
        let start = BlockNumber(table + u64::from(piece.start));
        let unread = read_blocks(examination, number, start, &mut buffer);
        let blocks = buffer.chunks_exact(block_size as usize);
        for (block, bytes) in piece.clone().zip(blocks) {
            let indices = block * per_block..count.min((block + 1) * per_block);
            if unread.contains(&(table + u64::from(block))) {
                lost = if lost.is_empty() {
                    indices
                } else {
                    lost.start..indices.end
                };
                continue;
            }
            for (slot, index) in bytes.chunks_exact(inode_size).zip(indices) {
                let Some(inode) = geometry.inode_at(number, index) else {
                    break;
                };
                found[index as usize] = inode::examine(examination, gathered, inode, slot);
            }
        }
        done = piece.end;
    }
    gathered.buffer = buffer;
    let found = GroupInodes::of(count, &found, lost);
    gathered.groups.push((number.get(), found));
}

/// The first of these blocks of a group's table that are to be read at once.
fn next_piece(
    examination: &Examination,
    group: GroupNumber,
    blocks: Range<u32>,
) -> Option<Range<u32>> {
    let volume = &examination.volume;
    let table = examination.groups[group.get() as usize].inode_table;
    let mut first = blocks.start;
    // The first group is small beside all others, and not to be in use is wrong for some inodes.
    if group != GroupNumber(0) {
        let start = BlockNumber(table + u64::from(first));
        let data = volume.first_with_data(start, blocks.len() as u64)?;
        first += u32::try_from(data.get() - start.get()).expect("it is one of these blocks");
    }
    let at_once = (CHUNK as u32 / volume.geometry.block_size).max(1);
    (first < blocks.end).then(|| first..blocks.end.min(first.saturating_add(at_once)))
}

/// Reads a piece of a table. If that fails, reads it block by block; returns the blocks that cannot
/// be read.
fn read_blocks(
    examination: &Examination,
    group: GroupNumber,
    start: BlockNumber,
    into: &mut [u8],
) -> BTreeSet<u64> {
    let volume = &examination.volume;
    let mut unread = BTreeSet::new();
    if volume.read(start, into).is_ok() {
        return unread;
    }
    for (block, bytes) in (start.get()..).zip(into.chunks_exact_mut(volume.block_size())) {
        if let Err(error) = volume.read(BlockNumber(block), bytes) {
            unread.insert(block);
            examination.claims.leave_unknown();
            let place = Place::group(group).block(BlockNumber(block));
            let text = || format!("inode table: {error}");
            examination.findings.add(Kind::Unreadable, place, text);
        }
    }
    unread
}

/// The number of inodes of a group to check: as many as its descriptor counts as used, or all if
/// its bitmap has a later one in use.
fn in_use(examination: &Examination, number: GroupNumber) -> u32 {
    let volume = &examination.volume;
    let group = &examination.groups[number.get() as usize];
    let admitted = volume.table_in_use(group);
    let all = volume.geometry.inodes_per_group;
    if !group.has_table
        || admitted == all
        || volume.is_inode_uninit(group)
        || !group.has_inode_bitmap
    {
        return admitted;
    }
    let Ok(bits) = volume.block(BlockNumber(group.inode_bitmap)) else {
        return admitted;
    };
    match bitmap::next_one(&bits, admitted, all) {
        None => admitted,
        Some(bit) => {
            let inode = volume.geometry.inode_at(number, bit);
            let place = Place {
                inode,
                ..Place::group(number)
            };
            examination.findings.add(Kind::TableUnused, place, || {
                format!(
                    "the descriptor counts {admitted} inodes as used, but the bitmap has a later one \
                     in use"
                )
            });
            all
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Examined, GroupInodes, InodeState, PAGE};

    #[test]
    fn pages_without_inodes_in_use_are_not_kept() {
        let mut found = vec![Examined::default(); 10 * PAGE + 5];
        let used = [3, 4 * PAGE + 7, 10 * PAGE + 4];
        for (links, index) in (1..).zip(used) {
            found[index] = Examined {
                state: InodeState::used(1),
                links,
            };
        }
        let count = u32::try_from(found.len()).expect("small");
        let group = GroupInodes::of(count, &found, 0..0);
        assert_eq!(group.states.len(), 2 * PAGE + 5);
        for (index, one) in found.iter().enumerate() {
            assert_eq!(group.state(index), Some(&one.state), "{index}");
        }
        assert_eq!(group.state(found.len()), None);
        let kept = group.kept().filter(|(_, state, _)| state.is_used());
        let kept =
            kept.map(|(index, _, links)| (index as usize, links.load(super::Ordering::Relaxed)));
        assert!(kept.eq([(used[0], 1), (used[1], 2), (used[2], 3)]));

        let group = GroupInodes::of(count, &[], 0..0);
        assert_eq!((group.states.len(), group.links.len()), (0, 0));
        assert_eq!(group.state(found.len() - 1), Some(&InodeState::UNUSED));
        assert_eq!(group.state(found.len()), None);
    }
}
