//! Listing directories.

use std::sync::Arc;

use pext4_ondisk::Corrupt;
use pext4_ondisk::directory::is_valid_name;
use pext4_ondisk::inode::InodeFlags;

use super::{check_not_removed, lock_shared};
use crate::dir;
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::{Attributes, DirectoryEntry, GetAttributes, InodeNumber};
use crate::volume::Volume;

impl Volume {
    /// Lists a directory from `cookie` on (0: the start) until `visit` returns false. `.` and `..`
    /// come first. A cookie stays valid while the directory changes: entries that exist throughout
    /// are listed exactly once.
    ///
    /// `visit` runs with the directory's lock held. It must not call operations of the volume, which
    /// take locks of their own and could deadlock: collect the entries first.
    ///
    /// A name that no file can have (empty, `.` again, or with a slash or zero byte in it) is not
    /// listed; after all other names the listing fails with `Corrupt`. The names of an encrypted
    /// directory are listed as they are stored.
    ///
    /// # Errors
    ///
    /// `Refused(NotADirectory)`, `Corrupt`, `Io`.
    pub fn read_directory(
        &self,
        inode: InodeNumber,
        cookie: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.read_directory_with(inode, cookie, &mut |entry, _| visit(entry))
    }

    /// As [`Volume::read_directory`], with the attributes of the entries. With each entry, `visit`
    /// gets a function that returns the attributes of the entry's inode and, except for `.` and
    /// `..`, holds that inode as [`Volume::lookup`] does. In most directories this needs no second
    /// search for the name. It returns `Refused(NotFound)` if the name was removed meanwhile. If
    /// the name was created again since, the inode in the attributes, which is the one that is
    /// held, differs from the entry's.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_directory`].
    pub fn read_directory_with(
        &self,
        inode: InodeNumber,
        cookie: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>, &mut GetAttributes<'_>) -> bool,
    ) -> Result<()> {
        let directory = self.directory(inode)?;
        let _names = lock_shared(&directory)?;
        check_not_removed(&directory)?;
        let is_encrypted = directory.flags().contains(InodeFlags::ENCRYPT);
        let mut has_invalid_name = false;
        let listed = dir::list(&self.names(&directory), cookie, &mut |entry| {
            if !is_encrypted && !is_valid_name(entry.name) {
                has_invalid_name = true;
                return true;
            }
            let shown = DirectoryEntry {
                inode: entry.inode,
                file_type: entry.file_type,
                name: entry.name,
                next_cookie: entry.next_cookie,
            };
            visit(shown, &mut || {
                let got = self.entry_attributes(&directory, entry.name, entry.inode);
                got.map_err(|error| self.inodes.store.apply_error_policy(error))
            })
        });
        let listed = listed.and_then(|()| match has_invalid_name {
            true => Err(
                Corrupt::new("directory", "holds a name that no file can have")
                    .in_inode(inode)
                    .into(),
            ),
            false => Ok(()),
        });
        listed.map_err(|error| self.inodes.store.apply_error_policy(error))
    }

    /// The attributes of an entry's inode, which is then held, except for `.` and `..`. The caller
    /// holds the directory's lock shared. If names can be removed under the lock of a leaf alone,
    /// the name is looked up again by the index; otherwise the entry cannot have changed.
    fn entry_attributes(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        number: InodeNumber,
    ) -> Result<Attributes> {
        match name {
            b"." => Ok(directory.attributes()),
            b".." => Ok(self.directory(number)?.attributes()),
            _ if self.has_leaf_locks(directory) => {
                let inode = self.hold_named(directory, name)?;
                Ok(inode.ok_or(Refusal::NotFound)?.attributes())
            }
            _ => {
                let inode = self.entry_inode(directory, number)?;
                Ok(self.hand_out(&inode).attributes)
            }
        }
    }
}
