//! Listing directories.

use std::sync::Arc;

use pext4_ondisk::Corrupt;
use pext4_ondisk::directory::is_valid_name;

use super::encrypted::is_encrypted;
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
    /// `visit` runs with the directory's lock held. It must not call operations of the volume,
    /// which take locks of their own and could deadlock: collect the entries first.
    ///
    /// A name that no file can have (empty, `.` or `..` again, or with a slash or zero byte in it)
    /// is not listed; after all other names the listing fails with `Corrupt`. The names of an
    /// encrypted directory are listed as they are stored.
    ///
    /// # Errors
    ///
    /// `Refused(NotADirectory)`, `Refused(NotFound)` for a directory that was removed, `Corrupt`,
    /// `Io`.
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
        // `run` repeats an operation only if the disk is full, which no listing finds.
        self.run(|| self.list_entries(inode, cookie, visit))
    }

    fn list_entries(
        &self,
        inode: InodeNumber,
        cookie: u64,
        visit: &mut dyn FnMut(DirectoryEntry<'_>, &mut GetAttributes<'_>) -> bool,
    ) -> Result<()> {
        let directory = self.directory(inode)?;
        let _names = lock_shared(&directory)?;
        check_not_removed(&directory)?;
        let is_encrypted = is_encrypted(&directory);
        let mut has_invalid_name = false;
        dir::list(&self.names(&directory), cookie, &mut |entry| {
            if entry.is_stray_dot() || (!is_encrypted && !is_valid_name(entry.name)) {
                has_invalid_name = true;
                return true;
            }
            let shown = DirectoryEntry {
                inode: entry.inode,
                file_type: entry.file_type,
                name: entry.name,
                cookie: entry.cookie,
                next_cookie: entry.next_cookie,
            };
            visit(shown, &mut || {
                let got = self.entry_attributes(&directory, entry.name, entry.inode);
                got.map_err(|error| self.inodes.store.apply_error_policy(error))
            })
        })?;
        if has_invalid_name {
            let corrupt = Corrupt::new("directory", "holds a name that no file can have");
            return Err(corrupt.in_inode(inode).into());
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use pext4_block::Device;

    use crate::groups::testing::image;
    use crate::{MountOptions, Volume};

    #[test]
    fn an_error_that_a_listing_finds_is_in_the_transaction_when_it_returns() {
        let arguments = ["-b", "1024", "-e", "continue", "-O", "^metadata_csum"];
        let Some(device) = image(&arguments, "16M") else {
            return;
        };
        let open = || Volume::open(device.clone(), MountOptions::default()).expect("a mount");
        let volume = open();
        volume.paths().create_dir("/in").expect("room");
        volume.paths().write("/in/a-b", b"").expect("room");
        volume.close().expect("the device works");
        let mut bytes = vec![0; usize::try_from(device.size()).expect("16 MiB")];
        device.read_at(0, &mut bytes).expect("a ram device");
        // In the directory, and in copies of it that the empty log may still hold.
        for (place, name) in (0..).zip(bytes.windows(3)) {
            if name == b"a-b" {
                device.write_at(place + 1, b"/").expect("a ram device");
            }
        }

        let volume = open();
        let journal = volume.inodes.store.journal();
        let directory = volume.paths().resolve_link("/in").expect("it is there");
        journal.commit_running().expect("the device works");
        let commits = journal.statistics().commits;
        volume
            .read_directory(directory.inode(), 0, &mut |_| true)
            .expect_err("no file can have this name");
        journal.commit_running().expect("the device works");
        assert_eq!(journal.statistics().commits, commits + 1);
    }
}
