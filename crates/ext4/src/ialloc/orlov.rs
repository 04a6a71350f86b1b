//! The preferred group for a new inode, by Grigory Orlov's algorithm for directories.
//!
//! Files that are used together should be close together, and other files should leave room for
//! their growth. A top-level directory (in the root, or in a directory with the flag for it,
//! `chattr +T`) begins a new region: it is placed in a flexible group with at least average free
//! inodes and blocks, and few directories. Any other directory stays in its parent's flexible group
//! while that is not much worse than the average, in the member with the fewest directories: files
//! are placed near their directory, so threads that create files in different directories use
//! different groups. (Where inode numbers are claimed under locks, as in ext4, it is the first
//! member with room, as there: many directories' files meet in one group.) A file is placed in its
//! parent's group or, if that is full, in one that depends on the parent, at distances that double.
//!
//! All numbers are hints; a stale one costs distance, never correctness.

use pext4_ondisk::{GroupNumber, InodeNumber};
use pext4_sync::atomic::Ordering;
use pext4_sync::hash::spread;

use super::Placement;
use crate::groups::Groups;
use crate::options::InodeBits;

/// The maximum number of flexible groups that a search for a region examines.
const MAX_REGIONS: u32 = 64;
/// The number of groups that a search tries without waiting before it begins to wait.
pub(super) const NEAR: usize = 16;

/// The sums of a flexible group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Region {
    free_inodes: u64,
    free_clusters: u64,
    directories: u64,
}

/// The volume's averages for one flexible group, and the tolerated limits.
struct Limits {
    average: Region,
    least_inodes: u64,
    least_clusters: u64,
    most_directories: u64,
}

impl Groups {
    /// The group in which the search for an inode in the directory `parent` begins.
    pub(super) fn group_for(&self, parent: InodeNumber, placement: Placement) -> GroupNumber {
        let home = self.home_of(parent);
        match placement {
            Placement::File => self.for_file(parent, home),
            Placement::Directory => self.for_directory(home),
            Placement::TopDirectory => self.for_top_directory(),
        }
    }

    /// The group of an inode; group 0 if there is no such inode.
    pub(super) fn home_of(&self, inode: InodeNumber) -> GroupNumber {
        let place = self.store.geometry.inode_group(inode);
        place.map_or(GroupNumber(0), |(group, _)| group)
    }

    /// All groups in circular order from `start` on.
    pub(super) fn order_from(
        &self,
        start: GroupNumber,
    ) -> impl Iterator<Item = GroupNumber> + use<> {
        let (count, start) = (self.count(), start.get());
        (start..count).chain(0..start).map(GroupNumber)
    }

    fn for_file(&self, parent: InodeNumber, home: GroupNumber) -> GroupNumber {
        if self.has_room(home) {
            return home;
        }
        let count = u64::from(self.count());
        let hashed = u64::from(home.get()) + u64::from(parent.get());
        let steps = (0..u64::BITS)
            .map(|power| 1u64 << power)
            .take_while(|&step| step < count);
        let mut at = hashed % count;
        let tried = std::iter::once(0).chain(steps).map(|step| {
            at = (at + step) % count;
            GroupNumber(u32::try_from(at).expect("below the number of groups"))
        });
        tried
            .into_iter()
            .find(|&group| self.has_room(group))
            .unwrap_or(home)
    }

    fn has_room(&self, group: GroupNumber) -> bool {
        let info = self.info(group);
        info.free_inodes_hint() > 0 && info.free_hint() > 0
    }

    fn for_top_directory(&self) -> GroupNumber {
        let regions = self.regions();
        let limits = self.limits();
        // Different shards and calls begin in different regions.
        let first = spread(u64::from(self.hints.next_spread())) % regions;
        let fewest = (0..regions.min(MAX_REGIONS))
            .map(|step| (first + step) % regions)
            .map(|region| (region, self.region(region)))
            .filter(|(_, has)| {
                has.free_inodes >= limits.average.free_inodes.max(1)
                    && has.free_clusters >= limits.average.free_clusters
            })
            .min_by_key(|(_, has)| has.directories);
        self.best_member(fewest.map_or(first, |(region, _)| region))
    }

    fn for_directory(&self, home: GroupNumber) -> GroupNumber {
        let regions = self.regions();
        let limits = self.limits();
        let first = home.get() / self.store.geometry.groups_per_flex;
        let acceptable = (0..regions.min(MAX_REGIONS))
            .map(|step| (first + step) % regions)
            .find(|&region| {
                let has = self.region(region);
                has.free_inodes >= limits.least_inodes
                    && has.free_clusters >= limits.least_clusters
                    && has.directories < limits.most_directories
            });
        self.best_member(acceptable.unwrap_or(first))
    }

    /// The number of flexible groups of the volume.
    fn regions(&self) -> u32 {
        self.count().div_ceil(self.store.geometry.groups_per_flex)
    }

    fn members(&self, region: u32) -> impl Iterator<Item = GroupNumber> + use<> {
        let size = self.store.geometry.groups_per_flex;
        let first = region.saturating_mul(size);
        (first..first.saturating_add(size).min(self.count())).map(GroupNumber)
    }

    fn region(&self, region: u32) -> Region {
        self.members(region).fold(Region::default(), |sum, group| {
            let info = self.info(group);
            Region {
                free_inodes: sum.free_inodes + u64::from(info.free_inodes_hint()),
                free_clusters: sum.free_clusters + u64::from(info.free_hint()),
                directories: sum.directories
                    + u64::from(info.written.directories.load(Ordering::Relaxed)),
            }
        })
    }

    fn limits(&self) -> Limits {
        let geometry = &self.store.geometry;
        let regions = u64::from(self.regions());
        let sums = || [self.free_inodes(), self.free_clusters(), self.directories()];
        let [free_inodes, free_clusters, directories] =
            self.hints.recent_sums(sums).map(|sum| sum / regions);
        let average = Region {
            free_inodes,
            free_clusters,
            directories,
        };
        let size = u64::from(geometry.groups_per_flex);
        let inodes = u64::from(geometry.inodes_per_group) * size;
        let clusters = u64::from(geometry.clusters_per_group) * size;
        Limits {
            least_inodes: average.free_inodes.saturating_sub(inodes / 4).max(1),
            least_clusters: average.free_clusters.saturating_sub(clusters / 4),
            most_directories: average.directories + inodes / 16 + 1,
            average,
        }
    }

    /// The member of a flexible group with room and the fewest directories. Of several such
    /// members, different shards choose different ones, so that directories made at the same time
    /// are spread. In the designs of ext4, the first member with room.
    fn best_member(&self, region: u32) -> GroupNumber {
        let first = self.members(region).next().unwrap_or(GroupNumber(0));
        if self.store.options.scaling.inode_bits != InodeBits::Atomic {
            let mut members = self.members(region);
            return members.find(|&group| self.has_room(group)).unwrap_or(first);
        }
        let size = self.store.geometry.groups_per_flex.max(1);
        let own = self.hints.locality_shard().0 % size;
        let behind_own = |group: GroupNumber| (group.get() - first.get() + size - own) % size;
        self.members(region)
            .filter(|&group| self.has_room(group))
            .min_by_key(|&group| {
                let directories = self.info(group).written.directories.load(Ordering::Relaxed);
                (directories, behind_own(group))
            })
            .unwrap_or(first)
    }
}
