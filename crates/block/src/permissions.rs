//! The permissions of a file that replaces another one under its name.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

/// The extended attribute with a file's access list.
const ACCESS_LIST: &str = "system.posix_acl_access";
/// The maximum length of an extended attribute in Linux.
const MAX_LIST: usize = 64 << 10;
const GROUP: u32 = 0o070;

/// Gives a file the mode and the access list of the one at `from`, in place of a list that it has
/// from the default list of its directory. Where there is a list, the group's bits of the mode are
/// the mask of the list, and without the list they would be rights of the group. So if the list
/// cannot be kept, the group gets no rights.
///
/// # Errors
///
/// The system refuses.
pub fn copy_permissions(from: &Path, to: &File) -> io::Result<()> {
    let mode = fs::metadata(from)?.permissions().mode() & 0o7777;
    let mut list = vec![0; MAX_LIST];
    let length = match rustix::fs::getxattr(from, ACCESS_LIST, &mut list[..]) {
        Ok(length) => length,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            match rustix::fs::fremovexattr(to, ACCESS_LIST) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
            return to.set_permissions(Permissions::from_mode(mode));
        }
        Err(errno) => return Err(errno.into()),
    };
    to.set_permissions(Permissions::from_mode(mode & !GROUP))?;
    let flags = XattrFlags::empty();
    match rustix::fs::fsetxattr(to, ACCESS_LIST, &list[..length], flags) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Gives a file the owner of the one at `from`, as far as this user may, and its permissions as
/// [`copy_permissions`] does.
///
/// # Errors
///
/// The system refuses; not if it only refuses to change the owner.
pub fn copy_owner_and_permissions(from: &Path, to: &File) -> io::Result<()> {
    let (theirs, ours) = (fs::metadata(from)?, to.metadata()?);
    if (ours.uid(), ours.gid()) != (theirs.uid(), theirs.gid()) {
        // Only root can change the owner, but others can set a group that they are members of. If
        // neither works, the mode must not grant another group what it granted the file's.
        let given = fchown(to, Some(theirs.uid()), Some(theirs.gid()))
            .or_else(|_| fchown(to, None, Some(theirs.gid())));
        if given.is_err() && ours.gid() != theirs.gid() {
            let mode = theirs.mode() & 0o700;
            return to.set_permissions(Permissions::from_mode(mode));
        }
    }
    copy_permissions(from, to)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{XattrFlags, getxattr, setxattr};

    use super::{ACCESS_LIST, copy_permissions};

    /// `user::rw-`, `user:1234:rw-`, `group::---`, `mask::rw-`, `other::---`.
    fn list() -> Vec<u8> {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        let none = u32::MAX;
        for (tag, rights, id) in [
            (1u16, 6u16, none),
            (2, 6, 1234),
            (4, 0, none),
            (16, 6, none),
            (32, 0, none),
        ] {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&rights.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn the_mask_of_a_list_does_not_become_the_groups_rights() {
        let folder = tempfile::tempdir().expect("a folder");
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, b"").expect("room");
        fs::set_permissions(&old, Permissions::from_mode(0o640)).expect("it is ours");
        let file = File::create(&new).expect("room");
        let mode = || {
            fs::metadata(&new)
                .expect("it is there")
                .permissions()
                .mode()
                & 0o7777
        };
        copy_permissions(&old, &file).expect("it is ours");
        assert_eq!(mode(), 0o640);
        if let Err(errno) = setxattr(&old, ACCESS_LIST, &list(), XattrFlags::empty()) {
            return eprintln!("SKIPPED: no access lists here: {errno}");
        }
        copy_permissions(&old, &file).expect("it is ours");
        let mut copied = [0; 100];
        let length = getxattr(&new, ACCESS_LIST, &mut copied[..]).expect("it has the list");
        assert_eq!(copied[..length], list());
        assert_eq!(mode(), 0o660, "of the group it is the mask");
    }

    #[test]
    fn what_the_folder_lets_new_files_inherit_is_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, b"").expect("room");
        let default = "system.posix_acl_default";
        if let Err(errno) = setxattr(folder.path(), default, &list(), XattrFlags::empty()) {
            return eprintln!("SKIPPED: no access lists here: {errno}");
        }
        fs::set_permissions(&old, Permissions::from_mode(0o640)).expect("it is ours");
        let file = File::create(&new).expect("room");
        let has_list = || getxattr(&new, ACCESS_LIST, &mut [0; 100][..]).is_ok();
        assert!(has_list(), "the new file has inherited it");
        copy_permissions(&old, &file).expect("it is ours");
        assert!(!has_list(), "another user could read it");
        let mode = file.metadata().expect("open").permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
    }
}
