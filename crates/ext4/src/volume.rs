//! A mounted file system: what users of the library hold.
//!
//! Every operation takes `&self` and may be called from many threads at once. The operations here
//! work on inode numbers; an inode a caller names must be held (see [`Entry`]) or have a name.
//! `path.rs` has the same on paths, in the manner of `std::fs`.

use std::sync::Arc;

use pext4_block::Device;

use crate::error::Result;
use crate::options::MountOptions;
use crate::types::{
    AllocateMode, Attributes, DeviceNumber, DirectoryEntry, Entry, InodeNumber, MappedRange, New,
    RenameMode, SetAttributes, SetXattrMode, Statistics,
};

/// A mounted ext4 file system.
pub struct Volume {}

impl Volume {
    /// Mounts the file system on `device`, after replaying its journal where that is due.
    pub fn open(device: Arc<dyn Device>, options: MountOptions) -> Result<Self> { todo!() }
    /// Commits everything, writes it home and marks the file system clean. Dropping a volume does the same but cannot report errors.
    pub fn close(self) -> Result<()> { todo!() }
    /// Whether writes are refused (asked for, or after an error).
    pub fn is_read_only(&self) -> bool { todo!() }
    /// Looks a name up (`.` and `..` included).
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry> { todo!() }
    /// Gives back `count` holds; an inode without names and holds is deleted.
    pub fn forget(&self, inode: InodeNumber, count: u64) { todo!() }
    /// What `stat` tells.
    pub fn attributes(&self, inode: InodeNumber) -> Result<Attributes> { todo!() }
    /// Changes attributes, size included.
    pub fn set_attributes(&self, inode: InodeNumber, change: &SetAttributes) -> Result<Attributes> { todo!() }
    /// Makes a regular file.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &New) -> Result<Entry> { todo!() }
    /// Makes a regular file without a name (`O_TMPFILE`).
    pub fn create_unnamed(&self, parent: InodeNumber, new: &New) -> Result<Entry> { todo!() }
    /// Makes a directory.
    pub fn make_directory(&self, parent: InodeNumber, name: &[u8], new: &New) -> Result<Entry> { todo!() }
    /// Makes a fifo, socket, or character or block special file; `mode_type` is one of `S_IFMT`'s values.
    pub fn make_node(&self, parent: InodeNumber, name: &[u8], new: &New, mode_type: u16, device: DeviceNumber) -> Result<Entry> { todo!() }
    /// Makes a symbolic link.
    pub fn make_symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &New) -> Result<Entry> { todo!() }
    /// Gives an inode another name.
    pub fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Entry> { todo!() }
    /// Removes a name of anything but a directory.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> { todo!() }
    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()> { todo!() }
    /// Moves a name.
    pub fn rename(&self, parent: InodeNumber, name: &[u8], new_parent: InodeNumber, new_name: &[u8], mode: RenameMode) -> Result<()> { todo!() }
    /// The target of a symbolic link.
    pub fn read_link(&self, inode: InodeNumber) -> Result<Vec<u8>> { todo!() }
    /// Reads up to `into.len()` bytes; fewer only at the end of the file.
    pub fn read(&self, inode: InodeNumber, offset: u64, into: &mut [u8]) -> Result<usize> { todo!() }
    /// Writes all of `from`, extending the file where needed.
    pub fn write(&self, inode: InodeNumber, offset: u64, from: &[u8]) -> Result<usize> { todo!() }
    /// `fallocate(2)`.
    pub fn allocate(&self, inode: InodeNumber, mode: AllocateMode, offset: u64, length: u64) -> Result<()> { todo!() }
    /// `SEEK_DATA`.
    pub fn seek_data(&self, inode: InodeNumber, offset: u64) -> Result<u64> { todo!() }
    /// `SEEK_HOLE`.
    pub fn seek_hole(&self, inode: InodeNumber, offset: u64) -> Result<u64> { todo!() }
    /// Where the file's bytes lie on the device, from `offset` on, at most `most` ranges.
    pub fn extents(&self, inode: InodeNumber, offset: u64, most: usize) -> Result<Vec<MappedRange>> { todo!() }
    /// `fsync` (`fdatasync` if `data_only`).
    pub fn sync_file(&self, inode: InodeNumber, data_only: bool) -> Result<()> { todo!() }
    /// `syncfs`.
    pub fn sync(&self) -> Result<()> { todo!() }
    /// `statfs`.
    pub fn statistics(&self) -> Result<Statistics> { todo!() }
    /// Lists a directory from `cookie` (0: the start) until `visit` answers false.
    pub fn read_directory(&self, inode: InodeNumber, cookie: u64, visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool) -> Result<()> { todo!() }
    /// The value of an extended attribute, by full name (`user.x`).
    pub fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> { todo!() }
    /// Sets an extended attribute.
    pub fn set_xattr(&self, inode: InodeNumber, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> { todo!() }
    /// Full names of all extended attributes.
    pub fn xattr_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>> { todo!() }
    /// Removes an extended attribute.
    pub fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Result<()> { todo!() }
}
