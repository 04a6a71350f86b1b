//! Files whose content stays as it is, and what lies behind their end.
//!
//! A file with fs-verity has the hashes of its blocks in blocks of its own behind its end, where no
//! read reaches (`Documentation/filesystems/ext4/verity.rst` of Linux). Its content cannot change
//! and nothing may free those blocks. The hashes are not compared with what is read. That of an
//! encrypted file cannot change without its key. Names, owner, permissions, times and attributes of
//! both are as those of any file.

use pext4_ondisk::inode::InodeFlags;

use crate::error::{Refusal, Result};
use crate::inode::Inode;

/// Refuses to change the content of a file with these flags. Append-only is a matter of how a file
/// was opened, which this layer does not know: the layers above enforce it when they open one
/// (`path::OpenOptions`, and the kernel or `dispatch` in the FUSE server).
pub(crate) fn check_content_changes(flags: InodeFlags) -> Result<()> {
    if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
        return Err(Refusal::NotPermitted.into());
    }
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(Refusal::NoKey.into());
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
