//! Requests, and their normalisation: how many blocks to search for.
//!
//! The unit of all of it is the cluster. Mostly that is a block, and called so; where the feature
//! `bigalloc` makes it several, a file is a sequence of clusters here.
//!
//! A file that grows is likely to continue to grow, by about its current size. So the search is for
//! more blocks than requested, and the surplus is set aside for the file: it gets long extents, and
//! its next allocations find their blocks without a search. Small files get no run of their own,
//! since each would leave a gap; they are placed one after another in a run of their shard.

use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, LogicalBlock};

use crate::groups::Groups;

/// Files up to this many bytes are small.
const SMALL: u64 = 64 << 10;
/// The maximum number of bytes that are set aside for a file at once.
const MAX_SURPLUS: u64 = 8 << 20;
/// The number of bytes in a shard's run for small files.
const LOCALITY: u64 = 2 << 20;
/// A surplus is at most `1 / SURPLUS_PART` of the free space.
const SURPLUS_PART: u64 = 64;

/// What blocks are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The contents of a file.
    Data,
    /// The entries of a directory: a growing one should be contiguous, whichever cores make it
    /// grow, and apart from large files.
    Entries,
    /// Extended attributes. They are placed as metadata, and may use the reserve only as data may:
    /// nothing has changed yet when their allocation fails.
    Attributes,
    /// Tree nodes, whose allocation must not fail half way, so they may use the reserve.
    Metadata,
}

/// A request for blocks.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The file.
    pub inode: InodeNumber,
    /// The first block of the file that they are for, counted in clusters.
    pub logical: LogicalBlock,
    /// The maximum number of clusters.
    pub length: u32,
    /// The preferred block: after the last one of the file, or in the inode's group.
    pub goal: BlockNumber,
    /// What they are for.
    pub purpose: Purpose,
    /// Whether the blocks may come from the reserve; metadata always may.
    pub may_use_reserve: bool,
    /// The file's current size in bytes.
    pub size: u64,
    /// The group of the file's last large run, if the file remembers that.
    pub stream_goal: Option<GroupNumber>,
    /// The groups that may serve it.
    pub zone: Zone,
}

/// Which groups may serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// All groups.
    Anywhere,
    /// Groups below this number, because a block map's pointers have 32 bits.
    Below(GroupNumber),
}

impl Zone {
    /// The groups that the pointers of a block map can reach: those that end below block 2^32 - 1.
    #[must_use]
    pub fn of_pointers(geometry: &Geometry) -> Self {
        if geometry.blocks_count <= u64::from(u32::MAX) {
            return Self::Anywhere;
        }
        let blocks = u64::from(u32::MAX - geometry.first_data_block);
        let groups = blocks / u64::from(geometry.blocks_per_group);
        Self::Below(GroupNumber(
            u32::try_from(groups).expect("no more groups than blocks"),
        ))
    }

    /// Whether this group may serve.
    pub(super) fn contains(self, group: GroupNumber) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Below(end) => group < end,
        }
    }

    /// How many of the volume's `count` groups may serve.
    pub(super) fn of(self, count: u32) -> u32 {
        match self {
            Self::Anywhere => count,
            Self::Below(end) => count.min(end.get()),
        }
    }
}

impl Request {
    /// One block for metadata of `inode`.
    #[must_use]
    pub fn one(inode: InodeNumber, goal: BlockNumber) -> Self {
        let purpose = Purpose::Metadata;
        Self {
            inode,
            logical: LogicalBlock(0),
            length: 1,
            goal,
            purpose,
            may_use_reserve: false,
            size: 0,
            stream_goal: None,
            zone: Zone::Anywhere,
        }
    }

    /// Blocks of the file once the request is granted. Here and below a block has this size in
    /// bytes: that of a cluster.
    fn blocks_after(&self, block_size: u32) -> u64 {
        self.end().max(self.size.div_ceil(u64::from(block_size)))
    }

    fn end(&self) -> u64 {
        u64::from(self.logical.get()) + u64::from(self.length)
    }

    /// Whether the file is still small once the request is granted.
    pub(super) fn is_small(&self, block_size: u32) -> bool {
        self.purpose == Purpose::Data
            && self.blocks_after(block_size) * u64::from(block_size) <= SMALL
    }

    /// Whether the request is entirely before the end of the file, so that it does not grow the
    /// file.
    pub(super) fn is_inside(&self, block_size: u32) -> bool {
        self.end() < self.size.div_ceil(u64::from(block_size))
    }
}

/// Clusters that were allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block.
    pub start: BlockNumber,
    /// The number of clusters.
    pub length: u32,
}

/// What happens to blocks found beyond the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surplus {
    /// They are not taken.
    None,
    /// They are set aside for the file, for its blocks from `logical` on.
    ForFile { logical: u32 },
    /// They are set aside for small files of the shard.
    ForShard,
}

impl Surplus {
    /// The block of the file that the surplus begins with; `None` if it is not kept. A shard's run
    /// has no file: it gets 0, which nothing uses.
    pub(super) fn logical(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::ForFile { logical } => Some(logical),
            Self::ForShard => Some(0),
        }
    }
}

/// A normalised request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Selects the stream goal, unless the file has its own.
    pub inode: InodeNumber,
    /// The file's own stream goal.
    pub own_goal: Option<GroupNumber>,
    /// The preferred block.
    pub goal: BlockNumber,
    /// Whether the goal continues the file, so that even a short run there is acceptable.
    pub continues: bool,
    /// The number of requested blocks. Blocks beyond them are surplus; fewer are allowed.
    pub requested: u32,
    /// The number of blocks to search for.
    pub wanted: u32,
    /// What happens to the difference.
    pub surplus: Surplus,
    /// Whether the search begins at a stream goal.
    pub is_stream: bool,
    /// The groups that may serve it.
    pub zone: Zone,
}

impl Plan {
    /// A plan without surplus.
    pub fn exactly(request: &Request, length: u32) -> Self {
        Self {
            inode: request.inode,
            own_goal: request.stream_goal,
            goal: request.goal,
            continues: request.logical.get() > 0,
            requested: length,
            wanted: length,
            surplus: Surplus::None,
            is_stream: false,
            zone: request.zone,
        }
    }

    /// A plan for a file that is not small, with a surplus if the request grows the file.
    pub fn growing(request: &Request, length: u32, geometry: &Geometry, free: u64) -> Self {
        let is_directory = request.purpose == Purpose::Entries;
        let exactly = Self {
            is_stream: !is_directory,
            ..Self::exactly(request, length)
        };
        let is_new = is_directory && request.logical.get() == 0;
        if request.is_inside(geometry.cluster_size()) || length < request.length || is_new {
            return exactly;
        }
        let after = request.blocks_after(geometry.cluster_size());
        let most = (MAX_SURPLUS / u64::from(geometry.cluster_size())).min(free / SURPLUS_PART);
        let surplus = ((after + 1).next_power_of_two() - after).min(most);
        let addressable = u64::from(u32::MAX).saturating_sub(request.end());
        let surplus = u32::try_from(surplus.min(addressable)).expect("a surplus is a few MiB");
        let wanted = length
            .saturating_add(surplus)
            .min(geometry.clusters_per_group)
            .max(length);
        if wanted == length {
            return exactly;
        }
        let logical = u32::try_from(request.end()).expect("bounded by what is addressable");
        Self {
            wanted,
            surplus: Surplus::ForFile { logical },
            ..exactly
        }
    }
}

impl Groups {
    /// A plan for a new run for small files of the caller's shard, which also serves this request.
    /// The first runs of shards are far apart; later runs begin where the shard's last run ended.
    pub(super) fn plan_for_locality(&self, request: &Request, length: u32) -> Option<Plan> {
        let geometry = &self.store.geometry;
        let (shard, shards) = self.hints.locality_shard();
        let free = self.hints.recent_free(|| self.free_clusters());
        let share = free / (SURPLUS_PART / 8) / u64::from(shards);
        let wanted = (LOCALITY / u64::from(geometry.cluster_size())).min(share);
        let wanted = u32::try_from(wanted).expect("a run of 2 MiB has few blocks");
        if wanted < 2 * length {
            return None;
        }
        let goal = match self.hints.locality() {
            Some(last) => geometry.block_of_cluster(last.group(), last.end()),
            None if geometry.group_count >= 2 * shards => {
                let group = u64::from(shard) * u64::from(geometry.group_count) / u64::from(shards);
                let group = u32::try_from(group).expect("below the number of groups");
                geometry.first_block(GroupNumber(group))
            }
            None => request.goal,
        };
        let exactly = Plan::exactly(request, length);
        Some(Plan {
            goal,
            continues: false,
            wanted,
            surplus: Surplus::ForShard,
            ..exactly
        })
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::superblock::Superblock;

    use super::*;

    fn geometry() -> Geometry {
        let mut superblock = Superblock::blank();
        superblock.revision = 1;
        superblock.log_block_size = 2;
        superblock.log_cluster_size = 2;
        superblock.blocks_per_group = 32768;
        superblock.inodes_per_group = 8192;
        superblock.blocks_count = 32768 * 100;
        superblock.inodes_count = 8192 * 100;
        superblock.first_inode = 11;
        superblock.inode_size = 256;
        Geometry::of(&superblock).expect("sound")
    }

    fn growing(logical: u32, length: u32, size: u64, free: u64) -> Plan {
        let request = Request {
            inode: InodeNumber(12),
            logical: LogicalBlock(logical),
            length,
            goal: BlockNumber(1),
            purpose: Purpose::Data,
            may_use_reserve: false,
            size,
            stream_goal: None,
            zone: Zone::Anywhere,
        };
        Plan::growing(&request, length, &geometry(), free)
    }

    #[test]
    fn pointers_reach_the_groups_that_end_below_their_last_number() {
        let of = |blocks_count, first_data_block| {
            let (blocks_per_group, wide) = (32768, geometry());
            Zone::of_pointers(&Geometry {
                blocks_count,
                first_data_block,
                blocks_per_group,
                ..wide
            })
        };
        assert_eq!(of((1 << 32) - 1, 0), Zone::Anywhere);
        assert_eq!(of(1 << 32, 0), Zone::Below(GroupNumber((1 << 17) - 1)));
        assert_eq!(of(1 << 40, 1), Zone::Below(GroupNumber((1 << 17) - 1)));
    }

    #[test]
    fn surplus_grows_with_the_file_up_to_a_bound() {
        let plenty = 1 << 30;
        let plan = growing(20, 2, 20 << 12, plenty);
        assert_eq!((plan.requested, plan.wanted), (2, 12));
        assert_eq!(plan.surplus, Surplus::ForFile { logical: 22 });
        assert_eq!(growing(1000, 24, 1000 << 12, plenty).wanted, 24 + 1024);
        assert_eq!(growing(1 << 20, 16, 1 << 32, plenty).wanted, 16 + 2048);
        assert_eq!(
            growing(0, 32768, 0, plenty).wanted,
            32768,
            "a group has no more"
        );
    }

    #[test]
    fn no_surplus_inside_the_file_or_when_space_is_short() {
        assert_eq!(growing(20, 2, 4000 << 12, 1 << 30).surplus, Surplus::None);
        assert_eq!(growing(1000, 24, 1000 << 12, 640).wanted, 34);
        assert_eq!(growing(1000, 24, 1000 << 12, 63).surplus, Surplus::None);
        let last = growing(u32::MAX - 10, 10, 0, 1 << 40);
        assert_eq!((last.wanted, last.surplus), (10, Surplus::None));
    }

    #[test]
    fn small_is_what_the_file_will_be() {
        let request = Request {
            purpose: Purpose::Data,
            ..Request::one(InodeNumber(12), BlockNumber(1))
        };
        assert!(request.is_small(4096));
        assert!(
            Request {
                logical: LogicalBlock(15),
                ..request
            }
            .is_small(4096)
        );
        assert!(
            !Request {
                logical: LogicalBlock(16),
                ..request
            }
            .is_small(4096)
        );
        assert!(
            !Request {
                size: 65537,
                ..request
            }
            .is_small(4096)
        );
        assert!(
            !Request {
                purpose: Purpose::Metadata,
                ..request
            }
            .is_small(4096)
        );
    }
}
