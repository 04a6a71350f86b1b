//! Requests that look up, make, move and remove names.

use pext4_fs::{
    Acls, CreateAttributes, DeviceNumber, Entry, FileType, InodeNumber, Refusal, RenameMode,
    SetXattrMode, Whiteout,
};
use pext4_ondisk::acl::{self, Acl};
use pext4_ondisk::directory::{KIND_MASK, PERMISSIONS, SET_GROUP_ID};
use pext4_ondisk::inode::InodeFlags;
use rustix::fs::RenameFlags;

use super::attributes::GROUP_EXECUTE;
use super::{Answer, Caller, Dispatch, Errno, Found};
use crate::node::inode_of;

/// A program that acts with the file's group.
const SET_GROUP_ID_PROGRAM: u32 = (SET_GROUP_ID | GROUP_EXECUTE) as u32;

/// Flags of a directory whose changes must be durable before they are answered: `S` and `D` of
/// `chattr`.
const SYNCHRONOUS: u32 = InodeFlags::SYNC.union(InodeFlags::DIRSYNC).bits();

const RENAME_NO_REPLACE: u32 = RenameFlags::NOREPLACE.bits();
const RENAME_EXCHANGE: u32 = RenameFlags::EXCHANGE.bits();
const RENAME_WHITEOUT: u32 = RenameFlags::WHITEOUT.bits();

/// The mode that a caller asks for, and its umask, which applies unless the directory has a default
/// list.
#[derive(Clone, Copy, Debug)]
pub struct NewMode {
    /// The mode, with the bits of the type where `mknod` is called.
    pub mode: u32,
    /// The bits that the new node does not get.
    pub umask: u32,
}

/// The owner, mode and access lists of a new node, from the caller, the mode that it asks for, and
/// the directory's default list.
struct NewNode {
    new: CreateAttributes,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Dispatch {
    /// Looks a name up; `None` if there is none, which the kernel may cache too. It asks for `.`
    /// (of any node) and `..` only to resolve a file handle, which may be of another mount.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Answer<Option<Found>> {
        let parent = Self::inode(parent)?;
        let found = match name {
            b"." => self.volume.lookup_number(parent),
            _ => self.volume.lookup(parent, name),
        };
        let found = self.answer_unless(found, Refusal::NotFound)?;
        if let Some(root) = found
            .as_ref()
            .filter(|found| found.inode == InodeNumber::ROOT)
        {
            // The kernel has the root always and never forgets it.
            self.volume.forget(root.inode, 1);
        }
        Ok(found.map(|found| self.found(parent, found)))
    }

    /// Makes a file of the type in `mode`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a type that `mknod` does not make; the volume's.
    pub fn make_node(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: NewMode,
        device: DeviceNumber,
    ) -> Answer<Found> {
        // Without a type it is a regular file, as for `mknod(2)`.
        let kind = match u16::try_from(mode.mode & u32::from(KIND_MASK)).expect("sixteen bits") {
            0 => FileType::Regular,
            bits => FileType::from_mode(bits).ok_or(Errno::INVALID)?,
        };
        let device = match kind {
            FileType::CharacterDevice | FileType::BlockDevice => device,
            FileType::Regular | FileType::Fifo | FileType::Socket => DeviceNumber::default(),
            FileType::Directory | FileType::Symlink => return Err(Errno::INVALID),
        };
        let parent = Self::inode(parent)?;
        let new_node = self.new_node(caller, parent, mode, false)?;
        self.make(parent, name, &new_node, kind, device)
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn make_directory(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: NewMode,
    ) -> Answer<Found> {
        let parent = Self::inode(parent)?;
        let new_node = self.new_node(caller, parent, mode, true)?;
        let none = DeviceNumber::default();
        self.make(parent, name, &new_node, FileType::Directory, none)
    }

    /// Makes a regular file without a name (`O_TMPFILE`), which exists while it is held or until
    /// it is linked.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn make_unnamed(&self, caller: Caller, parent: u64, mode: NewMode) -> Answer<Found> {
        let parent = Self::inode(parent)?;
        let NewNode { new, access, .. } = self.new_node(caller, parent, mode, false)?;
        let made = self.retry_if_full(|| self.volume.create_unnamed(parent, &new));
        let found = self.found(parent, self.answer(made)?);
        let inode = found.attributes.inode;
        if let Some(list) = access.as_ref().map(Acl::to_disk) {
            let listed = self.retry_if_full(|| {
                let permissions = new.permissions;
                self.volume
                    .set_access_list(inode, &list, SetXattrMode::Any, permissions)
            });
            // The kernel never hears of the file.
            self.answer(listed)
                .inspect_err(|_| self.volume.forget(inode, 1))?;
        }
        Ok(found)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn make_symlink(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Answer<Found> {
        let parent = Self::inode(parent)?;
        let owner = caller.owner();
        let made = self.retry_if_full(|| self.volume.make_symlink(parent, name, target, &owner));
        let found = self.found(parent, self.answer(made)?);
        self.commit_made(parent, found)
    }

    /// Makes another name for a node.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn link(&self, node: u64, parent: u64, name: &[u8]) -> Answer<Found> {
        let parent = Self::inode(parent)?;
        let inode = Self::inode(node)?;
        let linked = self.retry_if_full(|| self.volume.link(inode, parent, name));
        let found = self.found(parent, self.answer(linked)?);
        self.commit_made(parent, found)
    }

    /// Removes a name of an inode other than a directory.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn unlink(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let parent = Self::inode(parent)?;
        self.answer(self.volume.unlink(parent, name))?;
        self.commit_names(&[parent])
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn remove_directory(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let parent = Self::inode(parent)?;
        self.answer(self.volume.remove_directory(parent, name))?;
        self.commit_names(&[parent])
    }

    /// Moves a name; `flags` are those of `renameat2`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for flags other than `NOREPLACE`, `WHITEOUT` or `EXCHANGE`; the volume's.
    pub fn rename(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer<()> {
        let mode = match flags & !RENAME_WHITEOUT {
            0 => RenameMode::Replace,
            RENAME_NO_REPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVALID),
        };
        let (from, to) = (Self::inode(parent)?, Self::inode(new_parent)?);
        if flags & RENAME_WHITEOUT == 0 {
            let rename = || self.volume.rename(from, name, to, new_name, mode);
            self.answer(self.retry_if_full(rename))?;
            return self.commit_names(&[from, to]);
        }
        let no_bits = NewMode { mode: 0, umask: 0 };
        let new_node = self.new_node(caller, from, no_bits, false)?;
        let list = new_node.access.map(|list| list.to_disk());
        let whiteout = Whiteout {
            owner: new_node.new,
            access_list: list.as_deref(),
        };
        let rename = || {
            self.volume
                .rename_leaving_whiteout(from, name, to, new_name, mode, &whiteout)
        };
        self.answer(self.retry_if_full(rename))?;
        self.commit_names(&[from, to])
    }

    fn found(&self, parent: InodeNumber, entry: Entry) -> Found {
        Found {
            attributes: entry.attributes,
            is_lasting: !self.volume.folds_names(parent),
        }
    }

    /// Whether the names in a directory lead where they do until the kernel itself changes that.
    /// In a casefolded directory a name is also removed or moved by its other spellings.
    #[must_use]
    pub fn are_names_lasting(&self, node: u64) -> bool {
        let inode = Self::inode(node);
        !inode.is_ok_and(|inode| self.volume.folds_names(inode))
    }

    /// Whether a name that does not exist will exist only once the kernel itself has made it. Where
    /// directories may be casefolded, that is unknown for all of them: one that is empty may become
    /// so.
    #[must_use]
    pub fn is_absence_lasting(&self) -> bool {
        !self.volume.may_fold_names()
    }

    /// As [`Self::commit_names`], for a node to which a name was given. The caller of one that does
    /// not become durable gets an error, and so does not hold the node.
    fn commit_made(&self, parent: InodeNumber, found: Found) -> Answer<Found> {
        let committed = self.commit_names(&[parent]);
        if committed.is_err() {
            self.volume.forget(found.attributes.inode, 1);
        }
        committed.map(|()| found)
    }

    /// Waits until a change of names is durable, if the mount's options or a directory's flags ask
    /// for that. The kernel does that only for written content.
    fn commit_names(&self, directories: &[InodeNumber]) -> Answer<()> {
        if self.synchronous_names || directories.iter().any(|&inode| self.is_synchronous(inode)) {
            self.answer(self.volume.sync())?;
        }
        Ok(())
    }

    /// Whether a change of names in these directories is answered only when it is durable. The
    /// transport's threads must not wait for that.
    pub(crate) fn commits_names(&self, directories: &[u64]) -> bool {
        let mut inodes = directories.iter().filter_map(|&node| inode_of(node));
        self.synchronous_names || inodes.any(|inode| self.is_synchronous(inode))
    }

    fn is_synchronous(&self, directory: InodeNumber) -> bool {
        let attributes = self.volume.attributes(directory);
        attributes.is_ok_and(|attributes| attributes.flags & SYNCHRONOUS != 0)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn read_link(&self, node: u64) -> Answer<Vec<u8>> {
        let inode = Self::inode(node)?;
        let target = self.answer(self.volume.read_link(inode))?;
        self.note_access(inode, self.access_times.files);
        Ok(target)
    }

    fn make(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_node: &NewNode,
        kind: FileType,
        device: DeviceNumber,
    ) -> Answer<Found> {
        let acls = [&new_node.access, &new_node.default];
        let [access, default] = acls.map(|list| list.as_ref().map(Acl::to_disk));
        let acls = Acls {
            access: access.as_deref(),
            default: default.as_deref(),
        };
        let new = &new_node.new;
        let made = self.retry_if_full(|| {
            self.volume
                .make_with_acls(parent, name, new, kind, device, &acls)
        });
        let found = self.found(parent, self.answer(made)?);
        self.commit_made(parent, found)
    }

    /// A caller must not make a program that acts with a group which it gets from the directory
    /// only. Kernels since 6.0 see to that themselves.
    fn without_foreign_group_id(
        &self,
        caller: Caller,
        parent: InodeNumber,
        mode: NewMode,
    ) -> Answer<NewMode> {
        if mode.mode & SET_GROUP_ID_PROGRAM != SET_GROUP_ID_PROGRAM {
            return Ok(mode);
        }
        let directory = self.answer(self.volume.attributes(parent))?;
        let keeps = directory.mode & SET_GROUP_ID == 0 || caller.may_keep_group_id(&directory);
        let taken = if keeps { 0 } else { u32::from(SET_GROUP_ID) };
        Ok(NewMode {
            mode: mode.mode & !taken,
            ..mode
        })
    }

    fn new_node(
        &self,
        caller: Caller,
        parent: InodeNumber,
        mode: NewMode,
        directory: bool,
    ) -> Answer<NewNode> {
        let NewMode { mode, umask } = match directory {
            true => mode,
            false => self.without_foreign_group_id(caller, parent, mode)?,
        };
        let bits = |mode: u32| u16::try_from(mode & u32::from(PERMISSIONS)).expect("twelve bits");
        let default = self.acl(parent, acl::DEFAULT)?;
        let (permissions, access) = match &default {
            Some(default) => {
                let inherited = default.inherit(bits(mode));
                (inherited.permissions, inherited.access)
            }
            None => (bits(mode & !umask), None),
        };
        let new = CreateAttributes {
            permissions,
            ..caller.owner()
        };
        Ok(NewNode {
            new,
            access,
            default: default.filter(|_| directory),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_fs::SetAttributes;

    use super::{CreateAttributes, DeviceNumber, Errno, InodeFlags, InodeNumber};
    use crate::dispatch::{Caller, NewMode};
    use crate::node::ROOT_NODE;
    use crate::options::KernelOptions;
    use crate::testing;

    /// By these lookups the kernel resolves a file handle after it has forgotten the file.
    #[test]
    fn handles_lead_to_nodes_and_their_parents() {
        let volume = Arc::new(testing::volume());
        let dispatch = testing::dispatch(&volume);
        let caller = Caller {
            uid: 0,
            gid: 0,
            thread: 0,
        };
        let mode = NewMode {
            mode: 0o755,
            umask: 0,
        };
        let made = dispatch.make_directory(caller, ROOT_NODE, b"directory", mode);
        let node = u64::from(made.expect("room").attributes.inode.get());
        dispatch.forget(node, 1);
        let inode_at = |name: &[u8]| {
            let found = dispatch.lookup(node, name)?;
            Ok(found.map(|found| found.attributes.inode))
        };
        assert_eq!(inode_at(b".."), Ok(Some(InodeNumber::ROOT)));
        assert_eq!(volume.held(), [], "the kernel never forgets the root");
        assert_eq!(inode_at(b"."), Ok(Some(InodeNumber(node as u32))));
        dispatch.forget(node, 1);
        let removed = dispatch.remove_directory(ROOT_NODE, b"directory");
        assert_eq!(removed, Ok(()));
        assert_eq!(inode_at(b"."), Err(Errno::STALE));
        assert_eq!(volume.held(), []);
    }

    #[test]
    fn strangers_make_no_programs_that_act_with_the_directorys_group() {
        let volume = Arc::new(testing::volume());
        let dispatch = testing::dispatch(&volume);
        let new = CreateAttributes {
            gid: 50,
            permissions: 0o2777,
            ..CreateAttributes::default()
        };
        let shared = volume.make_directory(InodeNumber::ROOT, b"shared", &new);
        let shared = u64::from(shared.expect("room").inode.get());
        let mut number = 0;
        let mut made = |uid, gid, parent, mode| {
            number += 1;
            let caller = Caller {
                uid,
                gid,
                thread: 0,
            };
            let (name, mode) = (format!("{number}"), NewMode { mode, umask: 0 });
            let device = DeviceNumber::default();
            let found = dispatch.make_node(caller, parent, name.as_bytes(), mode, device);
            found.expect("room").attributes.mode & 0o7777
        };
        assert_eq!(made(1000, 1000, shared, 0o102_755), 0o755);
        assert_eq!(made(1000, 1000, shared, 0o102_745), 0o2745, "no program");
        assert_eq!(made(1000, 50, shared, 0o102_755), 0o2755, "a member");
        assert_eq!(made(0, 0, shared, 0o102_755), 0o2755, "root");
        assert_eq!(made(1000, 1000, ROOT_NODE, 0o102_755), 0o2755);
    }

    #[test]
    fn names_are_committed_where_the_mount_or_a_directory_says_so() {
        let volume = Arc::new(testing::volume());
        let new = CreateAttributes::default();
        let often = volume.make_directory(InodeNumber::ROOT, b"often", &new);
        let often = often.expect("room").inode;
        let flags = SetAttributes {
            flags: Some(InodeFlags::DIRSYNC.bits()),
            ..SetAttributes::default()
        };
        volume.set_attributes(often, &flags).expect("a flag");
        let node = u64::from(often.get());
        let dispatch = testing::dispatch(&volume);
        assert!(!dispatch.commits_names(&[ROOT_NODE]));
        assert!(dispatch.commits_names(&[node]));
        assert!(dispatch.commits_names(&[ROOT_NODE, node]));
        for (synchronous, synchronous_directories) in [(true, false), (false, true)] {
            let options = KernelOptions {
                synchronous,
                synchronous_directories,
                ..KernelOptions::default()
            };
            let dispatch = testing::dispatch_with(&volume, &options);
            assert!(dispatch.commits_names(&[ROOT_NODE]));
            assert_eq!(dispatch.commits_changes(), synchronous);
        }
    }
}
