//! The volume by paths, in the manner of `std::fs`.
//!
//! Paths are bytes, separated by `/`. Every path starts at the root, with or without a leading `/`.
//! Symbolic links are followed where the function of the same name in `std::fs` follows them;
//! absolute targets start at the volume's root. A path or target that ends in a slash must be that
//! of a directory. An inode is held (see [`Entry`](crate::Entry)) while a [`File`], a [`HeldInode`]
//! or an operation uses it.

mod file;
mod held;
mod open;
mod walk;

use std::collections::HashSet;
use std::io;
use std::ops::Deref;
use std::rc::Rc;

use pext4_ondisk::InodeNumber;

use crate::error::{Refusal, Result};
use crate::types::{
    Attributes, CreateAttributes, DeviceNumber, FileType, RenameMode, SetAttributes, SetXattrMode,
};
use crate::volume::Volume;

pub use file::{File, OpenOptions};
pub use held::HeldInode;
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
/// std::thread::spawn(move || file.metadata()).join().expect("it does not panic")?;
/// // All files are closed, so this is the last reference.
/// Arc::into_inner(volume).expect("no file is open").close()?;
/// # Ok(())
/// # }
/// ```
///
/// What is created belongs to user and group 0 unless [`Paths::owner`] says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Paths<V> {
    volume: V,
    uid: u32,
    gid: u32,
}

/// One entry of a listing, with its own copy of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// The inode to which it refers.
    pub inode: InodeNumber,
    /// The kind of file, if the directory stores it (feature `filetype`).
    pub file_type: Option<FileType>,
}

/// A directory that [`Paths::remove_dir_all`] has yet to remove.
struct PendingRemoval<V: Deref<Target = Volume>> {
    /// Held as long as a directory in it is pending, and no longer: a directory that is removed
    /// while it is held stays in memory and is an orphan.
    parent: Rc<HeldInode<V>>,
    name: Vec<u8>,
    /// The directory, once its entries have been listed.
    entered: Option<InodeNumber>,
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
    pub fn owner(self, uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..self }
    }

    fn new_attributes(&self, permissions: u16) -> CreateAttributes {
        CreateAttributes {
            permissions,
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// The attributes of the inode at a path, as `stat` returns them. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        Ok(self.walk(path.as_ref(), true)?.attributes())
    }

    /// The attributes of the inode at a path, as `lstat` returns them: a symbolic link at the end
    /// is not followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        Ok(self.walk(path.as_ref(), false)?.attributes())
    }

    /// Whether `path` exists. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`], except `Refused(NotFound)`.
    pub fn exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        match self.walk(path.as_ref(), true) {
            Ok(_) => Ok(true),
            Err(error) if error.is(Refusal::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All names of a directory except `.` and `..`.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_directory`].
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        self.entries(self.resolve(path)?.inode)
    }

    fn entries(&self, directory: InodeNumber) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.volume.read_directory(directory, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(DirEntry {
                    name: entry.name.to_vec(),
                    inode: entry.inode,
                    file_type: entry.file_type,
                });
            }
            true
        })?;
        Ok(entries)
    }

    /// Creates a directory, with the permissions 0755.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_directory`].
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent_of_new(path.as_ref())?;
        let new = self.new_attributes(0o755);
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
        path: impl AsRef<[u8]>,
        kind: FileType,
        device: DeviceNumber,
        permissions: u16,
    ) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_ref(), Refusal::NotFound)?;
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
    pub fn create_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
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
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_ref(), Refusal::NotFound)?;
        let (target, new) = (target.as_ref(), self.new_attributes(0));
        let entry = self.volume.make_symlink(parent.inode, name, target, &new)?;
        drop(self.adopt(entry));
        Ok(())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_link`].
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let link = self.resolve_link(path)?;
        self.volume.read_link(link.inode)
    }

    /// Creates another name for the file at `original`; a symbolic link there is not followed.
    ///
    /// # Errors
    ///
    /// As [`Volume::link`].
    pub fn hard_link(&self, original: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let original = self.resolve_link(original)?;
        let (parent, name) = self.parent_of_file(path.as_ref(), Refusal::NotFound)?;
        let entry = self.volume.link(original.inode, parent.inode, name)?;
        drop(self.adopt(entry));
        Ok(())
    }

    /// Removes a name of a file that is not a directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::unlink`].
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_ref(), Refusal::NotADirectory)?;
        self.volume.unlink(parent.inode, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::remove_directory`].
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        self.volume.remove_directory(parent.inode, name)
    }

    /// Removes a directory and everything in it. Symbolic links are removed, not followed, also one
    /// at the end of the path.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_directory`], [`Volume::unlink`] and [`Volume::remove_directory`];
    /// `Refused(NotEmpty)` for a directory that contains itself, or lists no names though it is not
    /// empty, as in a corrupt image. What was removed before an error stays removed.
    pub fn remove_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent(path)?;
        let is_link = self.walk(path, false)?.file_type() == FileType::Symlink;
        if is_link {
            return self.volume.unlink(parent.inode, name);
        }
        let mut pending = vec![PendingRemoval {
            parent: Rc::new(parent),
            name: name.to_vec(),
            entered: None,
        }];
        let mut entered = HashSet::new();
        while let Some(next) = pending.last_mut() {
            match self.volume.remove_directory(next.parent.inode, &next.name) {
                Err(error) if error.is(Refusal::NotEmpty) => {}
                removed => {
                    removed?;
                    if let Some(inode) = pending.pop().and_then(|done| done.entered) {
                        entered.remove(&inode);
                    }
                    continue;
                }
            }
            let found = self.volume.lookup(next.parent.inode, &next.name)?;
            let directory = Rc::new(self.hold(found.inode));
            let is_first = next.entered != Some(directory.inode);
            if is_first {
                if !entered.insert(directory.inode) {
                    return Err(Refusal::NotEmpty.into());
                }
                // Another thread may have put a new directory in the place of the first one.
                if let Some(before) = next.entered.replace(directory.inode) {
                    entered.remove(&before);
                }
            }
            let entries = self.entries(directory.inode)?;
            // A corrupt directory may hide the names that keep it from being empty.
            if entries.is_empty() && !is_first {
                return Err(Refusal::NotEmpty.into());
            }
            for entry in entries {
                match self.volume.unlink(directory.inode, &entry.name) {
                    Err(error) if error.is(Refusal::IsADirectory) => pending.push(PendingRemoval {
                        parent: Rc::clone(&directory),
                        name: entry.name,
                        entered: None,
                    }),
                    unlinked => unlinked?,
                }
            }
        }
        Ok(())
    }

    /// Renames `from` to `to`, which is replaced if it exists.
    ///
    /// # Errors
    ///
    /// As [`Volume::rename`].
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace)
    }

    /// Renames `from` to `to`; `mode` says what happens if that exists.
    ///
    /// # Errors
    ///
    /// As [`Volume::rename`].
    pub fn rename_with(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
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

    /// The whole content of a file. Holes count as the zeroes that they are, and a small image may
    /// have a file of many TiB: [`Self::read_up_to`] is for an image that is not trusted.
    ///
    /// # Errors
    ///
    /// As [`Volume::read`]; an `Io` error of the kind `OutOfMemory`.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.read_up_to(path, u64::MAX)
    }

    /// The whole content of a file of at most `most` bytes.
    ///
    /// # Errors
    ///
    /// `Refused(FileTooLarge)` for a larger file; as [`Self::read`].
    pub fn read_up_to(&self, path: impl AsRef<[u8]>, most: u64) -> Result<Vec<u8>> {
        const CHUNK: usize = 1 << 20;
        let file = self.resolve(path)?;
        let mut content = Vec::new();
        // The size in the image may be wrong: memory grows with the bytes that were read.
        loop {
            let start = content.len();
            if content.try_reserve(CHUNK).is_err() {
                return Err(io::Error::from(io::ErrorKind::OutOfMemory).into());
            }
            content.resize(start + CHUNK, 0);
            let count = self
                .volume
                .read(file.inode, start as u64, &mut content[start..])?;
            content.truncate(start + count);
            if content.len() as u64 > most {
                return Err(Refusal::FileTooLarge.into());
            }
            if count < CHUNK {
                return Ok(content);
            }
        }
    }

    /// Replaces the whole content of a file, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`OpenOptions::open`] and [`Volume::write`].
    pub fn write(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Result<()> {
        let file = self.create(path)?;
        let content = content.as_ref();
        let mut done = 0;
        while done < content.len() {
            done += file.write_at(&content[done..], done as u64)?;
        }
        Ok(())
    }

    /// Changes attributes (permissions, owner, times, size, flags) and returns the new ones.
    /// Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::set_attributes`].
    pub fn set_attributes(
        &self,
        path: impl AsRef<[u8]>,
        change: &SetAttributes,
    ) -> Result<Attributes> {
        self.volume
            .set_attributes(self.resolve(path)?.inode, change)
    }

    /// The names of a file's extended attributes with their prefixes (`user.color`). Symbolic links
    /// are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::xattr_names`].
    pub fn xattr_names(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        self.volume.xattr_names(self.resolve(path)?.inode)
    }

    /// The value of an extended attribute. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::xattr`]; `Refused(NoAttribute)`.
    pub fn xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.volume.xattr(self.resolve(path)?.inode, name.as_ref())
    }

    /// Sets an extended attribute, whether or not it exists. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::set_xattr`].
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let inode = self.resolve(path)?;
        self.volume.set_xattr(
            inode.inode,
            name.as_ref(),
            value.as_ref(),
            SetXattrMode::Any,
        )
    }

    /// Removes an extended attribute. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`] and [`Volume::remove_xattr`]; `Refused(NoAttribute)`.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        let inode = self.resolve(path)?;
        self.volume.remove_xattr(inode.inode, name.as_ref())
    }
}
