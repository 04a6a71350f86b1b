//! Requests for attributes, and the set-id bits that a change of owner or content clears.

use pext4_fs::{Attributes, FileType, InodeNumber, SetAttributes, SetTime, SetXattrMode, Time};
use pext4_ondisk::acl;
use pext4_ondisk::directory::{PERMISSIONS, SET_GROUP_ID, SET_USER_ID};
use rustix::fs::OFlags;

use super::data::is_append_only;
use super::ioctl::{is_immutable, is_protected};
use super::{Answer, Caller, Capability, Dispatch, Errno};

pub(super) const GROUP_EXECUTE: u16 = 0o0010;

/// What a request names. The kernel names an open file when it writes back the times that it kept;
/// for a program it does so only for a new size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Only the node.
    Node,
    /// An open file of the node.
    OpenFile,
}

/// The changes that `SETATTR` asks for; `None` leaves an attribute as it is.
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
    /// Last change of the inode, if the kernel keeps that time itself.
    pub changed: Option<SetTime>,
}

impl Change {
    /// The times of modification and change, if the request consists of these: the kernel kept them
    /// and writes them back.
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

    /// Whether the change clears the file's set-id bits: a new owner always does, and a new size
    /// unless the caller has [`Capability::SetIds`].
    fn may_clear_set_id(&self) -> bool {
        self.mode.is_none() && (self.is_of_owner() || self.size.is_some())
    }

    /// Whether it is a `chown`.
    fn is_of_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some() || self.is_same_owner()
    }

    /// Whether a file system of the kernel gives the file an owner, as overlayfs does when it
    /// copies a file with its mode up: set-id bits stay then. A `chown(2)` of a regular file always
    /// has the time of the change as well, since the kernel keeps the times of regular files
    /// itself.
    fn is_of_a_copy(&self, attributes: &Attributes) -> bool {
        let has_owner = self.uid.is_some() || self.gid.is_some();
        has_owner && self.changed.is_none() && attributes.file_type == FileType::Regular
    }

    /// Whether the request is a `chown` that names neither owner nor group (both -1): it has at
    /// most the time of the change. A write that clears set-id bits looks the same, without a time.
    fn is_same_owner(&self) -> bool {
        let nothing = Self {
            changed: self.changed,
            ..Self::default()
        };
        *self == nothing
    }
}

/// The permissions without the set-id bits, or `None` if there are none to clear. As in Linux since
/// 6.2, a set-group-id bit without group execution (it once meant mandatory locking) stays if
/// `may_keep` says so of the caller.
fn without_set_id(attributes: &Attributes, may_keep: impl FnOnce() -> bool) -> Option<u16> {
    let permissions = attributes.permissions();
    if attributes.file_type == FileType::Directory {
        return None;
    }
    let mut left = permissions & !SET_USER_ID;
    if left & SET_GROUP_ID != 0 && (left & GROUP_EXECUTE != 0 || !may_keep()) {
        left &= !SET_GROUP_ID;
    }
    (left != permissions).then_some(left)
}

/// Whether the caller may make a change of owner that names no owner. If no set-id bit would be
/// cleared, everyone may, else only who may act for the owner. The kernel checks only callers that
/// name a new owner. For a regular file it sends the time of such a `chown`; a request without a
/// time comes from a write, which was permitted.
fn may_take_set_id(caller: Caller, attributes: &Attributes, change: &Change) -> bool {
    let is_write = is_of_a_write(attributes, change);
    let goes = || without_set_id(attributes, || caller.may_keep_group_id(attributes)).is_some();
    let acts_for_owner = || caller.uid == attributes.uid || caller.has(Capability::Ownership);
    !change.is_same_owner() || is_write || !goes() || acts_for_owner()
}

/// Whether the file has set-id bits, and the caller may not keep them when it changes the content.
fn loses_set_id(caller: Caller, attributes: &Attributes) -> bool {
    let has_bits = attributes.mode & (SET_USER_ID | SET_GROUP_ID) != 0;
    has_bits && !caller.has(Capability::SetIds)
}

/// Whether a request only clears the bits that a write clears.
fn is_of_a_write(attributes: &Attributes, change: &Change) -> bool {
    attributes.file_type == FileType::Regular && *change == Change::default()
}

impl Dispatch {
    /// The attributes of a node, for `stat(2)`.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn attributes(&self, node: u64) -> Answer<Attributes> {
        self.answer(self.volume.attributes(Self::inode(node)?))
    }

    /// `access(2)` of root, which the kernel sends if it does not check permissions itself.
    ///
    /// # Errors
    ///
    /// `EROFS` for writing on a read-only volume, `EPERM` for writing an immutable file, `EACCES`
    /// for executing a file without any execute bit; the volume's.
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

    /// Opening a file, where the kernel asks. `flags` are those of `open(2)`.
    ///
    /// # Errors
    ///
    /// `EPERM` for opening an immutable file or one with fs-verity for writing, or an append-only
    /// one for more than appending; `ENOKEY` for opening an encrypted one for writing; the
    /// volume's.
    pub fn check_open(&self, node: u64, flags: i32) -> Answer<()> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if !flags.intersects(OFlags::RWMODE) {
            return Ok(());
        }
        let attributes = self.attributes(node)?;
        if is_append_only(&attributes) && !flags.contains(OFlags::APPEND) {
            return Err(Errno::NOT_PERMITTED);
        }
        self.answer(attributes.check_content_changes())
    }

    /// Changes attributes. A new mode also updates the access list. A new owner clears the set-id
    /// bits, except from a file system of the kernel, as does a new size unless the caller may keep
    /// them.
    ///
    /// # Errors
    ///
    /// `EPERM` if the caller may not act for the owner, and its `chown` names no owner and would
    /// clear set-id bits; the volume's.
    pub fn set_attributes(
        &self,
        caller: Caller,
        node: u64,
        change: &Change,
        named: Named,
    ) -> Answer<Attributes> {
        let inode = Self::inode(node)?;
        if let Some((modified, changed)) = change.times_written_back() {
            let mut attributes = self.answer(self.volume.attributes(inode))?;
            // The kernel writes times back after every unlink, and nobody will ever read them.
            if attributes.links == 0 {
                (attributes.modified, attributes.changed) = (modified, changed);
                return Ok(attributes);
            }
            // The file may become immutable at any moment, which refuses other changes of times.
            if named == Named::OpenFile {
                let written = self.volume.set_times_from_cache(inode, modified, changed);
                let attributes = self.answer(written)?;
                self.commit_change()?;
                return Ok(attributes);
            }
        }
        let mut permissions = self.set_mode_and_list(inode, change)?;
        let mut changed = change.changed;
        if change.may_clear_set_id() {
            let attributes = self.answer(self.volume.attributes(inode))?;
            if !may_take_set_id(caller, &attributes, change) {
                return Err(Errno::NOT_PERMITTED);
            }
            if is_of_a_write(&attributes, change) {
                // A write may also clear the file's capabilities only, which are not handled here.
                self.clear_set_id_unless_capable(caller, node)?;
                return self.attributes(node);
            }
            let may_keep = change.is_of_a_copy(&attributes)
                || !change.is_of_owner() && !loses_set_id(caller, &attributes);
            if !may_keep {
                permissions = without_set_id(&attributes, || caller.may_keep_group_id(&attributes));
            }
            // Even that of an append-only file may be set to the present.
            if change.is_same_owner() && (changed.is_none() || is_protected(attributes.flags)) {
                changed = Some(SetTime::Now);
            }
        }
        let set = SetAttributes {
            permissions,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            accessed: change.accessed,
            modified: change.modified,
            changed,
            ..SetAttributes::default()
        };
        let attributes = self.answer(self.volume.set_attributes(inode, &set))?;
        self.commit_change()?;
        Ok(attributes)
    }

    /// Clears the set-id bits of a file whose content changes; true if it had any. The kernel may
    /// have cached the mode: the caller of this function must notify it.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn clear_set_id(&self, caller: Caller, node: u64) -> Answer<bool> {
        let inode = Self::inode(node)?;
        let attributes = self.answer(self.volume.attributes(inode))?;
        let permissions = without_set_id(&attributes, || caller.may_keep_group_id(&attributes));
        if let Some(left) = permissions {
            let taken = attributes.permissions() & !left;
            self.answer(self.volume.take_permissions(inode, taken))?;
        }
        Ok(permissions.is_some())
    }

    /// As [`Self::clear_set_id`], where the kernel has not judged whether the caller may keep them.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn clear_set_id_unless_capable(&self, caller: Caller, node: u64) -> Answer<bool> {
        let attributes = self.attributes(node)?;
        if !loses_set_id(caller, &attributes) {
            return Ok(false);
        }
        self.clear_set_id(caller, node)
    }

    /// If the new mode also changes the file's access list, sets both, in one transaction: for the
    /// list a block may be missing, and the two must not contradict each other. Returns the
    /// permissions that are still to be set together with the other attributes.
    fn set_mode_and_list(&self, inode: InodeNumber, change: &Change) -> Answer<Option<u16>> {
        let Some(mode) = change.mode else {
            return Ok(None);
        };
        let mode = u16::try_from(mode & u32::from(PERMISSIONS)).expect("twelve bits");
        let Some(list) = self.acl(inode, acl::ACCESS)? else {
            return Ok(Some(mode));
        };
        let changed = list.clone().with_mode(mode);
        if changed == list {
            return Ok(Some(mode));
        }
        // A set-id bit is meant for the owner that the same request sets, so it comes with the
        // owner.
        let changes_owner = change.uid.is_some() || change.gid.is_some();
        let permissions = match changes_owner {
            true => mode & !(SET_USER_ID | SET_GROUP_ID),
            false => mode,
        };
        let stored = changed.to_disk();
        self.answer(self.retry_if_full(|| {
            self.volume
                .set_access_list(inode, &stored, SetXattrMode::Any, permissions)
        }))?;
        Ok(changes_owner.then_some(mode))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_fs::{CreateAttributes, InodeNumber, Refusal, SetTime, Time, Volume};
    use pext4_ondisk::acl::{self, Entry};

    use super::{
        Attributes, Caller, Change, Errno, FileType, Named, loses_set_id, may_take_set_id,
        without_set_id,
    };
    use crate::dispatch::NewXattr;
    use crate::node::node_of;
    use crate::testing;

    /// A file with the permissions of a mode, whose type is the same.
    fn file(file_type: FileType, mode: u16) -> Attributes {
        Attributes::new(InodeNumber(12), file_type, mode)
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
    fn only_the_owner_may_make_a_chown_that_names_no_owner_and_clears_bits() {
        let caller = |uid| Caller {
            uid,
            gid: 7,
            thread: 0,
        };
        let owned = |file_type, mode| {
            let mut owned = file(file_type, mode);
            owned.uid = 1000;
            owned
        };
        let chown = Change {
            changed: Some(SetTime::Now),
            ..Change::default()
        };
        let may = |uid, file: &Attributes| may_take_set_id(caller(uid), file, &chown);
        let set_id = owned(FileType::Regular, 0o104_755);
        assert!(may(0, &set_id) && may(1000, &set_id));
        assert!(!may(1001, &set_id));
        let foreign = owned(FileType::Regular, 0o102_745);
        assert!(!may(1001, &foreign), "as on Linux");
        let mut of_group = foreign;
        of_group.gid = 7;
        assert!(may(1001, &of_group), "the bit stays");
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
    fn set_id_bits_depend_on_the_change_and_the_caller() {
        let caller = |uid, gid| Caller {
            uid,
            gid,
            thread: 0,
        };
        let (root, user) = (caller(0, 0), caller(1000, 1000));
        let size = Change {
            size: Some(0),
            ..Change::default()
        };
        assert!(size.may_clear_set_id() && !size.is_of_owner());
        let bits = file(FileType::Regular, 0o104_755);
        assert!(loses_set_id(user, &bits) && !loses_set_id(root, &bits));
        assert!(!loses_set_id(user, &file(FileType::Regular, 0o100_755)));
        let owner = Change {
            gid: Some(7),
            ..Change::default()
        };
        assert!(owner.may_clear_set_id() && owner.is_of_owner());
        assert!(owner.is_of_a_copy(&bits), "of overlayfs");
        let chown = Change {
            changed: Some(SetTime::Now),
            ..owner
        };
        assert!(!chown.is_of_a_copy(&bits));
        assert!(!owner.is_of_a_copy(&file(FileType::Fifo, 0o014_755)));
        assert!(!size.is_of_a_copy(&bits));
        let mode = Change {
            mode: Some(0o4755),
            uid: Some(7),
            ..Change::default()
        };
        assert!(
            !mode.may_clear_set_id(),
            "a mode that is asked for is what it gets"
        );
        let nobody = Change {
            changed: Some(SetTime::Now),
            ..Change::default()
        };
        assert!(nobody.may_clear_set_id() && Change::default().may_clear_set_id());
        let times = Change {
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::Now),
            ..nobody
        };
        assert!(!times.may_clear_set_id());
    }

    /// An access list that is too long for the inode, as in a call.
    fn long_list() -> Vec<u8> {
        let entry = |tag, permissions, id| Entry {
            tag,
            permissions,
            id,
        };
        let mut entries = vec![entry(acl::USER_OBJECT, 6, acl::NO_ID)];
        entries.extend((1000..1050).map(|id| entry(acl::USER, 4, id)));
        entries.push(entry(acl::GROUP_OBJECT, 4, acl::NO_ID));
        entries.push(entry(acl::MASK, 4, acl::NO_ID));
        entries.push(entry(acl::OTHER, 4, acl::NO_ID));
        acl::encode_call(&entries)
    }

    /// Makes a file that takes all free blocks.
    fn fill(volume: &Volume) {
        let name = b"all the rest";
        let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
        let file = made.expect("an inode is free").inode;
        let mut size = 0;
        for length in [1 << 16, 1 << 10] {
            let bytes = vec![1; length];
            let error = loop {
                match volume.write(file, size, &bytes) {
                    Ok(written) => size += written as u64,
                    Err(error) => break error,
                }
            };
            assert!(error.is(Refusal::NoSpace), "{error}");
        }
        volume.forget(file, 1);
    }

    #[test]
    fn a_new_mode_and_its_access_list_are_set_together_or_not_at_all() {
        let volume = Arc::new(testing::volume());
        let dispatch = testing::dispatch(&volume);
        let root = Caller {
            uid: 0,
            gid: 0,
            thread: 0,
        };
        // Equal lists share a block, so a change of one needs another block.
        let [file, _other] = [&b"file"[..], b"other"].map(|name| {
            let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
            let node = node_of(made.expect("room").inode);
            let list = NewXattr {
                value: &long_list(),
                flags: 0,
                clears_set_group_id: None,
            };
            let set = dispatch.set_xattr(root, node, acl::ACCESS, list);
            set.expect("room for one block");
            node
        });
        let state = || {
            let mode = dispatch.attributes(file).expect("it is there").mode & 0o7777;
            let list = dispatch.xattr(file, acl::ACCESS).expect("it is there");
            (mode, list)
        };
        let before = state();
        assert_eq!(before.0, 0o644);
        fill(&volume);
        let change = Change {
            mode: Some(0o4750),
            uid: Some(1000),
            ..Change::default()
        };
        let refused = dispatch.set_attributes(root, file, &change, Named::Node);
        assert_eq!(refused, Err(Errno::NO_SPACE));
        assert!(state() == before, "a refused change has changed something");

        let root_directory = node_of(InodeNumber::ROOT);
        let removed = dispatch.unlink(root_directory, b"all the rest");
        removed.expect("it is there");
        volume.sync().expect("a device in memory");
        let changed = dispatch.set_attributes(root, file, &change, Named::Node);
        let changed = changed.expect("there is room again");
        assert_eq!((changed.uid, changed.mode & 0o7777), (1000, 0o4750));
        let (mode, list) = state();
        let entries = acl::decode_call(&list).expect("it is valid");
        let of = |tag| entries.iter().find(|entry| entry.tag == tag);
        let limits = [acl::USER_OBJECT, acl::MASK, acl::OTHER];
        let limits = limits.map(|tag| of(tag).expect("it was set").permissions);
        assert_eq!((mode, limits), (0o4750, [7, 5, 0]));
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
