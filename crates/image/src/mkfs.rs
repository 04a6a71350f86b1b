//! Creates an empty file system with the defaults of mke2fs: ext4, ext3 or ext2.
//!
//! There are four steps. The *plan* chooses sizes and features and returns them as a superblock.
//! The *layout* places every group's metadata and the special files, and keeps the block bitmaps.
//! The device is *cleared*, so that it reads as zeroes. The *writer* encodes and writes plan and
//! layout. For empty groups only the descriptors are written (their bitmaps are flagged
//! uninitialized), and inode tables keep the zeroes that the device contains, so the time depends
//! on the number of groups, not on the size.
//!
//! [`Design::write_zeroed`] leaves out the third step, for a device that reads as zeroes already,
//! like a new file.
//!
//! ```
//! use pext4_block::RamDevice;
//! use pext4_image::mkfs::{self, FileSystem, Options};
//!
//! # fn main() -> Result<(), pext4_image::Error> {
//! let device = RamDevice::new(64 << 20);
//! let options = Options {
//!     file_system: FileSystem::Ext4,
//!     label: b"data".to_vec(),
//!     features: vec!["^has_journal".into(), "casefold".into()],
//!     ..Options::default()
//! };
//! let summary = mkfs::mkfs(&device, &options)?;
//! assert_eq!(summary.journal_blocks, 0);
//! assert!(summary.features.iter().any(|name| name == "casefold"));
//! # Ok(())
//! # }
//! ```

mod clear;
pub(crate) mod contents;
pub(crate) mod features;
pub(crate) mod inode_counts;
pub(crate) mod layout;
mod map;
pub(crate) mod plan;
pub(crate) mod quotas;
pub(crate) mod resize_inode;
pub(crate) mod writer;

use std::fmt;
use std::ops::Range;

use pext4_block::Device;
use pext4_ondisk::superblock::Superblock;

pub use clear::clear;
pub use features::FileSystem;
pub use inode_counts::MIN_BYTES_PER_INODE;
pub use plan::{Options, hash_seed};

use crate::error::{Error, Result};
use contents::Files;
use layout::Layout;

/// A description of the new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u32,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Names of its features.
    pub features: Vec<String>,
}

/// A file system that is laid out but not yet written, so that the caller can report errors before
/// it overwrites anything.
#[must_use = "there is no file system unless it is written"]
pub struct Design {
    superblock: Superblock,
    layout: Layout,
    files: Files,
}

impl fmt::Debug for Design {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Design")
            .field("geometry", &self.layout.geometry)
            .finish_non_exhaustive()
    }
}

impl Design {
    /// Lays out an empty file system for a device of `size` bytes.
    ///
    /// # Errors
    ///
    /// `Impossible` if the options contradict each other, or the size is too small for them or too
    /// large; `Unsupported` if a feature is not supported.
    pub fn new(size: u64, options: &Options) -> Result<Self> {
        let options = &plan::without_journal_that_does_not_fit(size, options);
        let (mut superblock, geometry) = plan::plan(size, options)?;
        let mut layout = Layout::place(geometry)?;
        let files = contents::place(&mut layout, &mut superblock, options)?;
        layout.finish(&mut superblock, files.journal_blocks);
        Ok(Self {
            superblock,
            layout,
            files,
        })
    }

    /// Clears a device of that size and writes the file system to it. The time is that of
    /// [`clear()`]: short if the device knows where it has data or can discard it.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn write(&self, device: &dyn Device) -> Result<Summary> {
        self.write_unless(device, &|| false)
    }

    /// As [`Self::write`], but stops when `is_stopped`: then there is no new file system on the
    /// device, and what it held may be lost in part.
    ///
    /// # Errors
    ///
    /// `Io`; `Interrupted`.
    pub fn write_unless(
        &self,
        device: &dyn Device,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Summary> {
        if !clear(device, &|_| (), is_stopped)? {
            return Err(Error::Interrupted);
        }
        self.write_zeroed(device, is_stopped)
    }

    /// As [`Self::write_unless`], but does not clear the device. It must read as zeroes: on one
    /// that does not, the file system is damaged.
    ///
    /// # Errors
    ///
    /// `Io`; `Interrupted`.
    pub fn write_zeroed(
        &self,
        device: &dyn Device,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Summary> {
        writer::write(
            device,
            &self.layout,
            &self.superblock,
            &self.files,
            is_stopped,
        )?;
        let geometry = &self.layout.geometry;
        Ok(Summary {
            block_size: geometry.block_size,
            blocks: geometry.blocks_count,
            inodes: geometry.inodes_count,
            groups: geometry.group_count,
            journal_blocks: self.files.journal_blocks,
            uuid: self.superblock.uuid,
            features: self.superblock.features.names(),
        })
    }
}

/// Creates an empty file system on a device, whatever that held: [`Design::write`].
///
/// # Errors
///
/// As [`Design::new`]; `Io`.
pub fn mkfs(device: &dyn Device, options: &Options) -> Result<Summary> {
    Design::new(device.size(), options)?.write(device)
}

/// Blocks `[start, end)` of the device.
pub(crate) type Run = Range<u64>;
