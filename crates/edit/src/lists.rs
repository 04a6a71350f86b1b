//! Access control lists, which the mode shows in part: what sets one of the two sets the other, as chmod(2) and
//! setxattr(2) do. (Lists that come with a file and its mode are kept as they are, whatever they say.)

use pext4_fs::{FileType, InodeNumber, Refusal, SetXattrMode, Volume};
use pext4_ondisk::acl::{self, Acl};

use crate::error::{At, Result, refuse};

/// The list of this name that an inode has, in the form of the image.
///
/// # Errors
/// `Inside`: it cannot be read.
pub(crate) fn stored(
    volume: &Volume,
    inode: InodeNumber,
    name: &[u8],
    path: &[u8],
) -> Result<Option<Vec<u8>>> {
    match volume.xattr(inode, name) {
        Err(error) if error.is(Refusal::NoAttribute) || error.is(Refusal::NotSupported) => Ok(None),
        value => value.map(Some).at(path),
    }
}

/// Why a kind of file has no list of this name: Linux keeps none at a link, and one for what is made inside at
/// directories only.
pub(crate) fn misplaced(kind: FileType, name: &[u8]) -> Option<&'static str> {
    match kind {
        FileType::Directory => None,
        FileType::Symlink => Some("a symbolic link has no access control list"),
        _ if name == acl::DEFAULT => {
            Some("only directories can have a default access control list")
        }
        _ => None,
    }
}

/// Has the list of an inode, if it has one, follow permissions that were set.
///
/// # Errors
/// `Inside`.
pub(crate) fn follow(
    volume: &Volume,
    inode: InodeNumber,
    permissions: u16,
    path: &[u8],
) -> Result<()> {
    let stored = stored(volume, inode, acl::ACCESS, path)?;
    // One that makes no sense stays as it is.
    let Some(list) = stored.as_deref().and_then(Acl::from_disk) else {
        return Ok(());
    };
    let changed = list.clone().with_mode(permissions);
    if changed == list {
        return Ok(());
    }
    volume
        .set_access_list(inode, &changed.to_disk(), SetXattrMode::Any, permissions)
        .at(path)
}

/// Gives an inode a list in the form of system calls: one for access shows in the permissions, and is not stored where
/// they say it all.
///
/// # Errors
/// `Refused` for what is no list, or none for this kind of file; `Inside`.
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
    let attributes = volume.attributes(inode).at(path)?;
    if let Some(problem) = misplaced(attributes.file_type, name) {
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
    set.at(path)
}
