//! Encrypted files and directories (fscrypt), without their key, which this version never has.
//!
//! What is encrypted is shown as it is stored. As in Linux without the key, a name can be removed
//! from an encrypted directory and none can be made in it, since nobody knows what it would be as
//! ciphertext; the content of a file can be read here, as ciphertext, and not changed
//! (`kept_content.rs`). The directory in which a name is made decides: an encrypted file may get
//! names in directories that are not encrypted. The key's identifier and a nonce are an attribute
//! that no caller sees and that goes with the inode.

use pext4_ondisk::inode::InodeFlags;

use super::check_name;
use crate::error::{Refusal, Result};
use crate::inode::Inode;

pub(super) fn is_encrypted(directory: &Inode) -> bool {
    directory.flags().contains(InodeFlags::ENCRYPT)
}

/// Refuses to make or replace a name in an encrypted directory, or to move one out of it.
pub(super) fn check_makes_names(directory: &Inode) -> Result<()> {
    if is_encrypted(directory) {
        return Err(Refusal::NoKey.into());
    }
    Ok(())
}

/// Refuses names that a directory cannot hold. In an encrypted one the stored name may be any
/// bytes, but no more of them.
pub(super) fn check_stored_name(directory: &Inode, name: &[u8]) -> Result<()> {
    match check_name(name) {
        Err(error) if is_encrypted(directory) && error.is(Refusal::Invalid) => Ok(()),
        checked => checked,
    }
}
