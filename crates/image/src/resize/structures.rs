//! The blocks that hold the file system's own structures: superblock and descriptor copies, blocks
//! reserved for descriptors, bitmaps, inode tables; and those of the journal and the orphan file.
//!
//! With `flex_bg` bitmaps and tables of a group may be in any other group, so the descriptors of
//! all groups are needed to know what a group holds. Structures that overlap are corruption:
//! releasing or writing one would destroy the other.

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::GroupDescriptor;
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber};

use crate::mkfs::Run;
use crate::mkfs::layout::metadata_runs;

/// What a user can do about a corrupt image.
pub(super) const ADVICE: &str = "`e2fsck -f` repairs it";

/// The runs of all structures, sorted and disjoint.
#[derive(Default)]
pub(super) struct Structures {
    runs: Vec<Run>,
}

impl Structures {
    /// The structures of all groups.
    ///
    /// `Corrupt`, with the group and the block, if two of them overlap.
    pub fn new(
        descriptors: &[GroupDescriptor],
        geometry: &Geometry,
    ) -> std::result::Result<Self, Corrupt> {
        let mut runs: Vec<(Run, GroupNumber, &'static str)> = Vec::new();
        for (group, descriptor) in geometry.groups().zip(descriptors) {
            let own = geometry.first_block(group).get();
            let overhead = geometry.superblock_overhead(group);
            let copies = own..own + u64::from(overhead.min(geometry.blocks_in(group)));
            let [blocks, inodes, table] = metadata_runs(descriptor, geometry);
            runs.push((copies, group, "superblock and descriptors"));
            runs.push((blocks, group, "block bitmap"));
            runs.push((inodes, group, "inode bitmap"));
            runs.push((table, group, "inode table"));
        }
        runs.retain(|(run, _, _)| !run.is_empty());
        runs.sort_unstable_by_key(|(run, group, _)| (run.start, *group));
        for pair in runs.windows(2) {
            let [(one, owner, what), (other, group, also)] = pair else {
                continue;
            };
            if one.end > other.start {
                let owner = owner.get();
                let problem = format!("its {also} overlaps the {what} of group {owner}; {ADVICE}");
                return Err(Corrupt::new("group descriptor", problem)
                    .in_group(*group)
                    .in_block(BlockNumber(other.start)));
            }
        }
        let runs = runs.into_iter().map(|(run, _, _)| run).collect();
        Ok(Self { runs })
    }

    /// Adds the blocks of one of the file system's own files.
    ///
    /// `Corrupt`, with the block, if there is something else.
    pub fn add_file(
        &mut self,
        number: InodeNumber,
        runs: &[(BlockNumber, u32)],
    ) -> std::result::Result<(), Corrupt> {
        let added = runs
            .iter()
            .map(|&(start, length)| start.get()..start.get() + u64::from(length));
        self.runs.extend(added.filter(|run| !run.is_empty()));
        self.runs.sort_unstable_by_key(|run| run.start);
        let shared = self
            .runs
            .windows(2)
            .find(|pair| pair[0].end > pair[1].start);
        shared.map_or(Ok(()), |pair| {
            let problem = format!("uses blocks that hold other metadata; {ADVICE}");
            let corrupt = Corrupt::new("file of the system", problem).in_inode(number);
            Err(corrupt.in_block(BlockNumber(pair[1].start)))
        })
    }

    /// The parts of a run that are structures, in order.
    pub fn within(&self, blocks: Run) -> impl Iterator<Item = Run> + '_ {
        let first = self.runs.partition_point(|run| run.end <= blocks.start);
        self.runs[first..]
            .iter()
            .take_while(move |run| run.start < blocks.end)
            .map(move |run| run.start.max(blocks.start)..run.end.min(blocks.end))
    }
}
