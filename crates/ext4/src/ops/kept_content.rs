//! Files whose content stays as it is, and what lies behind their end.
//!
//! A file with fs-verity has the hashes of its blocks in blocks of its own behind its end, where no
//! read reaches (`Documentation/filesystems/ext4/verity.rst` of Linux). Its content cannot change
//! and nothing may free those blocks; names, owner, permissions, times and attributes are as those
//! of any file. The hashes are not compared with what is read.

use pext4_ondisk::inode::InodeFlags;

use crate::error::{Refusal, Result};
use crate::inode::Inode;

/// The flags of files whose content does not change.
pub(super) const KEEPS_CONTENT: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::VERITY);

/// Refuses to change the content of a file with these flags. Append-only is a matter of how a file
/// was opened, which this layer does not know: the layers above enforce it when they open one
/// (`path::OpenOptions`, and the kernel or `dispatch` in the FUSE server).
pub(crate) fn check_content_changes(flags: InodeFlags) -> Result<()> {
    if flags.intersects(KEEPS_CONTENT) {
        return Err(Refusal::NotPermitted.into());
    }
    Ok(())
}

/// Refuses to change even what a write changes besides the content.
pub(super) fn check_not_immutable(inode: &Inode) -> Result<()> {
    if inode.flags().contains(InodeFlags::IMMUTABLE) {
        return Err(Refusal::NotPermitted.into());
    }
    Ok(())
}
