//! Resizes a file system offline.
//!
//! A resize has three steps. The *shape* is the superblock and geometry of the wanted size. The
//! *plan* computes in memory every block that changes; planning writes nothing to the file system,
//! so an impossible resize or a corrupt image is detected while the image is unchanged. *Running* a
//! plan writes it, in one of three ways ([`Way`]). Two of them always leave either the old or the
//! new file system.
//!
//! [`Resize`] does all of this for an image file or block device; [`Plan::make`] and [`Plan::run`]
//! work on any [`pext4_block::Device`].
//!
//! Structures are checked only as far as the resize uses them. An image with recorded errors is
//! refused, since moving blocks according to corrupt maps destroys more.
//!
//! ```
//! use pext4_block::{Access, Device, FileDevice};
//! use pext4_image::mkfs;
//! use pext4_image::resize::{Options, Resize, Target, Way};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("root.img");
//! # let image = FileDevice::create(&path, 64 << 20)?;
//! # mkfs::mkfs(&image, &mkfs::Options::default())?;
//! # drop(image);
//! let image = FileDevice::open(&path, Access::ReadWrite, FileDevice::USUAL_WAIT)?;
//! let resize = Resize::prepare(image, Target::Bytes(256 << 20), Options::default())?;
//! let planned = resize.planned(); // nothing is written yet
//! assert!(planned.way != Way::InPlace, "an interruption leaves the old size or the new one");
//! println!("{} groups become {}", planned.summary.old_groups, planned.summary.groups);
//! assert_eq!(resize.run()?, 256 << 20);
//! # Ok(())
//! # }
//! ```

mod claim;
mod clone;
mod container;
mod copies;
mod device;
mod entries;
mod files;
mod grow;
mod image;
mod journal;
mod make;
mod map;
mod orphans;
mod plan;
mod renumber;
mod resize_inode;
mod run;
mod shape;
mod shrink;
mod smallest;
mod space;
mod structures;
mod tables;
mod trailing;
mod vacate;
mod values;

pub use device::{Options, Preview, Resize};
pub use make::Target;
pub use plan::Plan;
pub use run::Way;

/// The effects of a resize, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks before.
    pub old_blocks: u64,
    /// Blocks after: at most the requested number.
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
    /// Number of file blocks that move.
    pub moved_blocks: u64,
    /// Number of inodes that get another number.
    pub moved_inodes: u64,
    /// Whether additional descriptors use the `meta_bg` layout.
    pub became_meta_bg: bool,
    /// Number of journal transactions that were replayed first.
    pub replayed: u32,
    /// Whether the log held transactions that were dropped first, since the superblock does not ask
    /// for their replay.
    pub has_dropped_log: bool,
}

impl Summary {
    /// Size of the file system after the resize, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }
}
