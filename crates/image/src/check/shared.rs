//! The end of pass 1: finds the users of blocks that were claimed more than once.
//!
//! If there are such blocks, every map is walked once more and its runs are looked up among them.
//! The numbers of map blocks and of blocks that are looked up are bounded.
//!
//! With the feature `shared_blocks` files may share blocks, and e2fsck does not check this either.

use std::collections::{BTreeMap, HashSet};

use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::indirect;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::bad_blocks;
use super::budget::Budget;
use super::catalogue::Kind;
use super::claims::{self, GroupClaims, by_group};
use super::descriptors::metadata_runs;
use super::findings::Place;
use super::inode::{InodeSubject, has_map};
use super::inodes::Inodes;
use super::mapping::{self, Run, Visitor};
use super::parallel::Workers;
use super::{Examination, Pass, special};

/// The maximum number of uses that one thread keeps.
const MAX_USES: usize = 1 << 16;
/// The maximum number of map blocks that all threads together read.
const MAX_NODES: u64 = 1 << 22;
/// The maximum number of inodes that a finding names.
const MAX_INODES_NAMED: usize = 8;

/// Shared blocks, and one inode that uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    start: u64,
    end: u64,
    inode: u32,
}

/// The bounds of the search, for all threads together.
struct Limits {
    /// Map blocks that may be read.
    nodes: Budget,
    /// Blocks that may be looked up.
    blocks: Budget,
}

/// Metadata of the file system: its blocks, and its name.
struct Metadata {
    start: u64,
    end: u64,
    name: String,
}

/// Finds the users of shared blocks, and reports them.
pub(super) fn report(examination: &Examination, inodes: &Inodes, workers: &Workers<'_>) {
    let features = &examination.volume.geometry.features;
    let again = examination.claims.again();
    if again.is_empty() || features.has_read_only_compat(ReadOnlyCompat::SHARED_BLOCKS) {
        return;
    }
    let limits = Limits {
        nodes: Budget::new(MAX_NODES),
        blocks: claims::budget(examination.blocks_to_read),
    };
    let count = examination.volume.geometry.group_count;
    let found = workers.each(Pass::SharedBlocks, count, Vec::new, |uses, group| {
        search(
            examination,
            inodes,
            GroupNumber(group),
            &again,
            &limits,
            uses,
        );
    });
    let mut uses = found.concat();
    if let Some(inode) = bad_blocks::list(examination) {
        let mut finder = Finder {
            examination,
            again: &again,
            limits: &limits,
            number: bad_blocks::NUMBER,
            uses: &mut uses,
            nodes: HashSet::new(),
        };
        mapping::walk(&examination.volume, bad_blocks::NUMBER, &inode, &mut finder);
    }
    uses.sort_unstable();
    let metadata = metadata(examination, &again);
    let mut ahead = &metadata[..];
    for shared in contiguous(examination, &again) {
        // Both lists are sorted by their starts, so metadata that ends before this run cannot
        // overlap a later one.
        let passed = ahead.iter().take_while(|one| one.end <= shared.start);
        ahead = &ahead[passed.count()..];
        let lies_on = ahead.first().filter(|one| one.start < shared.end);
        report_one(examination, &shared, &uses, lies_on);
    }
}

fn search(
    examination: &Examination,
    inodes: &Inodes,
    group: GroupNumber,
    again: &BTreeMap<u32, GroupClaims>,
    limits: &Limits,
    uses: &mut Vec<Use>,
) {
    let volume = &examination.volume;
    for (index, state, _) in inodes.group(group).kept() {
        let Some(number) = volume
            .geometry
            .inode_at(group, index)
            .filter(|_| state.is_used())
        else {
            continue;
        };
        let Ok(inode) = volume.inode(&examination.groups, number) else {
            continue;
        };
        let mut finder = Finder {
            examination,
            again,
            limits,
            number,
            uses,
            nodes: HashSet::new(),
        };
        finder.look(&inode);
    }
}

struct Finder<'a, 'b> {
    examination: &'a Examination,
    again: &'a BTreeMap<u32, GroupClaims>,
    limits: &'a Limits,
    number: InodeNumber,
    uses: &'b mut Vec<Use>,
    nodes: HashSet<BlockNumber>,
}

impl Finder<'_, '_> {
    fn look(&mut self, inode: &Inode) {
        let subject = InodeSubject {
            examination: self.examination,
            number: self.number,
            inode,
            kind: inode.file_type(),
        };
        if self.number == InodeNumber::RESIZE {
            // The map contains copies of descriptors, which are metadata and not data.
            let map = indirect::entry(&inode.block, special::DOUBLE_INDIRECT);
            self.note(BlockNumber(u64::from(map)), 1);
        } else if has_map(&subject) {
            mapping::walk(&self.examination.volume, self.number, inode, self);
        }
        if inode.attribute_block.get() != 0 {
            self.note(inode.attribute_block, 1);
        }
    }

    fn note(&mut self, start: BlockNumber, length: u64) {
        if !self.limits.blocks.take(length) {
            return;
        }
        let geometry = &self.examination.volume.geometry;
        for piece in by_group(geometry, start, length) {
            let Some(claims) = self.again.get(&piece.group.get()) else {
                continue;
            };
            let first = geometry.first_block(piece.group).get();
            let ratio = u64::from(geometry.blocks_per_cluster);
            claims.pieces(piece.clusters, |run| {
                if self.uses.len() < MAX_USES {
                    self.uses.push(Use {
                        start: first + u64::from(run.start) * ratio,
                        end: first + u64::from(run.end) * ratio,
                        inode: self.number.get(),
                    });
                }
            });
        }
    }
}

impl Visitor for Finder<'_, '_> {
    fn node(&mut self, block: BlockNumber) -> bool {
        self.note(block, 1);
        self.limits.nodes.take(1) && self.nodes.insert(block)
    }

    fn run(&mut self, run: Run) {
        self.note(run.start, u64::from(run.length));
    }

    fn fault(&mut self, _: Kind, _: Option<BlockNumber>, _: String) {}

    fn flaw(&mut self, _: Kind, _: Option<BlockNumber>, _: String) {}
}

/// Runs of shared blocks.
fn contiguous(
    examination: &Examination,
    again: &BTreeMap<u32, GroupClaims>,
) -> Vec<std::ops::Range<u64>> {
    let geometry = &examination.volume.geometry;
    let ratio = u64::from(geometry.blocks_per_cluster);
    let mut all = Vec::new();
    for (group, claims) in again {
        let group = GroupNumber(*group);
        let first = geometry.first_block(group).get();
        claims.pieces(0..geometry.clusters_per_group, |run| {
            all.push(first + u64::from(run.start) * ratio..first + u64::from(run.end) * ratio);
        });
    }
    all
}

/// The metadata that uses shared blocks, sorted.
fn metadata(examination: &Examination, again: &BTreeMap<u32, GroupClaims>) -> Vec<Metadata> {
    let geometry = &examination.volume.geometry;
    let mut found = Vec::new();
    for run in metadata_runs(&examination.volume, &examination.groups) {
        let length = u64::from(run.length);
        let mut is_shared = false;
        for piece in by_group(geometry, BlockNumber(run.start), length) {
            if let Some(claims) = again.get(&piece.group.get()) {
                claims.pieces(piece.clusters, |_| is_shared = true);
            }
        }
        if is_shared {
            found.push(Metadata {
                start: run.start,
                end: run.end(),
                name: format!("the {} of group {}", run.what.name(), run.group),
            });
        }
    }
    found.sort_unstable_by_key(|one| one.start);
    found
}

fn report_one(
    examination: &Examination,
    shared: &std::ops::Range<u64>,
    uses: &[Use],
    lies_on: Option<&Metadata>,
) {
    // A use is within one run of shared blocks, so it begins in it.
    let first = uses.partition_point(|one| one.start < shared.start);
    let own = uses[first..]
        .iter()
        .take_while(|one| one.start < shared.end);
    let users: Vec<u32> = own.map(|one| one.inode).collect();
    let mut inodes = users.clone();
    inodes.sort_unstable();
    inodes.dedup();
    let blocks = if shared.end - shared.start == 1 {
        format!("block {}", shared.start)
    } else {
        format!("blocks {}-{}", shared.start, shared.end - 1)
    };
    let mut place = Place::whole().block(BlockNumber(shared.start));
    place.inode = inodes.first().copied().map(InodeNumber);
    match lies_on {
        Some(Metadata { name, .. }) => {
            examination.findings.add(Kind::BlockInMetadata, place, || {
                format!("{blocks}: {name}, and {}", listed(&inodes))
            })
        }
        None => examination.findings.add(Kind::BlockShared, place, || {
            let times = if inodes.len() == 1 {
                " more than once"
            } else {
                ""
            };
            format!("{blocks}: used by {}{times}", listed(&inodes))
        }),
    }
}

fn listed(inodes: &[u32]) -> String {
    let named: Vec<String> = inodes
        .iter()
        .take(MAX_INODES_NAMED)
        .map(|inode| format!("inode {inode}"))
        .collect();
    match (named.is_empty(), inodes.len().checked_sub(MAX_INODES_NAMED)) {
        (true, _) => "files".to_owned(),
        (_, Some(more @ 1..)) => format!("{} and {more} more", named.join(", ")),
        _ => named.join(", "),
    }
}
