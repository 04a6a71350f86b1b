//! An image that `ls`, `cat`, `stat` and `tree` look into: single files of it, by path or by name,
//! with errors that name what was asked for. Copies out of it are made by [`pext4_edit::Reader`],
//! which this extends.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result, bail};
use pext4_fs::path::HeldInode;
use pext4_fs::{Attributes, FileType, InodeNumber, Volume};

use crate::device::ImageArgument;
use crate::names;

/// An opened image.
pub struct Viewer(pext4_edit::Reader);

/// A name in a listing of a directory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedName {
    /// The name.
    pub bytes: Vec<u8>,
    /// Where it leads.
    pub inode: InodeNumber,
}

impl Viewer {
    /// Opens an image.
    ///
    /// # Errors
    ///
    /// The image is in use, not an ext4, or damaged.
    pub fn open(image: &ImageArgument) -> Result<Self> {
        let device = image.open_to_read(false)?;
        Ok(Self(pext4_edit::Reader::from_file(device)?))
    }

    /// Its file system.
    pub fn volume(&self) -> &Volume {
        self.0.volume()
    }

    /// Calls `with` with the attributes of the file that a path of the image leads to.
    ///
    /// # Errors
    ///
    /// The path does not exist; errors of `with`.
    pub fn with<R>(&self, path: &OsStr, with: impl FnOnce(&Attributes) -> Result<R>) -> Result<R> {
        with_held(path, self.volume().paths().resolve(path.as_bytes()), with)
    }

    /// As [`Viewer::with`], but a link at the end is not followed.
    ///
    /// # Errors
    ///
    /// As [`Viewer::with`].
    pub fn with_link<R>(
        &self,
        path: &OsStr,
        with: impl FnOnce(&Attributes) -> Result<R>,
    ) -> Result<R> {
        with_held(
            path,
            self.volume().paths().resolve_link(path.as_bytes()),
            with,
        )
    }

    /// The attributes behind a listed name of a directory. The name is not looked up, since that
    /// may fail where the directory's index is damaged, which hides no name from a listing.
    ///
    /// # Errors
    ///
    /// The inode cannot be read.
    pub fn child(&self, directory: InodeNumber, name: &ListedName) -> Result<Attributes> {
        let volume = self.volume();
        if let Ok(attributes) = volume.attributes(name.inode) {
            return Ok(attributes);
        }
        // Of an inode that is in no use, this says so.
        let entry = volume.lookup(directory, &name.bytes)?;
        volume.forget(entry.inode, 1);
        Ok(entry.attributes)
    }

    /// The names in a directory without `.` and `..`, sorted: those that can be read, and the error
    /// if not all can.
    pub fn names(&self, directory: InodeNumber) -> (Vec<ListedName>, Result<()>) {
        let mut names = Vec::new();
        let read = self.volume().read_directory(directory, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(ListedName {
                    bytes: entry.name.to_vec(),
                    inode: entry.inode,
                });
            }
            true
        });
        names.sort_unstable();
        (names, read.map_err(Into::into))
    }

    /// The target of a symbolic link; `None` for other files.
    ///
    /// # Errors
    ///
    /// Errors of the volume.
    pub fn target(&self, attributes: &Attributes) -> Result<Option<Vec<u8>>> {
        if attributes.file_type != FileType::Symlink {
            return Ok(None);
        }
        Ok(Some(self.volume().read_link(attributes.inode)?))
    }
}

fn with_held<R>(
    path: &OsStr,
    held: pext4_fs::Result<HeldInode<&Volume>>,
    with: impl FnOnce(&Attributes) -> Result<R>,
) -> Result<R> {
    let bytes = path.as_bytes();
    if bytes.is_empty() {
        bail!("an empty path leads nowhere; `/` is the root");
    }
    let name = || names::show(bytes);
    let held = held.with_context(name)?;
    let attributes = held.attributes().with_context(name)?;
    with(&attributes)
}
