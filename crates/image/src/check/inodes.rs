//! Pass 1: every inode in use, and its map.
//!
//! Each thread takes group after group, reads the used part of its inode table in large pieces, and
//! checks inode after inode ([`super::inode`]). The data for later passes is kept small: for each
//! inode a byte of state and a counter of links, for each directory the location of its blocks.

use pext4_ondisk::bitmap;
use pext4_ondisk::casefold::Naming;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};
use pext4_sync::atomic::{AtomicU32, Ordering};

use super::catalogue::Kind;
use super::findings::Place;
use super::inode;
use super::parallel::Workers;
use super::quota::Usage;
use super::{Examination, Pass};

/// Bytes of an inode table that are read at a time.
const CHUNK: usize = 1 << 20;

/// The state of an inode for later passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InodeState(u8);

impl InodeState {
    const KIND: u8 = 0x07;
    const USED: u8 = 0x08;
    const VALUE: u8 = 0x10;
    const OVERFLOWN: u8 = 0x20;

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
        self.kind() == 2
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
    /// The group has no table that could be read, so nothing is known of its inodes.
    is_lost: bool,
    pub(super) states: Box<[InodeState]>,
    /// The links that the inode counts, minus the names found so far. Wraps below zero.
    pub(super) links: Box<[AtomicU32]>,
}

impl GroupInodes {
    fn of(states: Box<[InodeState]>, links: Box<[AtomicU32]>) -> Self {
        Self {
            is_lost: false,
            states,
            links,
        }
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
    /// The table that it is in cannot be found, which is reported of its group.
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
        match group.states.get(index) {
            None if group.is_lost => Known::Lost,
            None => Known::Uninitialised,
            Some(state) => Known::State(*state),
        }
    }

    /// Counts a name that leads to an inode.
    pub(super) fn link(&self, inode: InodeNumber) {
        if let Some((group, index)) = self.position(inode)
            && let Some(links) = self
                .groups
                .get(group)
                .and_then(|group| group.links.get(index))
        {
            links.fetch_sub(1, Ordering::Relaxed);
        }
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
        is_lost: !group.has_table,
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
    let group = &examination.groups[number.get() as usize];
    let (block_size, inode_size) = (geometry.block_size, usize::from(geometry.inode_size));
    let per_block = geometry.inodes_per_block();
    let blocks_at_once = (CHUNK as u32 / block_size).max(1);
    let mut states = vec![InodeState::default(); count as usize].into_boxed_slice();
    let mut links = Vec::new();
    links.resize_with(count as usize, AtomicU32::default);
    let mut buffer = std::mem::take(&mut gathered.buffer);
    for first in (0..count.div_ceil(per_block)).step_by(blocks_at_once as usize) {
        let blocks = blocks_at_once.min(count.div_ceil(per_block) - first);
        buffer.resize(blocks as usize * block_size as usize, 0);
        let start = BlockNumber(group.inode_table + u64::from(first));
        read_blocks(examination, number, start, &mut buffer);
        let from = first * per_block;
        let slots = buffer.chunks_exact(inode_size).zip(from..count);
        for (slot, index) in slots {
            let Some(inode) = geometry.inode_at(number, index) else {
                break;
            };
            let found = inode::examine(examination, gathered, inode, slot);
            states[index as usize] = found.state;
            links[index as usize] = AtomicU32::new(u32::from(found.links));
        }
    }
    gathered.buffer = buffer;
    let links = links.into_boxed_slice();
    gathered
        .groups
        .push((number.get(), GroupInodes::of(states, links)));
}

/// Reads a piece of a table. If that fails, reads it block by block; a block that cannot be read is
/// treated as zeroes.
fn read_blocks(examination: &Examination, group: GroupNumber, start: BlockNumber, into: &mut [u8]) {
    let volume = &examination.volume;
    if volume.read(start, into).is_ok() {
        return;
    }
    for (block, bytes) in (start.get()..).zip(into.chunks_exact_mut(volume.block_size())) {
        if let Err(error) = volume.read(BlockNumber(block), bytes) {
            bytes.fill(0);
            let place = Place::group(group).block(BlockNumber(block));
            let text = || format!("inode table: {error}");
            examination.findings.add(Kind::Unreadable, place, text);
        }
    }
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
                inode: inode.map(InodeNumber::get),
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
