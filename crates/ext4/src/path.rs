//! The volume by paths, in the manner of `std::fs`.
//!
//! Paths are bytes, separated by `/`: all that is [`AsVolumePath`], such as a `str`, a byte slice
//! or a [`std::path::Path`]. Every path starts at the root, with or without a leading `/`. Symbolic
//! links are followed where the function of the same name in `std::fs` follows them; absolute
//! targets start at the volume's root. A path or target that ends in a slash must be that of a
//! directory. Reading, here or by a [`File`], never changes the time of last access
//! ([`Volume::note_access`] does). An inode is held (see [`Entry`](crate::Entry)) while a [`File`],
//! a [`HeldInode`] or an operation uses it.

mod as_path;
mod attributes;
mod content;
mod file;
mod held;
mod listing;
mod open;
mod open_options;
mod removal;
mod walk;

use std::ops::Deref;

use crate::error::{Refusal, Result};
use crate::types::{CreateAttributes, DeviceNumber, FileType, RenameMode};
use crate::volume::Volume;

pub use as_path::AsVolumePath;
pub use file::File;
pub use held::HeldInode;
pub use listing::{DirEntry, ReadDir};
pub use open_options::OpenOptions;
pub use walk::MAX_SYMLINKS;

use walk::without_slashes;

/// The operations of a volume by path. `V` refers to the volume: `&Volume` from [`Volume::paths`],
/// or `Arc<Volume>` for files that are kept in structures or given to other threads, which borrow
/// nothing and keep the volume open:
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use pext4_fs::path::{File, Paths};
/// use pext4_fs::{MountOptions, Volume};
///
/// let volume = Arc::new(Volume::open_image("disk.img", MountOptions::default())?);
/// let file: File<Arc<Volume>> = Paths::new(Arc::clone(&volume)).open("/etc/hostname")?;
/// std::thread::spawn(move || file.attributes()).join().expect("it does not panic")?;
/// // All files are closed, so this is the last reference.
/// Arc::into_inner(volume).expect("no file is open").close()?;
/// # Ok(())
/// # }
/// ```
///
/// What is created belongs to user and group 0 unless [`Paths::with_owner`] says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Paths<V> {
    volume: V,
    uid: u32,
    gid: u32,
}

impl Volume {
    /// The operations of this volume by path.
    #[must_use]
    pub fn paths(&self) -> Paths<&Self> {
        Paths::new(self)
    }
}

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// The operations of the volume to which `volume` refers.
    #[must_use]
    pub fn new(volume: V) -> Self {
        Self {
            volume,
            uid: 0,
            gid: 0,
        }
    }

    /// The same operations, with this user and group as the owner of what is created. (In a
    /// directory with the set-group-id bit, the directory's group takes the place of `gid`.)
    #[must_use]
    pub fn with_owner(self, uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..self }
    }

    fn new_attributes(&self, permissions: u16) -> CreateAttributes {
        CreateAttributes {
            permissions,
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// Whether `path` exists. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`], except `Refused(NotFound)`.
    pub fn exists(&self, path: impl AsVolumePath) -> Result<bool> {
        match self.walk(path.as_volume_path(), true) {
            Ok(_) => Ok(true),
            Err(error) if error.is(Refusal::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a directory, with the permissions 0755.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_directory`].
    pub fn create_dir(&self, path: impl AsVolumePath) -> Result<()> {
        self.create_dir_with(path, 0o755)
    }

    /// Creates a directory with these permission bits (07777).
    ///
    /// # Errors
    ///
    /// As [`Volume::make_directory`].
    pub fn create_dir_with(&self, path: impl AsVolumePath, permissions: u16) -> Result<()> {
        let (parent, name) = self.parent_of_new(path.as_volume_path())?;
        let new = self.new_attributes(permissions);
        let entry = self.volume.make_directory(parent.inode, name, &new)?;
        drop(self.adopt(entry));
        Ok(())
    }

    /// Makes an empty file of any kind but a directory or a symbolic link, as mknod(2); `device` is
    /// that of a special file.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_node`].
    pub fn make_node(
        &self,
        path: impl AsVolumePath,
        kind: FileType,
        device: DeviceNumber,
        permissions: u16,
    ) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_volume_path(), Refusal::NotFound)?;
        let new = self.new_attributes(permissions);
        let entry = self
            .volume
            .make_node(parent.inode, name, &new, kind, device)?;
        drop(self.adopt(entry));
        Ok(())
    }

    /// Creates a directory and those of its ancestors that do not exist.
    ///
    /// # Errors
    ///
    /// As [`Paths::create_dir`]; a directory that exists is no error.
    pub fn create_dir_all(&self, path: impl AsVolumePath) -> Result<()> {
        let path = path.as_volume_path();
        let ends = path
            .iter()
            .enumerate()
            .filter(|&(at, &byte)| byte == b'/' && at > 0)
            .map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let above = [&path[..end], b"/"].concat();
            match self.resolve(&above) {
                Err(error) if error.is(Refusal::NotFound) => {}
                Ok(_) => continue,
                Err(error) => return Err(error),
            }
            match self.create_dir(&above) {
                // Another thread created it, or it is a symbolic link whose target does not exist.
                Err(error) if error.is(Refusal::Exists) && self.resolve(&above).is_ok() => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Creates a symbolic link to `target` at `path`.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_symlink`].
    pub fn symlink(&self, target: impl AsVolumePath, path: impl AsVolumePath) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_volume_path(), Refusal::NotFound)?;
        let (target, new) = (target.as_volume_path(), self.new_attributes(0));
        let entry = self.volume.make_symlink(parent.inode, name, target, &new)?;
        drop(self.adopt(entry));
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_link`].
    pub fn read_link(&self, path: impl AsVolumePath) -> Result<Vec<u8>> {
        let link = self.resolve_link(path)?;
        self.volume.read_link(link.inode)
    }

    /// Creates another name for the file at `original`; a symbolic link there is not followed.
    ///
    /// # Errors
    ///
    /// As [`Volume::link`].
    pub fn hard_link(&self, original: impl AsVolumePath, path: impl AsVolumePath) -> Result<()> {
        let original = self.resolve_link(original)?;
        let (parent, name) = self.parent_of_file(path.as_volume_path(), Refusal::NotFound)?;
        let entry = self.volume.link(original.inode, parent.inode, name)?;
        drop(self.adopt(entry));
        Ok(())
    }

    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlink`].
    pub fn remove_file(&self, path: impl AsVolumePath) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_volume_path(), Refusal::NotADirectory)?;
        self.volume.unlink(parent.inode, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::remove_directory`].
    pub fn remove_dir(&self, path: impl AsVolumePath) -> Result<()> {
        let (parent, name) = self.parent(path.as_volume_path())?;
        self.volume.remove_directory(parent.inode, name)
    }

    /// Renames `from` to `to`, which is replaced if it exists.
    ///
    /// # Errors
    ///
    /// As [`Volume::rename`].
    pub fn rename(&self, from: impl AsVolumePath, to: impl AsVolumePath) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames `from` to `to`; `mode` says what happens if that exists.
    ///
    /// # Errors
    ///
    /// As [`Volume::rename`].
    pub fn rename_with(
        &self,
        from: impl AsVolumePath,
        to: impl AsVolumePath,
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (from.as_volume_path(), to.as_volume_path());
        let (parent, name) = self.parent(from)?;
        let (new_parent, new_name) = self.parent(to)?;
        let wants_directory = from.ends_with(b"/") || to.ends_with(b"/");
        // The directory itself: a link to one is refused, as in Linux.
        if wants_directory && !self.walk(without_slashes(from), false)?.is_directory() {
            return Err(Refusal::NotADirectory.into());
        }
        self.volume
            .rename(parent.inode, name, new_parent.inode, new_name, mode)
    }
}
