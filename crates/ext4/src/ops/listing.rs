//! Listing directories.

use pext4_ondisk::Corrupt;
use pext4_ondisk::directory::is_valid_name;
use pext4_ondisk::inode::InodeFlags;

use super::{check_not_removed, lock_shared};
use crate::dir;
use crate::error::Result;
use crate::types::{DirectoryEntry, InodeNumber};
use crate::volume::Volume;

impl Volume {
    /// Lists a directory from `cookie` on (0: the start) until `visit` answers false. `.` and `..`
    /// come first. A cookie stays good while the directory changes: entries that exist throughout
    /// are seen exactly once. A name that no file can have is left out, and told about behind the others, but in an
    /// encrypted directory, where names are shown as they are stored.
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
        let directory = self.directory(inode)?;
        let _names = lock_shared(&directory)?;
        check_not_removed(&directory)?;
        let is_encrypted = directory.flags().contains(InodeFlags::ENCRYPT);
        let mut holds_no_name = false;
        let listed = dir::list(&self.names(&directory), cookie, &mut |entry| {
            if !is_encrypted && !is_valid_name(entry.name) {
                holds_no_name = true;
                return true;
            }
            visit(DirectoryEntry {
                inode: entry.inode,
                file_type: entry.file_type,
                name: entry.name,
                next_cookie: entry.next_cookie,
            })
        });
        let listed = listed.and_then(|()| match holds_no_name {
            true => Err(
                Corrupt::new("directory", "holds a name that no file can have")
                    .in_inode(inode)
                    .into(),
            ),
            false => Ok(()),
        });
        listed.map_err(|error| self.inodes.store.judge(error))
    }
}
