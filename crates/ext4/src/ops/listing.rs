//! Listing directories.

use super::{check_not_removed, lock_shared};
use crate::dir;
use crate::error::Result;
use crate::types::{DirectoryEntry, InodeNumber};
use crate::volume::Volume;

impl Volume {
    /// Lists a directory from `cookie` on (0: the start) until `visit` answers false. `.` and `..`
    /// come first. A cookie stays good while the directory changes: entries that exist throughout
    /// are seen exactly once.
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
        let listed = dir::list(&self.names(&directory), cookie, &mut |entry| {
            visit(DirectoryEntry {
                inode: entry.inode,
                file_type: entry.file_type,
                name: entry.name,
                next_cookie: entry.next_cookie,
            })
        });
        listed.map_err(|error| self.inodes.store.judge(error))
    }
}
