//! Access control lists. The mode contains a part of a list, so setting one of the two also sets
//! the other, as chmod(2) and setxattr(2) do. A list that is copied with a file and its mode is
//! stored unchanged, even if the two contradict each other.

use pext4_fs::{InodeNumber, Refusal, SetXattrMode, Volume};
use pext4_ondisk::acl::{self, Acl};

use crate::error::{FsContext, Result, of_attribute, refuse};

/// The list of this name that an inode has, in the image's form. `None` if it has none.
///
/// # Errors
///
/// `AtPath`: it cannot be read.
pub(crate) fn stored(
    volume: &Volume,
    inode: InodeNumber,
    name: &[u8],
    path: &[u8],
) -> Result<Option<Vec<u8>>> {
    match volume.xattr(inode, name) {
        Err(error) if error.is(Refusal::NoAttribute) || error.is(Refusal::NotSupported) => Ok(None),
        value => value.map(Some).with_path(path),
    }
}

/// Adapts the access list of an inode, if it has one, to permissions that were set.
///
/// # Errors
///
/// `AtPath`.
pub(crate) fn adapt_to_mode(
    volume: &Volume,
    inode: InodeNumber,
    permissions: u16,
    path: &[u8],
) -> Result<()> {
    let stored = stored(volume, inode, acl::ACCESS, path)?;
    // An invalid list stays unchanged.
    let Some(list) = stored.as_deref().and_then(Acl::from_disk) else {
        return Ok(());
    };
    let changed = list.clone().with_mode(permissions);
    if changed == list {
        return Ok(());
    }
    let list = changed.to_disk();
    let set = volume.set_access_list(inode, &list, SetXattrMode::Any, permissions);
    of_attribute(set, volume, path)
}

/// Sets a list of an inode, given in the form of setxattr(2). An access list also sets the
/// permissions, and is not stored if they express all of it.
///
/// # Errors
///
/// `RefusedAtPath` for an invalid list, or one that this kind of file cannot have; `AtPath`.
pub(crate) fn set(
    volume: &Volume,
    inode: InodeNumber,
    name: &[u8],
    call: &[u8],
    path: &[u8],
) -> Result<()> {
    let Some(list) = Acl::from_call(call) else {
        return refuse(path, "the value is no access control list");
    };
    let attributes = volume.attributes(inode).with_path(path)?;
    if let Some(problem) = acl::misplaced(attributes.file_type, name) {
        return refuse(path, problem);
    }
    let permissions = attributes.mode & 0o7000 | list.mode_bits();
    let set = match (name == acl::ACCESS, list.is_mode_only()) {
        (true, true) => volume.remove_access_list(inode, permissions),
        (true, false) => {
            volume.set_access_list(inode, &list.to_disk(), SetXattrMode::Any, permissions)
        }
        (false, _) => volume.set_xattr(inode, name, &list.to_disk(), SetXattrMode::Any),
    };
    of_attribute(set, volume, path)
}
