//! The volume by paths, in the manner of `std::fs`.
//!
//! Paths are bytes, `/` separates, a leading `/` changes nothing: every path begins at the root.
//! Symbolic links are followed where the function of the same name in `std::fs` follows them;
//! absolute targets begin at the volume's root. An inode is held while a [`File`] or an operation
//! uses it. A path that ends in a slash leads to a directory or to nothing.

use std::io::{self, Read, Seek, SeekFrom, Write};

use pext4_ondisk::InodeNumber;

use crate::error::{Error, Refusal, Result};
use crate::types::{Attributes, FileType, New, RenameMode, SetAttributes};
use crate::volume::Volume;

/// Symbolic links followed in one path, at most, as Linux has it.
const MOST_SYMLINKS: u32 = 40;

/// A volume seen by paths: `volume.paths()`.
#[derive(Clone, Copy)]
pub struct Paths<'v> {
    volume: &'v Volume,
}

/// An inode that is held until this is dropped.
pub struct Held<'v> {
    volume: &'v Volume,
    inode: InodeNumber,
}

impl Held<'_> {
    /// The inode.
    #[must_use]
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// What `stat` tells.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub fn attributes(&self) -> Result<Attributes> {
        self.volume.attributes(self.inode)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.volume.forget(self.inode, 1);
    }
}

/// One name of a listing that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// The inode it leads to.
    pub inode: InodeNumber,
    /// The kind, where the directory remembers it.
    pub file_type: Option<FileType>,
}

impl Volume {
    /// The volume by paths.
    #[must_use]
    pub fn paths(&self) -> Paths<'_> {
        Paths { volume: self }
    }
}

impl<'v> Paths<'v> {
    /// The inode a path leads to, symbolic links followed.
    ///
    /// # Errors
    ///
    /// `Refused(NotFound | NotADirectory | TooManySymlinks)`, `Corrupt`, `Io`.
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Held<'v>> {
        self.walk(path.as_ref(), true)
    }

    /// The inode a path leads to; a symbolic link at its end is not followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn resolve_link(&self, path: impl AsRef<[u8]>) -> Result<Held<'v>> {
        self.walk(path.as_ref(), false)
    }

    fn hold(&self, inode: InodeNumber) -> Held<'v> {
        Held {
            volume: self.volume,
            inode,
        }
    }

    fn root(&self) -> Result<Held<'v>> {
        let entry = self.volume.lookup(InodeNumber::ROOT, b".")?;
        Ok(self.hold(entry.inode))
    }

    fn walk(&self, path: &[u8], follow_last: bool) -> Result<Held<'v>> {
        let mut rest = components(path);
        rest.reverse();
        let wants_directory = path.ends_with(b"/");
        let follow_last = follow_last || wants_directory;
        let mut here = self.root()?;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let entry = self.volume.lookup(here.inode, &name)?;
            let next = self.hold(entry.inode);
            let follows = entry.attributes.file_type == FileType::Symlink
                && (follow_last || !rest.is_empty());
            if !follows {
                here = next;
                continue;
            }
            links += 1;
            if links > MOST_SYMLINKS {
                return Err(Refusal::TooManySymlinks.into());
            }
            let target = self.volume.read_link(next.inode)?;
            rest.extend(components(&target).into_iter().rev());
            if target.first() == Some(&b'/') {
                here = self.root()?;
            }
        }
        if wants_directory && here.attributes()?.file_type != FileType::Directory {
            return Err(Refusal::NotADirectory.into());
        }
        Ok(here)
    }

    /// As [`Paths::parent`] for what is no directory: of a path that ends in a slash it is `otherwise`.
    fn parent_of_file<'p>(
        &self,
        path: &'p [u8],
        otherwise: Refusal,
    ) -> Result<(Held<'v>, &'p [u8])> {
        let found = self.parent(path)?;
        match path.ends_with(b"/") {
            true => Err(otherwise.into()),
            false => Ok(found),
        }
    }

    /// The directory a path lies in, and its last name.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(Held<'v>, &'p [u8])> {
        let end = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(0, |last| last + 1);
        let path = &path[..end];
        let start = path
            .iter()
            .rposition(|&byte| byte == b'/')
            .map_or(0, |slash| slash + 1);
        let name = &path[start..];
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Refusal::Invalid.into());
        }
        Ok((self.walk(&path[..start], true)?, name))
    }

    /// What `stat` tells, symbolic links followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        self.resolve(path)?.attributes()
    }

    /// What `lstat` tells.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Attributes> {
        self.resolve_link(path)?.attributes()
    }

    /// All names of a directory but `.` and `..`.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_directory`].
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<Listed>> {
        let directory = self.resolve(path)?;
        let mut names = Vec::new();
        self.volume
            .read_directory(directory.inode, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    names.push(Listed {
                        name: entry.name.to_vec(),
                        inode: entry.inode,
                        file_type: entry.file_type,
                    });
                }
                true
            })?;
        Ok(names)
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_directory`].
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        let entry = self.volume.make_directory(
            parent.inode,
            name,
            &New {
                permissions: 0o755,
                ..New::default()
            },
        )?;
        drop(self.hold(entry.inode));
        Ok(())
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    ///
    /// # Errors
    ///
    /// As [`Volume::make_symlink`].
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let (parent, name) = self.parent_of_file(path.as_ref(), Refusal::NotFound)?;
        let entry =
            self.volume
                .make_symlink(parent.inode, name, target.as_ref(), &New::default())?;
        drop(self.hold(entry.inode));
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

    /// Gives the file at `original` another name.
    ///
    /// # Errors
    ///
    /// As [`Volume::link`].
    pub fn hard_link(&self, original: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let original = self.resolve_link(original)?;
        let (parent, name) = self.parent_of_file(path.as_ref(), Refusal::NotFound)?;
        let entry = self.volume.link(original.inode, parent.inode, name)?;
        drop(self.hold(entry.inode));
        Ok(())
    }

    /// Removes a name of anything but a directory.
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

    /// Moves a name, replacing what is there.
    ///
    /// # Errors
    ///
    /// As [`Volume::rename`].
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (parent, name) = self.parent(from)?;
        let (new_parent, new_name) = self.parent(to)?;
        if from.ends_with(b"/") || to.ends_with(b"/") {
            let plain = [from, b"/"].concat();
            self.resolve_link(plain)?;
        }
        self.volume.rename(
            parent.inode,
            name,
            new_parent.inode,
            new_name,
            RenameMode::Replace,
        )
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File<'v>> {
        Ok(File {
            held: self.resolve(path)?,
            position: 0,
        })
    }

    /// Opens a file, empty: it is made if it does not exist, where a symbolic link leads too, and cut if it does.
    ///
    /// # Errors
    ///
    /// As [`Volume::create`].
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File<'v>> {
        let mut path = path.as_ref().to_vec();
        for _ in 0..MOST_SYMLINKS {
            if let Some(held) = self.make_or_cut(&path)? {
                return Ok(File { held, position: 0 });
            }
            let target = self.read_link(&path)?;
            let name = path.iter().rposition(|&byte| byte == b'/');
            let above = name.map_or(0, |slash| slash + 1);
            if target.starts_with(b"/") {
                path.clear();
            } else {
                path.truncate(above);
            }
            path.extend(target);
        }
        Err(Refusal::TooManySymlinks.into())
    }

    /// `None` where a symbolic link leads to nothing.
    fn make_or_cut(&self, path: &[u8]) -> Result<Option<Held<'v>>> {
        let (parent, name) = self.parent_of_file(path, Refusal::IsADirectory)?;
        let new = New {
            permissions: 0o644,
            ..New::default()
        };
        match self.volume.create(parent.inode, name, &new) {
            Ok(entry) => return Ok(Some(self.hold(entry.inode))),
            Err(error) if error.is(Refusal::Exists) => {}
            Err(error) => return Err(error),
        }
        let held = match self.resolve(path) {
            Err(error) if error.is(Refusal::NotFound) => return Ok(None),
            held => held?,
        };
        let empty = SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        };
        self.volume.set_attributes(held.inode, &empty)?;
        Ok(Some(held))
    }

    /// The whole content of a file.
    ///
    /// # Errors
    ///
    /// As [`Volume::read`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        const CHUNK: usize = 1 << 20;
        let file = self.resolve(path)?;
        let mut content = Vec::new();
        // The size is only a claim: memory follows what was really read.
        loop {
            let start = content.len();
            content.resize(start + CHUNK, 0);
            let count = self
                .volume
                .read(file.inode, start as u64, &mut content[start..])?;
            content.truncate(start + count);
            if count < CHUNK {
                return Ok(content);
            }
        }
    }

    /// Makes `content` the whole content of a file, which is made if it does not exist.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn write(&self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Result<()> {
        let file = self.create(path)?;
        let content = content.as_ref();
        let mut done = 0;
        while done < content.len() {
            done += self
                .volume
                .write(file.held.inode, done as u64, &content[done..])?;
        }
        Ok(())
    }
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// An open file with a position.
pub struct File<'v> {
    held: Held<'v>,
    position: u64,
}

impl File<'_> {
    /// What `stat` tells.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub fn metadata(&self) -> Result<Attributes> {
        self.held.attributes()
    }

    /// Makes content and attributes durable.
    ///
    /// # Errors
    ///
    /// As [`Volume::sync_file`].
    pub fn sync_all(&self) -> Result<()> {
        self.held.volume.sync_file(self.held.inode, false)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) => error,
            Error::Refused(refusal) => Self::from_raw_os_error(refusal.errno()),
            other => Self::other(other),
        }
    }
}

impl Read for File<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self
            .held
            .volume
            .read(self.held.inode, self.position, into)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for File<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = self
            .held
            .volume
            .write(self.held.inode, self.position, from)?;
        self.position += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(step) => self.position.checked_add_signed(step),
            SeekFrom::End(step) => self.metadata()?.size.checked_add_signed(step),
        };
        self.position = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}
