//! Operations on names: look up, create, link, remove.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::inode::MAX_LINKS;
use pext4_sync::ShardRef;

use super::attempt::{Attempt, AttemptError, LockMode};
use super::encrypted::{check_makes_names, check_stored_name};
use super::names::{Change, Located, Part};
use super::new_inode::NewInode;
use super::{
    DIRECTORY_CREDITS, INODE_CREDITS, check_directory, check_new_name, check_not_removed,
    lock_exclusive, lock_shared, projects,
};
use crate::dir;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::{Acls, CreateAttributes, DeviceNumber, Entry, FileType, InodeNumber};
use crate::volume::Volume;

/// Metadata blocks that creating an inode may dirty before it has a name: those of the inode, and
/// the first block of a directory or of a long symbolic link.
fn new_inode_credits(kind: FileType) -> u32 {
    let first_block = match kind {
        FileType::Directory | FileType::Symlink => DIRECTORY_CREDITS,
        _ => 0,
    };
    INODE_CREDITS + first_block
}

impl Volume {
    /// Looks up a name, `.` and `..` included. In an encrypted directory the name is the stored
    /// one, which may contain any bytes.
    ///
    /// # Errors
    ///
    /// `Refused(NotFound | NotADirectory | NameTooLong | Invalid)`, `Corrupt`, `Io`.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        self.run(|| {
            let directory = self.directory(parent)?;
            check_stored_name(&directory, name)?;
            self.check_encoded(&directory, name)?;
            let _names = lock_shared(&directory)?;
            check_not_removed(&directory)?;
            if name == b"." {
                return Ok(self.hand_out(&directory));
            }
            if name == b".." {
                let parent = dir::parent(&self.names(&directory))?;
                return Ok(self.hand_out(&*self.directory(parent)?));
            }
            let inode = self.hold_named(&directory, name)?;
            let inode = inode.ok_or(Refusal::NotFound)?;
            Ok(Entry {
                inode: inode.number(),
                attributes: inode.attributes(),
            })
        })
    }

    /// Looks up an inode by its number alone, as a file handle (`name_to_handle_at(2)`) names it.
    /// The caller compares the generation: the number may have been reused.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)` for a number that belongs to no file with a name, `Corrupt`, `Io`.
    pub fn lookup_number(&self, number: InodeNumber) -> Result<Entry> {
        self.run(|| {
            let inode = self.user_inode(number)?;
            let entry = self.hand_out(&inode);
            // Held first: now either the thread that removes its last name sees the hold, or this
            // one sees that the name is gone.
            if !inode.state(|state| state.slot.links > 0) {
                self.forget(number, 1);
                return Err(Refusal::Stale.into());
            }
            Ok(entry)
        })
    }

    /// Makes a regular file.
    ///
    /// # Errors
    ///
    /// `Refused(Exists | NotFound | NotADirectory | NameTooLong | Invalid | NotPermitted |
    /// NoKey | NoSpace | NoInodes | DirectoryFull | ReadOnly)`, `Corrupt`, `Io`. `NotFound` is a
    /// directory that was removed, `NotPermitted` one that is immutable, `NoKey` one that is
    /// encrypted.
    pub fn create(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &CreateAttributes,
    ) -> Result<Entry> {
        self.make(parent, name, &NewInode::new(FileType::Regular, new))
    }

    /// Makes an empty file of any kind but a directory or a symbolic link, as mknod(2); `device` is
    /// that of a special file.
    ///
    /// # Errors
    ///
    /// As [`Volume::create`]; `Refused(Invalid)` for a directory or a symbolic link.
    pub fn make_node(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &CreateAttributes,
        kind: FileType,
        device: DeviceNumber,
    ) -> Result<Entry> {
        match kind {
            FileType::Directory | FileType::Symlink => Err(Refusal::Invalid.into()),
            _ => self.make_with_acls(parent, name, new, kind, device, &Acls::default()),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::create`]; `Refused(TooManyLinks)` if the parent cannot have more
    /// subdirectories.
    pub fn make_directory(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &CreateAttributes,
    ) -> Result<Entry> {
        self.make(parent, name, &NewInode::new(FileType::Directory, new))
    }

    /// Makes a file of any kind except a symbolic link, with access control lists, in one
    /// transaction: after a crash the file has its lists or does not exist.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_directory`]; `Refused(Invalid)` for a symbolic link,
    /// `Refused(AttributesFull)` for lists that together do not fit into a block, unless the volume
    /// has the feature `ea_inode`, `Refused(TooBig)` for one that no system call could return.
    pub fn make_with_acls(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new: &CreateAttributes,
        kind: FileType,
        device: DeviceNumber,
        acls: &Acls<'_>,
    ) -> Result<Entry> {
        if kind == FileType::Symlink {
            return Err(Refusal::Invalid.into());
        }
        let new_inode = NewInode {
            device,
            acls: *acls,
            ..NewInode::new(kind, new)
        };
        self.make(parent, name, &new_inode)
    }

    /// Makes an inode and gives it its first name.
    pub(super) fn make(
        &self,
        parent: InodeNumber,
        name: &[u8],
        new_inode: &NewInode<'_>,
    ) -> Result<Entry> {
        self.run(|| {
            check_new_name(name)?;
            self.inodes.store.check_writable()?;
            let directory = self.directory(parent)?;
            let made = self.in_leaf_or_whole(&directory, |part| {
                self.make_in(&directory, name, new_inode, part)
            });
            self.reap_unused_values();
            made
        })
    }

    fn make_in(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        new_inode: &NewInode<'_>,
        part: Part,
    ) -> Attempt<Entry> {
        let located = self.locate(directory, name, Change::Add, part)?;
        if located.found.is_some() {
            return Err(Refusal::Exists.into());
        }
        check_makes_names(directory)?;
        self.check_encoding_of_new(directory, name)?;
        if new_inode.kind == FileType::Directory {
            // Other threads may create directories in other leaves at the same time. If the number
            // of links is limited, they must be counted one by one.
            if part == Part::Leaf && !self.many_subdirectories {
                return Err(AttemptError::Restart);
            }
            self.check_room_for_subdirectory(directory)?;
        }
        self.prepare_owners_of_new(directory, new_inode.new)?;
        let credits =
            located.adding_credits() + new_inode_credits(new_inode.kind) + new_inode.acl_credits();
        let (mut handle, inode) = self.create_with_lists(directory, new_inode, |ready| {
            let mut handle = self.inodes.store.start(credits + ready.credits())?;
            let inode = self.create_inode(&mut handle, directory, new_inode, ready)?;
            Ok((handle, inode))
        })?;
        let named = self.fill_and_name(&mut handle, &located, (directory, name), &inode, new_inode);
        if let Err(error) = named {
            self.discard_new_inode(&mut handle, &inode)?;
            return Err(error);
        }
        Ok(Entry {
            inode: inode.number(),
            attributes: inode.attributes(),
        })
    }

    /// Writes the initial content of a new inode and adds its name to the directory.
    fn fill_and_name(
        &self,
        handle: &mut Handle<'_>,
        located: &Located<'_>,
        (directory, name): (&Arc<Inode>, &[u8]),
        inode: &Arc<Inode>,
        new_inode: &NewInode<'_>,
    ) -> Attempt<()> {
        match new_inode.kind {
            _ if inode.is_inline() => {}
            FileType::Directory => {
                let mut names = self.names_to_change(inode, handle);
                dir::init(&mut names, directory.number())?;
            }
            FileType::Symlink => self.write_target(handle, inode, new_inode.target)?,
            _ => {}
        }
        // If the name cannot be added, the caller discards the inode with all its changes so far.
        let before = handle.changes();
        let inserted = self.add_located(handle, located, directory, name, inode);
        self.stop_if_attempt_half_done(handle, before, inserted)?;
        if new_inode.kind == FileType::Directory {
            self.add_subdirectory(handle, directory);
        }
        Ok(())
    }

    /// Adds a name and sets the directory's times.
    pub(super) fn insert_name(
        &self,
        handle: &mut Handle<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let mut names = self.names_to_change(directory, handle);
        dir::insert(&mut names, name, inode.number(), inode.file_type())?;
        directory.note_names_changed(handle, now());
        Ok(())
    }

    /// Removes a name and sets the directory's times.
    pub(super) fn remove_name(
        &self,
        handle: &mut Handle<'_>,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<()> {
        let mut names = self.names_to_change(directory, handle);
        dir::remove(&mut names, name)?;
        directory.note_names_changed(handle, now());
        Ok(())
    }

    pub(super) fn check_room_for_subdirectory(&self, directory: &Inode) -> Result<()> {
        let is_full = directory.links() >= u32::from(MAX_LINKS);
        // Linux counts the links of a directory without an index whatever their number.
        if is_full && !(self.many_subdirectories && dir::is_indexed(directory)) {
            return Err(Refusal::TooManyLinks.into());
        }
        Ok(())
    }

    /// Counts the link from the `..` of a new subdirectory. Beyond the limit the count is 1, which
    /// means "not counted".
    pub(super) fn add_subdirectory(&self, handle: &mut Handle<'_>, directory: &Arc<Inode>) {
        directory.edit(handle, Reach::Attributes, |state| {
            let links = state.slot.links;
            state.slot.links = if links == 1 || links >= MAX_LINKS {
                1
            } else {
                links + 1
            };
        });
    }

    /// Removes the link from the `..` of a subdirectory that is gone.
    pub(super) fn drop_subdirectory(&self, handle: &mut Handle<'_>, directory: &Arc<Inode>) {
        directory.edit(handle, Reach::Attributes, |state| {
            if state.slot.links > 2 {
                state.slot.links -= 1;
            }
        });
    }

    /// Gives an inode another name. A file that has lost its last name and is held gets one again
    /// (Linux refuses that, unless it was made without a name).
    ///
    /// # Errors
    ///
    /// As [`Volume::create`], except `NoInodes`; `Refused(NotPermitted)` for directories and for
    /// immutable and append-only files, `Refused(TooManyLinks)`, `Refused(OtherProject)` if the
    /// directory passes on its project and the inode has another one.
    pub fn link(&self, inode: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Entry> {
        self.run(|| {
            check_new_name(name)?;
            self.inodes.store.check_writable()?;
            let directory = self.directory(parent)?;
            let inode = self.user_inode(inode)?;
            if inode.is_directory() {
                return Err(Refusal::NotPermitted.into());
            }
            self.in_leaf_or_whole(&directory, |part| {
                self.link_in(&inode, &directory, name, part)
            })
        })
    }

    fn link_in(
        &self,
        inode: &Arc<Inode>,
        directory: &Arc<Inode>,
        name: &[u8],
        part: Part,
    ) -> Attempt<Entry> {
        let located = self.locate(directory, name, Change::Add, part)?;
        if located.found.is_some() {
            return Err(Refusal::Exists.into());
        }
        let _inode = lock_exclusive(inode)?;
        self.check_changeable(inode)?;
        let links = inode.links();
        if links >= u32::from(MAX_LINKS) {
            return Err(Refusal::TooManyLinks.into());
        }
        check_makes_names(directory)?;
        self.check_encoding_of_new(directory, name)?;
        projects::check_enters(directory, inode)?;
        // A lookup must not find the name before the link is counted. While the whole directory is
        // locked, there are no lookups in it.
        if links == 0 && part == Part::Leaf {
            return Err(AttemptError::Restart);
        }
        if links == 0 {
            self.inodes.finish_truncate(inode)?;
        }
        let credits = located.adding_credits() + INODE_CREDITS;
        let mut handle = self.inodes.store.start(credits)?;
        let linked = self.add_link(&mut handle, &located, (directory, name), inode);
        self.stop_if_attempt_half_done(&handle, 0, linked)?;
        Ok(self.hand_out(inode))
    }

    /// Adds a name. An inode that had no name stops being an orphan.
    fn add_link(
        &self,
        handle: &mut Handle<'_>,
        located: &Located<'_>,
        (directory, name): (&Arc<Inode>, &[u8]),
        inode: &Arc<Inode>,
    ) -> Attempt<()> {
        self.add_located(handle, located, directory, name, inode)?;
        let was_unnamed = inode.links() == 0;
        if was_unnamed {
            self.inodes.remove_orphan(handle, inode)?;
        }
        // Without its first name the file, and so its content, does not survive a crash.
        let reach = if was_unnamed {
            Reach::Data
        } else {
            Reach::Attributes
        };
        let time = now();
        inode.edit(handle, reach, |state| {
            state.slot.links += 1;
            state.slot.changed = time;
        });
        Ok(())
    }

    /// Removes a name of a file that is not a directory. In an encrypted directory the name is the
    /// stored one.
    ///
    /// # Errors
    ///
    /// `Refused(NotFound | NotADirectory | IsADirectory | NameTooLong | Invalid | NotPermitted |
    /// ReadOnly)`, `Corrupt`, `Io`. `NotPermitted` is a file or directory that is immutable or
    /// append-only.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.run(|| {
            if name == b"." || name == b".." {
                return Err(Refusal::IsADirectory.into());
            }
            self.inodes.store.check_writable()?;
            let directory = self.directory(parent)?;
            check_stored_name(&directory, name)?;
            self.check_encoded(&directory, name)?;
            let unlinked = self.in_leaf_or_whole(&directory, |part| {
                let located = self.locate(&directory, name, Change::Remove, part)?;
                let found = located.found.ok_or(Refusal::NotFound)?;
                let unlinked = self.unlink_located(&directory, name, &located, found.inode);
                located.restart_if_changed(unlinked)
            })?;
            unlinked.map_or(Ok(()), |inode| self.reap_unnamed(&inode))
        })
    }

    /// Removes a name that was located. Returns the inode if it was its last name.
    fn unlink_located(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        located: &Located<'_>,
        number: InodeNumber,
    ) -> Attempt<Option<ShardRef<Inode>>> {
        let inode = self.entry_inode_to_remove(directory, number)?;
        if inode.is_directory() {
            return Err(Refusal::IsADirectory.into());
        }
        let lock = lock_exclusive(&inode)?;
        self.check_changeable(&inode)?;
        let mut handle = self.start_removal(&inode)?;
        let removed = self.remove_located(&mut handle, located, directory, name);
        let removed = removed.and_then(|()| Ok(self.drop_link(&mut handle, &inode)?));
        let is_last = self.stop_if_attempt_half_done(&handle, 0, removed)?;
        drop((handle, lock));
        Ok(is_last.then_some(inode))
    }

    /// Removes an empty directory. In an encrypted directory the name is the stored one.
    ///
    /// # Errors
    ///
    /// `Refused(NotFound | NotADirectory | NotEmpty | NameTooLong | Invalid | NotPermitted |
    /// ReadOnly)`, `Corrupt`, `Io`. `NotPermitted` is as for [`Volume::unlink`].
    pub fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        self.run(|| {
            if name == b"." {
                return Err(Refusal::Invalid.into());
            }
            if name == b".." {
                return Err(Refusal::NotEmpty.into());
            }
            self.inodes.store.check_writable()?;
            let removed = self.retry_under_rename_lock(|lock_mode| {
                self.unlink_directory(parent, name, lock_mode)
            })?;
            self.reap_unnamed(&removed)
        })
    }

    /// Removes the name of an empty directory, which becomes an orphan.
    fn unlink_directory(
        &self,
        parent: InodeNumber,
        name: &[u8],
        lock_mode: LockMode,
    ) -> Attempt<Arc<Inode>> {
        let directory = self.directory(parent)?;
        check_stored_name(&directory, name)?;
        self.check_encoded(&directory, name)?;
        let _names = lock_exclusive(&directory)?;
        check_directory(&directory, Change::Remove)?;
        let found = dir::find(&self.names(&directory), name)?.ok_or(Refusal::NotFound)?;
        let inode = self.entry_inode(&directory, found.inode)?;
        if !inode.is_directory() {
            return Err(Refusal::NotADirectory.into());
        }
        let _lock = lock_mode.lock(&inode, 1)?;
        self.check_changeable(&inode)?;
        if !dir::is_empty(&self.names(&inode))? {
            return Err(Refusal::NotEmpty.into());
        }
        let mut handle = self.start_removal(&inode)?;
        let removed = self.remove_name(&mut handle, &directory, name);
        let removed = removed.and_then(|()| {
            self.drop_subdirectory(&mut handle, &directory);
            self.drop_directory(&mut handle, &inode)
        });
        self.stop_if_half_done(&handle, 0, removed)?;
        Ok(Arc::clone(&inode))
    }

    /// Sets the links of a directory that lost its name to 0 and makes it an orphan. The caller
    /// updates the links of its parent.
    pub(super) fn drop_directory(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let time = now();
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.links = 0;
            state.slot.size = 0;
            state.slot.changed = time;
        });
        self.inodes.add_orphan(handle, inode)
    }

    /// Counts one link less; true if it was the last. An inode that is still in use becomes an
    /// orphan.
    pub(super) fn drop_link(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<bool> {
        let time = now();
        let links = inode.edit(handle, Reach::Attributes, |state| {
            state.slot.links = state.slot.links.saturating_sub(1);
            state.slot.changed = time;
            state.slot.links
        });
        if links > 0 {
            return Ok(false);
        }
        if self.inodes.orphans.is_eager() {
            self.inodes.add_orphan(handle, inode)?;
        }
        if !self.reap_at_once(handle, inode)? {
            self.inodes.add_orphan(handle, inode)?;
        }
        Ok(true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{AttemptError, CreateAttributes, FileType, InodeNumber, NewInode, Part, Volume};
    use crate::MountOptions;
    use crate::groups::testing::image;

    /// Two threads that read the count at once would both find room for one more.
    #[test]
    fn where_links_are_limited_directories_are_made_one_by_one() {
        for (features, is_limited) in [("^dir_nlink", true), ("dir_nlink", false)] {
            let Some(device) = image(&["-O", features], "16M") else {
                return;
            };
            let volume = Volume::open(device, MountOptions::default()).expect("a mount");
            for number in 0..200 {
                let name = format!("a-name-of-some-length-{number}");
                let made = volume.create(
                    InodeNumber::ROOT,
                    name.as_bytes(),
                    &CreateAttributes::default(),
                );
                let _ = made.expect("a file, and so an index");
            }
            let directory = volume.directory(InodeNumber::ROOT).expect("the root");
            let new = CreateAttributes::default();
            let new_inode = NewInode::new(FileType::Directory, &new);
            let mut made = 0;
            for number in 0..50 {
                let name = format!("d{number}");
                match volume.make_in(&directory, name.as_bytes(), &new_inode, Part::Leaf) {
                    Ok(_) => made += 1,
                    // A leaf may also be full.
                    Err(AttemptError::Restart) => {}
                    Err(AttemptError::Failed(error)) => panic!("{error}"),
                }
            }
            assert_eq!(made == 0, is_limited, "{made} were made beside others");
            let made = volume.make_directory(InodeNumber::ROOT, b"e", &new);
            let _ = made.expect("in one way or the other");
        }
    }
}
