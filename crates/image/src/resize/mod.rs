//! Making a file system larger or smaller, offline.
//!
//! A resize has three steps. The *shape* says what superblock and geometry the wanted size has. The
//! *plan* works out, in memory, every block that changes; making it writes nothing, so whatever is
//! impossible or corrupt is found out with the image as it was. *Running* a plan writes it, in one of
//! three ways ([`Way`]), two of which leave either the old or the new file system whatever happens.
//!
//! [`Resize`] does all of it for an image or block device with a path; [`Plan::make`] and
//! [`Plan::run`] for any [`pext4_block::Device`].
//!
//! What is read is checked as far as it is used; what is not used is not judged. An image with noted
//! errors is refused, since moving things by maps that are known to be wrong destroys more.

mod clone;
mod copies;
mod entries;
mod files;
mod grow;
mod image;
mod journal;
mod make;
mod map;
mod orphans;
mod path;
mod plan;
mod progress;
mod renumber;
mod resize_inode;
mod run;
mod shape;
mod shrink;
mod smallest;
mod space;
mod tables;
mod trailing;
mod vacate;
mod values;

pub use make::Target;
pub use path::{Options, Preview, Resize};
pub use plan::Plan;
pub use progress::Progress;
pub use run::Way;

/// What a resize does, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks before.
    pub old_blocks: u64,
    /// Blocks after: at most what was asked for.
    pub blocks: u64,
    /// Groups before.
    pub old_groups: u32,
    /// Groups after.
    pub groups: u32,
    /// Inodes before.
    pub old_inodes: u32,
    /// Inodes after.
    pub inodes: u32,
    /// Free blocks after.
    pub free_blocks: u64,
    /// Blocks of files that go elsewhere.
    pub moved_blocks: u64,
    /// Inodes that get another number.
    pub moved_inodes: u64,
    /// Whether further descriptors lie the `meta_bg` way from now on.
    pub became_meta_bg: bool,
    /// Transactions of the journal that were replayed before.
    pub replayed: u32,
}

impl Summary {
    /// Bytes of the file system after.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }
}
