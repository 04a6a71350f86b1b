//! Files whose content stays as it is, and what lies behind their end.
//!
//! A file with fs-verity has the hashes of its blocks in blocks of its own behind its end, where no
//! read reaches (`Documentation/filesystems/ext4/verity.rst` of Linux). Its content cannot change
//! and nothing may free those blocks. The hashes are not compared with what is read. The content of
//! an encrypted file cannot change without its key. Names, owner, permissions, times and attributes
//! of both are as those of any file.

use pext4_ondisk::inode::InodeFlags;

use crate::error::{Refusal, Result};
use crate::types::Attributes;

/// Refuses to change the content of a file with these flags. Append-only is a matter of how a file
/// was opened, which this layer does not know: the layers above enforce it when they open one
/// (`path::OpenOptions`, and the kernel or `dispatch` in the FUSE server).
pub(crate) fn check_content_changes(flags: InodeFlags) -> Result<()> {
    if flags.intersects(KEPT) {
        return Err(why_kept(flags).into());
    }
    Ok(())
}

/// Flags of files whose content does not change.
const KEPT: InodeFlags = InodeFlags::IMMUTABLE
    .union(InodeFlags::ENCRYPT)
    .union(InodeFlags::VERITY);

/// The first reason, in Linux's order.
#[cold]
fn why_kept(flags: InodeFlags) -> Refusal {
    if !flags.contains(InodeFlags::IMMUTABLE) && flags.contains(InodeFlags::ENCRYPT) {
        return Refusal::NoKey;
    }
    Refusal::NotPermitted
}

impl Attributes {
    /// Whether the content of the file may change, as far as its flags say so: append-only files
    /// may.
    ///
    /// # Errors
    ///
    /// `Refused(NotPermitted)` for one that is immutable or has fs-verity, `Refused(NoKey)` for an
    /// encrypted one.
    pub fn check_content_changes(&self) -> Result<()> {
        check_content_changes(InodeFlags::from_bits_retain(self.flags))
    }
}

#[cfg(test)]
mod tests {
    use super::check_content_changes;
    use crate::error::Refusal;
    use pext4_ondisk::inode::InodeFlags;

    #[test]
    fn the_key_is_missed_before_the_hashes_are_protected() {
        let refused = |flags: InodeFlags| check_content_changes(flags).expect_err("it is kept");
        let both = InodeFlags::VERITY | InodeFlags::ENCRYPT;
        assert!(refused(both).is(Refusal::NoKey));
        assert!(refused(both | InodeFlags::IMMUTABLE).is(Refusal::NotPermitted));
        assert!(refused(InodeFlags::VERITY).is(Refusal::NotPermitted));
        check_content_changes(InodeFlags::APPEND).expect("its end may change");
    }
}
