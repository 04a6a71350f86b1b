//! Opening files by path, and creating them.

use std::ops::Deref;

use super::walk::{MAX_SYMLINKS, is_name, split};
use super::{AsVolumePath, File, HeldInode, OpenOptions, Paths};
use crate::error::{Error, Refusal, Result};
use crate::types::CreateAttributes;
use crate::volume::Volume;

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// Opens a file for reading, or a directory to sync it. For other modes use
    /// [`Paths::open_with`].
    ///
    /// # Errors
    ///
    /// As [`Paths::open_with`].
    pub fn open(&self, path: impl AsVolumePath) -> Result<File<V>> {
        self.open_with(&OpenOptions::new().read(true), path)
    }

    /// Opens a file for reading and writing. The file is created if it does not exist, also as the
    /// target of a symbolic link, and truncated if it exists.
    ///
    /// # Errors
    ///
    /// As [`Paths::open_with`].
    pub fn create(&self, path: impl AsVolumePath) -> Result<File<V>> {
        let options = OpenOptions::new().read(true).write(true);
        self.open_with(&options.create(true).truncate(true), path)
    }

    /// Opens a file as `options` say. A file that is created belongs to the options' owner, or
    /// without one to that of [`Paths::with_owner`].
    ///
    /// # Errors
    ///
    /// `Refused(Invalid)` for options that contradict each other or allow nothing,
    /// `Refused(Exists)` with `create_new`, `Refused(IsADirectory)` for writing to a directory,
    /// `Refused(NotSupported)` for sockets, pipes and devices, `Refused(ReadOnly)`,
    /// `Refused(NotPermitted)` for writing to an immutable file, to one with fs-verity, or to an
    /// append-only one without `append`, `Refused(NoKey)` for writing to an encrypted one, and the
    /// errors of [`Paths::resolve`] and [`Volume::create`].
    pub fn open_with(&self, options: &OpenOptions, path: impl AsVolumePath) -> Result<File<V>> {
        options.check()?;
        let path = path.as_volume_path();
        let (uid, gid) = options.owner.unwrap_or((self.uid, self.gid));
        let new = CreateAttributes {
            permissions: options.permissions,
            uid,
            gid,
        };
        let held = if options.create_new {
            self.create_new(path, &new)?
        } else if options.create {
            self.open_or_create(path, &new)?
        } else {
            self.resolve(path)?
        };
        options.open_held(held)
    }

    /// Creates a file; `path` must not exist, not even as a symbolic link.
    fn create_new(&self, path: &[u8], new: &CreateAttributes) -> Result<HeldInode<V>> {
        let (parent, name) = self.parent_of_file(path, Refusal::IsADirectory)?;
        let entry = self.volume.create(parent.inode, name, new)?;
        Ok(self.adopt(entry))
    }

    /// Finds a file or creates it. Symbolic links at the end of `path` are followed.
    fn open_or_create(&self, path: &[u8], new: &CreateAttributes) -> Result<HeldInode<V>> {
        let mut path = path.to_vec();
        let mut followed = 0;
        while followed < MAX_SYMLINKS {
            // Most files exist. Opening those must not lock the directory, and no permission to
            // change it is needed.
            match self.resolve(&path) {
                Err(error) if Self::may_create(&path, &error) => {}
                found => return found,
            }
            match self.create_new(&path, new) {
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
