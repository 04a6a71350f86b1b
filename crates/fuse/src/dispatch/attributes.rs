//! Attributes: told and changed, and the bits that a change of owner or content takes away.

use pext4_fs::{Attributes, FileType, InodeNumber, SetAttributes, SetTime, Time};
use pext4_ondisk::acl;

use super::ioctl::is_immutable;
use super::{Answer, Caller, Dispatch, Errno};

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o0010;

/// What `SETATTR` asks for; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// New mode; type bits are ignored.
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
    /// Last change of the inode, where the kernel has kept it.
    pub changed: Option<SetTime>,
}

impl Change {
    /// The times, if nothing else changes and the kernel had kept them: then it writes them back.
    fn times_written_back(&self) -> Option<(Time, Time)> {
        let nothing_else = self.mode.is_none()
            && self.uid.is_none()
            && self.gid.is_none()
            && self.size.is_none()
            && self.accessed.is_none();
        match (self.modified, self.changed) {
            (Some(SetTime::To(modified)), Some(SetTime::To(changed))) if nothing_else => {
                Some((modified, changed))
            }
            _ => None,
        }
    }

    /// Whether set-id bits of the file go away: always with a new owner, and with a new size unless
    /// root makes it.
    fn takes_set_id(&self, caller: Caller) -> bool {
        let owner = self.uid.is_some() || self.gid.is_some() || self.is_same_owner();
        self.mode.is_none() && (owner || (self.size.is_some() && !caller.is_root()))
    }

    /// Whether a new owner was asked for who is the old one: `chown` with twice -1 names nothing but,
    /// at most, the time of the change. So does, without a time, a write that takes set-id bits.
    fn is_same_owner(&self) -> bool {
        let nothing = Self {
            changed: self.changed,
            ..Self::default()
        };
        *self == nothing
    }
}

/// The permissions without the set-id bits, or `None` if there are none to take. A set-group-id bit
/// without group execution (it once meant mandatory locking) stays where `may_keep` says that the
/// caller is in the file's group, or root: so does Linux since 6.2.
fn without_set_id(attributes: &Attributes, may_keep: impl FnOnce() -> bool) -> Option<u16> {
    let permissions = attributes.mode & 0o7777;
    if attributes.file_type == FileType::Directory {
        return None;
    }
    let mut left = permissions & !SET_USER_ID;
    if left & SET_GROUP_ID != 0 && (left & GROUP_EXECUTE != 0 || !may_keep()) {
        left &= !SET_GROUP_ID;
    }
    (left != permissions).then_some(left)
}

/// Whether a change of owner that names none may go on: to everyone where no set-id bit would go,
/// else to the owner alone. The kernel checks who may give a file away, and here nobody does. Of a
/// regular file it tells the time of that change; what has not even a time comes from a write, which
/// was allowed.
fn may_take_set_id(caller: Caller, attributes: &Attributes, change: &Change) -> bool {
    let is_write = is_of_a_write(attributes, change);
    let has_bits = attributes.mode & (SET_USER_ID | SET_GROUP_ID) != 0;
    let goes = has_bits && attributes.file_type != FileType::Directory;
    !change.is_same_owner() || is_write || !goes || caller.is_root() || caller.uid == attributes.uid
}

/// Whether the kernel asks for nothing but what a write takes.
fn is_of_a_write(attributes: &Attributes, change: &Change) -> bool {
    attributes.file_type == FileType::Regular && *change == Change::default()
}

impl Dispatch {
    /// What `stat` tells of a node.
    ///
    /// # Errors
    /// The volume's.
    pub fn attributes(&self, node: u64) -> Answer<Attributes> {
        self.answer(self.volume.attributes(Self::inode(node)?))
    }

    /// What `access(2)` tells root, which the kernel asks where it does not judge itself.
    ///
    /// # Errors
    /// `EROFS` for writing where nothing can be written, `EPERM` for writing what is immutable, `EACCES` for executing
    /// a file that nobody may execute; the volume's.
    pub fn check_access_of_root(&self, node: u64, write: bool, execute: bool) -> Answer<()> {
        const EXECUTE: u16 = 0o111;
        let attributes = self.attributes(node)?;
        let has_content = matches!(
            attributes.file_type,
            FileType::Regular | FileType::Directory | FileType::Symlink
        );
        if write && has_content && self.is_read_only() {
            return Err(Errno::READ_ONLY);
        }
        if write && is_immutable(attributes.flags) {
            return Err(Errno::NOT_PERMITTED);
        }
        let is_directory = attributes.file_type == FileType::Directory;
        if execute && !is_directory && attributes.mode & EXECUTE == 0 {
            return Err(Errno::NO_ACCESS);
        }
        Ok(())
    }

    /// Changes attributes. A new mode is carried into the access list, a new owner takes the
    /// set-id bits away, and so does a new size that anyone but root sets.
    ///
    /// # Errors
    /// `EPERM` for a stranger whose `chown` names nobody and would take set-id bits; the volume's.
    pub fn set_attributes(&self, caller: Caller, node: u64, change: &Change) -> Answer<Attributes> {
        let inode = Self::inode(node)?;
        if let Some((modified, changed)) = change.times_written_back() {
            let attributes = self.answer(self.volume.attributes(inode))?;
            // The kernel does this after every unlink, and nobody will ever read these times; of an immutable file
            // it tells when it was written before.
            let comes_late = is_immutable(attributes.flags) && self.late_times.take(inode);
            if attributes.links == 0 || comes_late {
                return Ok(Attributes {
                    modified,
                    changed,
                    ..attributes
                });
            }
        }
        let mut permissions = change
            .mode
            .map(|mode| u16::try_from(mode & 0o7777).expect("twelve bits"));
        if change.takes_set_id(caller) {
            let attributes = self.answer(self.volume.attributes(inode))?;
            if !may_take_set_id(caller, &attributes, change) {
                return Err(Errno::NOT_PERMITTED);
            }
            if is_of_a_write(&attributes, change) {
                // Of root's writes the kernel tells that they took the capabilities, which is not told here.
                if !caller.is_root() {
                    self.take_set_id(caller, node)?;
                }
                return self.attributes(node);
            }
            permissions = without_set_id(&attributes, || caller.may_keep_group_id(&attributes));
        }
        let same_owner = change.is_same_owner().then_some(SetTime::Now);
        let set = SetAttributes {
            permissions,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            accessed: change.accessed,
            modified: change.modified,
            changed: change.changed.or(same_owner),
            ..SetAttributes::default()
        };
        let attributes = self.answer(self.volume.set_attributes(inode, &set))?;
        if change.mode.is_some() {
            self.carry_mode_into_list(inode, attributes.mode)?;
        }
        self.commit_change()?;
        Ok(attributes)
    }

    /// Takes the set-id bits of a file whose content a caller other than root changes; true if it
    /// had any. The kernel, which may remember the mode, is the caller's to tell.
    ///
    /// # Errors
    /// The volume's.
    pub fn take_set_id(&self, caller: Caller, node: u64) -> Answer<bool> {
        let inode = Self::inode(node)?;
        let attributes = self.answer(self.volume.attributes(inode))?;
        let permissions = without_set_id(&attributes, || caller.may_keep_group_id(&attributes));
        if let Some(left) = permissions {
            let taken = attributes.mode & 0o7777 & !left;
            self.answer(self.volume.take_permissions(inode, taken))?;
        }
        Ok(permissions.is_some())
    }

    fn carry_mode_into_list(&self, inode: InodeNumber, mode: u16) -> Answer<()> {
        let Some(list) = self.acl(inode, acl::ACCESS)? else {
            return Ok(());
        };
        let changed = list.clone().with_mode(mode);
        if changed == list {
            return Ok(());
        }
        let bytes = changed.to_disk();
        self.answer(
            self.volume
                .set_xattr(inode, acl::ACCESS, &bytes, Default::default()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Attributes, Caller, Change, FileType, may_take_set_id, without_set_id};
    use pext4_fs::{DeviceNumber, InodeNumber, SetTime, Time};

    fn file(file_type: FileType, mode: u16) -> Attributes {
        Attributes {
            inode: InodeNumber::new(12),
            generation: 0,
            file_type,
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            sectors: 0,
            links: 1,
            device: DeviceNumber::default(),
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            created: None,
            flags: 0,
        }
    }

    #[test]
    fn set_id_bits_go_unless_they_mean_something_else() {
        let taken = |mode: u16, may_keep| {
            without_set_id(&file(FileType::Regular, 0o100_000 | mode), || may_keep)
        };
        let regular = |mode| taken(mode, true);
        assert_eq!(regular(0o4755), Some(0o755));
        assert_eq!(regular(0o6755), Some(0o755));
        assert_eq!(regular(0o2755), Some(0o755));
        assert_eq!(
            regular(0o2744),
            None,
            "no group execution: not a set-id bit"
        );
        assert_eq!(regular(0o6744), Some(0o2744));
        assert_eq!(regular(0o1755), None);
        assert_eq!(taken(0o2744, false), Some(0o744), "a stranger to the group");
        assert_eq!(taken(0o6744, false), Some(0o744));
        let directory = file(FileType::Directory, 0o042_775);
        assert_eq!(without_set_id(&directory, || false), None);
    }

    #[test]
    fn a_change_of_owner_that_names_none_is_the_owners_where_it_takes_bits() {
        let caller = |uid| Caller {
            uid,
            gid: 0,
            process: 1,
        };
        let owned = |file_type, mode| Attributes {
            uid: 1000,
            ..file(file_type, mode)
        };
        let chown = Change {
            changed: Some(SetTime::Now),
            ..Change::default()
        };
        let may = |uid, file: &Attributes| may_take_set_id(caller(uid), file, &chown);
        let set_id = owned(FileType::Regular, 0o104_755);
        assert!(may(0, &set_id) && may(1000, &set_id));
        assert!(!may(1001, &set_id));
        let stays = owned(FileType::Regular, 0o102_745);
        assert!(!may(1001, &stays), "as on Linux");
        let write = Change::default();
        assert!(may_take_set_id(caller(1001), &set_id, &write));
        let pipe = owned(FileType::Fifo, 0o014_755);
        assert!(!may_take_set_id(caller(1001), &pipe, &write), "no write");
        for other in [
            owned(FileType::Regular, 0o101_755),
            owned(FileType::Directory, 0o046_755),
        ] {
            assert!(may(1001, &other));
        }
    }

    #[test]
    fn who_changes_what_decides() {
        let caller = |uid, gid| Caller {
            uid,
            gid,
            process: 1,
        };
        let (root, user) = (caller(0, 0), caller(1000, 1000));
        let size = Change {
            size: Some(0),
            ..Change::default()
        };
        assert!(size.takes_set_id(user) && !size.takes_set_id(root));
        let owner = Change {
            gid: Some(7),
            ..Change::default()
        };
        assert!(owner.takes_set_id(root));
        let mode = Change {
            mode: Some(0o4755),
            uid: Some(7),
            ..Change::default()
        };
        assert!(
            !mode.takes_set_id(root),
            "a mode that is asked for is what it gets"
        );
        let nobody = Change {
            changed: Some(SetTime::Now),
            ..Change::default()
        };
        assert!(nobody.takes_set_id(root) && Change::default().takes_set_id(user));
        let times = Change {
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::Now),
            ..nobody
        };
        assert!(!times.takes_set_id(user));
    }

    #[test]
    fn only_both_times_alone_are_written_back() {
        let time = |seconds| Time {
            seconds,
            nanoseconds: 0,
        };
        let both = Change {
            modified: Some(SetTime::To(time(1))),
            changed: Some(SetTime::To(time(2))),
            ..Change::default()
        };
        assert_eq!(both.times_written_back(), Some((time(1), time(2))));
        for other in [
            Change {
                accessed: Some(SetTime::Now),
                ..both
            },
            Change {
                size: Some(0),
                ..both
            },
            Change {
                modified: Some(SetTime::Now),
                ..both
            },
            Change {
                changed: None,
                ..both
            },
        ] {
            assert_eq!(other.times_written_back(), None, "{other:?}");
        }
    }
}
