//! Pass 5: compares bitmaps, counts and flags of each group with the blocks and inodes in use.

use std::ops::Range;

use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::catalogue::Kind;
use super::claims::by_group;
use super::findings::Place;
use super::inodes::Inodes;
use super::parallel::Workers;
use super::volume::Group;
use super::{Examination, Pass};

/// The maximum number of ranges that a finding names. The rest is counted.
const MAX_RANGES_NAMED: usize = 4;

/// The sums over all groups.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) used_blocks: u64,
    pub(super) free_blocks: u64,
    pub(super) free_inodes: u64,
}

/// The state of one thread.
#[derive(Default)]
struct ThreadState {
    expected: Vec<u8>,
    actual: Vec<u8>,
    totals: Totals,
}

/// Runs the pass.
pub(super) fn check(examination: &Examination, inodes: &Inodes, workers: &Workers<'_>) -> Totals {
    let volume = &examination.volume;
    let geometry = &volume.geometry;
    let threads = workers.each(
        Pass::Groups,
        geometry.group_count,
        ThreadState::default,
        |thread, group| {
            Summary {
                examination,
                number: GroupNumber(group),
                group: &examination.groups[group as usize],
            }
            .check(thread, inodes);
        },
    );
    let mut totals = Totals::default();
    for thread in threads {
        totals.free_blocks += thread.totals.free_blocks;
        totals.free_inodes += thread.totals.free_inodes;
    }
    let ratio = u64::from(geometry.blocks_per_cluster);
    totals.free_blocks *= ratio;
    let all = geometry.blocks_count - u64::from(geometry.first_data_block);
    totals.used_blocks = all.saturating_sub(totals.free_blocks);
    check_totals(examination, inodes, totals);
    totals
}

fn check_totals(examination: &Examination, inodes: &Inodes, totals: Totals) {
    let superblock = &examination.volume.superblock;
    let pairs = [
        (
            !examination.claims.is_cut_short(),
            Kind::FreeBlocksTotal,
            superblock.free_blocks,
            totals.free_blocks,
        ),
        (
            !inodes.are_some_lost(),
            Kind::FreeInodesTotal,
            u64::from(superblock.free_inodes),
            totals.free_inodes,
        ),
    ];
    for (is_known, kind, stored, found) in pairs {
        if is_known && stored != found {
            examination.findings.add(kind, Place::whole(), || {
                format!("counts {stored}, has {found}")
            });
        }
    }
}

struct Summary<'a> {
    examination: &'a Examination,
    number: GroupNumber,
    group: &'a Group,
}

impl Summary<'_> {
    fn report(&self, kind: Kind, text: impl FnOnce() -> String) {
        let place = Place::group(self.number);
        self.examination.findings.add(kind, place, text);
    }

    fn check(&self, thread: &mut ThreadState, inodes: &Inodes) {
        if !self.group.is_known {
            return;
        }
        self.check_blocks(thread);
        self.check_inodes(thread, inodes);
    }

    /// Reads a bitmap. False, with a finding, if it cannot be read.
    fn read(&self, what: &str, block: u64, into: &mut Vec<u8>) -> bool {
        let volume = &self.examination.volume;
        into.resize(volume.block_size(), 0);
        let read = volume.read(BlockNumber(block), into);
        if let Err(error) = &read {
            let place = Place::group(self.number).block(BlockNumber(block));
            let text = || format!("{what} bitmap: {error}");
            self.examination.findings.add(Kind::Unreadable, place, text);
        }
        read.is_ok()
    }

    fn check_blocks(&self, thread: &mut ThreadState) {
        let volume = &self.examination.volume;
        let geometry = &volume.geometry;
        let clusters = geometry.clusters_in(self.number);
        if self.examination.claims.is_cut_short() {
            // The blocks in use are not known.
            thread.totals.free_blocks += u64::from(self.group.free_clusters);
            return;
        }
        let used = self
            .examination
            .claims
            .with(self.number, super::claims::GroupClaims::count);
        let free = clusters.saturating_sub(used);
        thread.totals.free_blocks += u64::from(free);
        if self.group.free_clusters != free && !self.group.is_from_backup {
            let stored = self.group.free_clusters;
            self.report(Kind::GroupFreeBlocks, || {
                format!("counts {stored} free, has {free}")
            });
        }
        if volume.is_block_uninit(self.group) {
            let own = self.own_metadata();
            if used <= own {
                return;
            }
            // A backup may be from before the bitmap was written.
            if !self.group.is_from_backup {
                return self.report(Kind::UninitGroupUsed, || {
                    format!("{used} blocks are in use, {own} of them its own metadata")
                });
            }
        }
        let block = self.group.block_bitmap;
        if !self.group.has_block_bitmap || !self.read("block", block, &mut thread.actual) {
            return;
        }
        if let Some(seed) = volume.seed {
            let per_group = geometry.clusters_per_group;
            let made = bitmap::block_bitmap_checksum(seed, &thread.actual, per_group);
            let stored = self.group.block_bitmap_checksum;
            self.check_checksum(Kind::BlockBitmapChecksum, stored, made);
        }
        thread.expected.clear();
        thread.expected.resize(volume.block_size(), 0);
        let expected = &mut thread.expected;
        self.examination.claims.with(self.number, |claims| {
            claims.pieces(0..clusters, |run| bitmap::set_range(expected, run));
        });
        self.check_padding("block", &thread.actual, clusters);
        self.compare(
            thread,
            clusters,
            [Kind::BlockMarkedFree, Kind::BlockMarkedUsed],
        );
    }

    /// The number of the group's clusters that hold its own metadata, which alone may be in use if
    /// its bitmap was never written.
    fn own_metadata(&self) -> u32 {
        let volume = &self.examination.volume;
        let geometry = &volume.geometry;
        let mut own = Vec::new();
        let mut add = |start: u64, length: u32| {
            own.extend(
                by_group(geometry, BlockNumber(start), u64::from(length))
                    .filter(|piece| piece.group == self.number)
                    .map(|piece| piece.clusters),
            );
        };
        let first = geometry.first_block(self.number).get();
        add(first, geometry.superblock_overhead(self.number));
        add(self.group.block_bitmap, 1);
        add(self.group.inode_bitmap, 1);
        add(self.group.inode_table, geometry.inode_table_blocks);
        covered(own)
    }

    fn check_inodes(&self, thread: &mut ThreadState, inodes: &Inodes) {
        let volume = &self.examination.volume;
        let geometry = &volume.geometry;
        let per_group = geometry.inodes_per_group;
        if inodes.group(self.number).are_some_lost() {
            // The inodes in use are not known.
            return;
        }
        thread.expected.clear();
        thread.expected.resize(volume.block_size(), 0);
        let mut directories = 0;
        for (index, state, _) in inodes.group(self.number).kept() {
            if state.is_used() {
                bitmap::set(&mut thread.expected, index);
                directories += u32::from(state.is_directory());
            }
        }
        if let Some(before) = geometry
            .first_inode
            .get()
            .checked_sub(1 + self.number.get().saturating_mul(per_group))
        {
            bitmap::set_range(&mut thread.expected, 0..before.min(per_group));
        }
        let free = bitmap::count_zeros(&thread.expected, 0..per_group);
        thread.totals.free_inodes += u64::from(free);
        let counts = [
            (Kind::GroupFreeInodes, self.group.free_inodes, free, "free"),
            (
                Kind::GroupDirectories,
                self.group.used_directories,
                directories,
                "directories",
            ),
        ];
        for (kind, stored, found, what) in counts {
            if stored != found && !self.group.is_from_backup {
                self.report(kind, || format!("counts {stored} {what}, has {found}"));
            }
        }
        let block = self.group.inode_bitmap;
        // A backup may be from before the bitmap was written.
        let is_outdated = self.group.is_from_backup && free < per_group;
        if (volume.is_inode_uninit(self.group) && !is_outdated)
            || !self.group.has_inode_bitmap
            || !self.read("inode", block, &mut thread.actual)
        {
            return;
        }
        if let Some(seed) = volume.seed {
            let made = bitmap::inode_bitmap_checksum(seed, &thread.actual, per_group);
            let stored = self.group.inode_bitmap_checksum;
            self.check_checksum(Kind::InodeBitmapChecksum, stored, made);
        }
        self.check_padding("inode", &thread.actual, per_group);
        self.compare(
            thread,
            per_group,
            [Kind::InodeMarkedFree, Kind::InodeMarkedUsed],
        );
    }

    fn check_checksum(&self, kind: Kind, stored: u32, made: u32) {
        let geometry = &self.examination.volume.geometry;
        if !self.group.is_from_backup && !GroupDescriptor::matches(stored, made, geometry) {
            self.report(kind, || {
                format!("checksum is {stored:#010X}, its bits make {made:#010X}")
            });
        }
    }

    fn check_padding(&self, what: &str, bits: &[u8], valid: u32) {
        if !bitmap::has_padding(bits, valid) {
            self.report(Kind::BitmapPadding, || {
                format!("{what} bitmap, behind bit {valid}")
            });
        }
    }

    /// Reports what is in use and marked as free, and vice versa.
    fn compare(&self, thread: &ThreadState, valid: u32, kinds: [Kind; 2]) {
        let whole = (valid / 8) as usize;
        if valid.is_multiple_of(8) && thread.expected[..whole] == thread.actual[..whole] {
            return;
        }
        let [marked_free, marked_used] = kinds;
        self.one_sided(&thread.expected, &thread.actual, valid, marked_free);
        self.one_sided(&thread.actual, &thread.expected, valid, marked_used);
    }

    /// Reports the bits that are set on one side only.
    fn one_sided(&self, set: &[u8], clear: &[u8], valid: u32, kind: Kind) {
        let bits: Vec<u8> = set
            .iter()
            .zip(clear)
            .map(|(set, clear)| set & !clear)
            .collect();
        let mut ranges: Vec<Range<u32>> = Vec::new();
        let (mut count, mut at) = (0, 0);
        while let Some(start) = bitmap::next_one(&bits, at, valid) {
            let end = bitmap::next_zero(&bits, start, valid).unwrap_or(valid);
            count += end - start;
            if ranges.len() < MAX_RANGES_NAMED {
                ranges.push(start..end);
            }
            at = end;
        }
        if count > 0 {
            let place = self.place_of(kind, ranges[0].start);
            self.examination
                .findings
                .add(kind, place, || self.describe(kind, &ranges, count));
        }
    }

    /// The number of the block or inode of a bit.
    fn number_of(&self, kind: Kind, bit: u32) -> u64 {
        let geometry = &self.examination.volume.geometry;
        if is_about_blocks(kind) {
            let blocks = u64::from(bit) * u64::from(geometry.blocks_per_cluster);
            geometry.first_block(self.number).get() + blocks
        } else {
            let before = u64::from(self.number.get()) * u64::from(geometry.inodes_per_group);
            before + u64::from(bit) + 1
        }
    }

    fn place_of(&self, kind: Kind, bit: u32) -> Place {
        let number = self.number_of(kind, bit);
        let mut place = Place::group(self.number);
        if is_about_blocks(kind) {
            place.block = Some(BlockNumber(number));
        } else {
            place.inode = u32::try_from(number).ok().map(InodeNumber);
        }
        place
    }

    fn describe(&self, kind: Kind, ranges: &[Range<u32>], count: u32) -> String {
        let shown: Vec<String> = ranges
            .iter()
            .map(|range| {
                let (first, last) = (
                    self.number_of(kind, range.start),
                    self.number_of(kind, range.end - 1),
                );
                if first == last {
                    format!("{first}")
                } else {
                    format!("{first}-{last}")
                }
            })
            .collect();
        let named: u32 = ranges.iter().map(|range| range.end - range.start).sum();
        let more = if named < count { ", ..." } else { "" };
        let what = if is_about_blocks(kind) {
            "blocks"
        } else {
            "inodes"
        };
        format!("{what} {}{more} ({count})", shown.join(", "))
    }
}

fn is_about_blocks(kind: Kind) -> bool {
    matches!(kind, Kind::BlockMarkedFree | Kind::BlockMarkedUsed)
}

/// The number of clusters that the ranges cover together.
fn covered(mut ranges: Vec<Range<u32>>) -> u32 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut count, mut end) = (0, 0);
    for range in ranges {
        let start = range.start.max(end);
        count += range.end.saturating_sub(start);
        end = end.max(range.end);
    }
    count
}
