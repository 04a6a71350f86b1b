//! Opening files by path, and creating them.

use std::ops::Deref;

use super::walk::{MAX_SYMLINKS, is_name, split};
use super::{File, HeldInode, OpenOptions, Paths};
use crate::error::{Error, Refusal, Result};
use crate::volume::Volume;

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// Opens a file for reading, or a directory to sync it. For other modes use [`OpenOptions`].
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File<V>> {
        OpenOptions::new()
            .read(true)
            .open(self.volume.clone(), path)
    }

    /// Opens a file for reading and writing. The file is created if it does not exist, also as the
    /// target of a symbolic link, and truncated if it exists.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File<V>> {
        OpenOptions::new()
            .owner(self.uid, self.gid)
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(self.volume.clone(), path)
    }

    /// Creates a file; `path` must not exist, not even as a symbolic link.
    pub(super) fn create_new(&self, path: &[u8], permissions: u16) -> Result<HeldInode<V>> {
        let (parent, name) = self.parent_of_file(path, Refusal::IsADirectory)?;
        let new = self.new_attributes(permissions);
        let entry = self.volume.create(parent.inode, name, &new)?;
        Ok(self.adopt(entry))
    }

    /// Finds a file or creates it. Symbolic links at the end of `path` are followed.
    pub(super) fn open_or_create(&self, path: &[u8], permissions: u16) -> Result<HeldInode<V>> {
        let mut path = path.to_vec();
        let mut followed = 0;
        while followed < MAX_SYMLINKS {
            // Most files exist. Opening those must not lock the directory, and no permission to
            // change it is needed.
            match self.resolve(&path) {
                Err(error) if Self::may_create(&path, &error) => {}
                found => return found,
            }
            match self.create_new(&path, permissions) {
                Err(error) if error.is(Refusal::Exists) => {}
                created => return created,
            }
            // Another thread created it, or it is a symbolic link whose target does not exist: the
            // file is created there.
            let target = match self.read_link(&path) {
                // Another thread removed or replaced it meanwhile.
                Err(error) if error.is(Refusal::NotFound) || error.is(Refusal::Invalid) => continue,
                target => target?,
            };
            let above = split(&path).0.len();
            if target.starts_with(b"/") {
                path.clear();
            } else {
                path.truncate(above);
            }
            path.extend(target);
            followed += 1;
        }
        Err(Refusal::TooManySymlinks.into())
    }

    /// Whether a path that could not be resolved may be that of a new file. One with a slash at the
    /// end is refused as that of a directory, whatever is there.
    fn may_create(path: &[u8], error: &Error) -> bool {
        let is_of_directory = path.ends_with(b"/") && error.is(Refusal::NotADirectory);
        is_name(split(path).1) && (error.is(Refusal::NotFound) || is_of_directory)
    }
}
