//! The inode of bad blocks, which the device cannot store.
//!
//! No file may use its blocks. Metadata on one of them is an error, except for copies of metadata
//! and for parts of inode tables without inodes in use, where it does no harm yet.

use std::ops::Range;

use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::Examination;
use super::catalogue::Kind;
use super::descriptors::{MetadataKind, MetadataRun, metadata_runs};
use super::findings::Place;
use super::mapping::Collector;

/// Its number.
pub(super) const NUMBER: InodeNumber = InodeNumber(1);
/// The offset of `i_links_count` (16 bits) in an inode's slot.
const LINKS_AT: usize = 0x1A;

/// The inode, unless it is a file with links.
pub(super) fn list(examination: &Examination) -> Option<Inode> {
    let inode = examination.volume.inode(&examination.groups, NUMBER).ok()?;
    (inode.links == 0).then_some(inode)
}

/// Claims the blocks, and reports those that are needed for metadata. Files claim their blocks
/// later, so a block that a file shares with the list is detected.
pub(super) fn claim(examination: &Examination) {
    let Some(inode) = list(examination) else {
        return;
    };
    check_attribute_block(examination, &inode);
    let collected = Collector::collect(&examination.volume, NUMBER, &inode);
    let is_empty = inode.block.iter().all(|&byte| byte == 0);
    if collected.is_unread() {
        examination.claims.leave_unknown();
    }
    for (kind, block) in &collected.faults {
        match kind {
            // Nothing is listed, so nothing is lost.
            Kind::ExtentHeader if is_empty => {
                report(examination, Kind::ReservedInode, None, || {
                    "the flag of extents, and an empty map".to_owned()
                })
            }
            Kind::LimitReached => report(examination, Kind::LimitReached, None, || {
                "the list of bad blocks is too long to keep: the rest of it was not checked"
                    .to_owned()
            }),
            kind => report(examination, *kind, *block, || {
                "in the list of bad blocks".to_owned()
            }),
        }
    }
    let listed = collected.runs.iter();
    let listed = listed.map(|run| (run.start, u64::from(run.length)));
    let listed = merged(listed.collect());
    let nodes = merged(collected.nodes().map(|&node| (node, 1)).collect());
    if listed.is_empty() && nodes.is_empty() {
        return;
    }
    for run in metadata_runs(&examination.volume, &examination.groups) {
        let name = || format!("the {} of group {}", run.what.name(), run.group);
        for range in overlapping(&nodes, run.start..run.end()) {
            let block = Some(BlockNumber(range.start));
            report(examination, Kind::BlockInMetadata, block, || {
                format!("the list of bad blocks lies on {}", name())
            });
        }
        for range in overlapping(&listed, needed(examination, &run)) {
            if run.what != MetadataKind::InodeTable || has_inodes(examination, &range) {
                let block = Some(BlockNumber(range.start));
                report(examination, Kind::BlockInMetadata, block, || {
                    format!("in the list of bad blocks, and {} lies on it", name())
                });
            }
        }
    }
    for range in listed.iter().chain(&nodes) {
        let length = range.end - range.start;
        let start = BlockNumber(range.start);
        examination.claims.claim_metadata(start, length);
    }
}

/// An attribute block inside the file system is a finding about the inode, which has no attributes
/// (`special`).
fn check_attribute_block(examination: &Examination, inode: &Inode) {
    let block = inode.attribute_block;
    if block.get() != 0 && !examination.volume.contains(block, 1) {
        report(examination, Kind::BlockOutside, None, || {
            format!("attributes in block {block}")
        });
    }
}

fn report(
    examination: &Examination,
    kind: Kind,
    block: Option<BlockNumber>,
    text: impl FnOnce() -> String,
) {
    let mut place = Place::inode(NUMBER);
    place.block = block;
    examination.findings.add(kind, place, text);
}

/// Sorts runs of blocks and joins those that overlap or touch.
pub(super) fn merged(mut runs: Vec<(BlockNumber, u64)>) -> Vec<Range<u64>> {
    runs.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (start, length) in runs {
        let end = start.get().saturating_add(length);
        match ranges.last_mut() {
            Some(last) if last.end >= start.get() => last.end = last.end.max(end),
            _ => ranges.push(start.get()..end),
        }
    }
    ranges
}

/// The parts of sorted ranges that are within another range.
pub(super) fn overlapping(
    ranges: &[Range<u64>],
    within: Range<u64>,
) -> impl Iterator<Item = Range<u64>> {
    let first = ranges.partition_point(|range| range.end <= within.start);
    let behind = ranges[first..].iter();
    behind
        .map(move |range| range.start.max(within.start)..range.end.min(within.end))
        .take_while(|range| range.start < range.end)
}

/// The part of a metadata run that cannot be replaced: of superblock and descriptors only the
/// primary ones, without the blocks reserved for growth.
fn needed(examination: &Examination, run: &MetadataRun) -> Range<u64> {
    let all = run.start..run.end();
    if run.what != MetadataKind::Descriptors {
        return all;
    }
    let descriptors = u64::from(examination.volume.geometry.descriptor_blocks);
    match run.group {
        0 => run.start..run.end().min(run.start + 1 + descriptors),
        _ => run.start..run.start,
    }
}

/// Whether these blocks of a table contain inodes in use. A block that cannot be read counts as
/// containing none.
fn has_inodes(examination: &Examination, blocks: &Range<u64>) -> bool {
    let volume = &examination.volume;
    let inode_size = usize::from(volume.geometry.inode_size);
    blocks.clone().any(|block| {
        let bytes = volume.block(BlockNumber(block)).unwrap_or_default();
        let mut slots = bytes.chunks_exact(inode_size);
        slots.any(|slot| slot[LINKS_AT..LINKS_AT + 2] != [0; 2])
    })
}
