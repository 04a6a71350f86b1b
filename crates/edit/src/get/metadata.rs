//! Gives a file of the copy its owner, mode, extended attributes and times.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::Path;

use pext4_fs::FileType;
use pext4_ondisk::acl;
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{DIRECTORY_TO_FILL, Extractor};
use crate::error::{HostContext, Result};
use crate::image_tree::ImageFile;
use crate::source::FileMetadata;

impl Extractor<'_, '_> {
    /// Removes the access control lists that the top of the copy has from the host's directory:
    /// they would let in those that the image keeps out. What is below inherits none then.
    pub(super) fn disinherit(
        &self,
        source: &ImageFile,
        remove: impl Fn(&OsStr) -> rustix::io::Result<()>,
    ) -> Result<()> {
        for list in [acl::ACCESS, acl::DEFAULT] {
            match remove(OsStr::from_bytes(list)) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => {}
                removed => removed.with_host_file(
                    &self.host_path(source),
                    "remove the access control list that it has from its directory",
                )?,
            }
        }
        Ok(())
    }

    /// Sets the attributes of an open file, and returns its mode; a directory stays open to the
    /// copy. The owner comes first, since a change of owner removes capabilities and set-user-ID
    /// bits. The mode comes after the extended attributes, since an ordinary user cannot set any on
    /// a file that is not writable.
    pub(super) fn apply_metadata(
        &mut self,
        file: BorrowedFd<'_>,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<Mode> {
        if self.options.owners {
            let (uid, gid) = owner(metadata);
            fchown(file, Some(uid.as_raw()), Some(gid.as_raw()))
                .with_host_file(&self.host_path(source), "give it its owner")?;
        }
        let mode = self.apply_attributes(metadata, |name, value| {
            rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())
        });
        let open = match metadata.kind {
            FileType::Directory => DIRECTORY_TO_FILL,
            _ => Mode::empty(),
        };
        set_mode(file, mode | open).with_host_file(&self.host_path(source), "give it its mode")?;
        rustix::fs::futimens(file, &times(metadata))
            .with_host_file(&self.host_path(source), "give it its times")?;
        Ok(mode)
    }

    /// Sets the attributes of a link or special file, whose opening would have side effects.
    pub(super) fn apply_metadata_by_name(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<()> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if self.options.owners {
            let (uid, gid) = owner(metadata);
            rustix::fs::chownat(parent, name, Some(uid), Some(gid), flags)
                .with_host_file(&self.host_path(source), "give it its owner")?;
        }
        let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
        let path = path.join(name);
        if source.path_below_top().is_empty() && metadata.kind != FileType::Symlink {
            self.disinherit(source, |list| rustix::fs::lremovexattr(&path, list))?;
        }
        let mode = self.apply_attributes(metadata, |name, value| {
            rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())
        });
        if metadata.kind != FileType::Symlink {
            // By the C library, as for `set_mode`.
            fs::set_permissions(&path, Permissions::from_mode(mode.as_raw_mode()))
                .or_else(|_| rustix::fs::chmodat(parent, name, mode, AtFlags::empty()))
                .with_host_file(&self.host_path(source), "give it its mode")?;
        }
        rustix::fs::utimensat(parent, name, &times(metadata), flags)
            .with_host_file(&self.host_path(source), "give it its times")
    }

    /// Sets the extended attributes, and returns the mode that belongs to what was set.
    fn apply_attributes(
        &mut self,
        metadata: &FileMetadata,
        set: impl Fn(&OsStr, &[u8]) -> rustix::io::Result<()>,
    ) -> Mode {
        let mut permissions = metadata.permissions;
        for (name, value) in &metadata.xattrs {
            let is_kept = self.wanted(name, value).is_some_and(|value| {
                let done = set(OsStr::from_bytes(name), &value);
                self.copied.attributes_skipped += u64::from(done.is_err());
                done.is_ok()
            });
            if name == acl::ACCESS && !is_kept {
                permissions = without_list(permissions, value);
            }
        }
        let kept = if self.options.owners { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(u32::from(permissions & kept))
    }

    /// The attribute's value on the host; `None` if it is not copied.
    fn wanted(&mut self, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let is_users = name.starts_with(b"user.") || acl::is_list(name);
        if !is_users && !self.options.owners {
            self.copied.attributes_skipped += 1;
            return None;
        }
        if acl::is_list(name) {
            let list = acl::stored_to_call(value).ok();
            self.copied.attributes_skipped += u64::from(list.is_none());
            return list;
        }
        Some(value.to_vec())
    }
}

/// Permissions of a file that loses its access list. With a list, their bits for the group are the
/// list's mask: without it they would give the group what only others were given.
fn without_list(permissions: u16, list: &[u8]) -> u16 {
    let entries = acl::decode(list).unwrap_or_default();
    let groups = entries
        .iter()
        .find(|entry| entry.tag == acl::GROUP_OBJECT)
        .map_or(0, |entry| entry.permissions & 7);
    permissions & !(0o070 & !(groups << 3))
}

fn owner(metadata: &FileMetadata) -> (Uid, Gid) {
    (Uid::from_raw(metadata.uid), Gid::from_raw(metadata.gid))
}

/// As fchmod(2). `rustix` calls the system past the C library here, as for a change of owner, and
/// so past what stands in its place, like `fakeroot`.
pub(super) fn set_mode(file: BorrowedFd<'_>, mode: Mode) -> io::Result<()> {
    let file = File::from(file.try_clone_to_owned()?);
    file.set_permissions(Permissions::from_mode(mode.as_raw_mode()))
}

fn times(metadata: &FileMetadata) -> Timestamps {
    let time = |time: pext4_fs::Time| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: time(metadata.accessed),
        last_modification: time(metadata.modified),
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::acl::{self, Entry};

    use super::without_list;

    #[test]
    fn a_group_gets_what_its_own_entry_gives_where_the_list_is_lost() {
        let entry = |tag, permissions| Entry {
            tag,
            permissions,
            id: acl::NO_ID,
        };
        let list = acl::encode(&[
            entry(acl::USER_OBJECT, 6),
            Entry {
                id: 1000,
                ..entry(acl::USER, 7)
            },
            entry(acl::GROUP_OBJECT, 4),
            entry(acl::MASK, 7),
            entry(acl::OTHER, 1),
        ]);
        assert_eq!(without_list(0o4671, &list), 0o4641);
        // The mask limits the entry.
        assert_eq!(without_list(0o621, &list), 0o601);
        assert_eq!(without_list(0o671, b"no list"), 0o601);
    }
}
