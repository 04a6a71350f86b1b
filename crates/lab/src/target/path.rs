//! A directory of any mounted file system: one system call for each call, two to open a name.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, Dir, FallocateFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::{Node, Room, Target, short_read};

/// The lab's directory on a mounted file system.
pub struct MountedPath {
    home: Node,
}

impl fmt::Debug for MountedPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MountedPath")
            .finish_non_exhaustive()
    }
}

impl MountedPath {
    /// Opens an existing directory that nobody else uses.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(home: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let home = rustix::fs::open(home, flags, Mode::empty())
            .with_context(|| home.display().to_string())?;
        Ok(Self {
            home: Node::Open(home),
        })
    }
}

fn descriptor(node: &Node) -> Result<&OwnedFd> {
    match node {
        Node::Open(descriptor) => Ok(descriptor),
        Node::Held(_) => bail!("an inode of a volume in this process was given to a path"),
    }
}

/// Opens a name relative to a directory.
fn open_at(parent: &Node, name: &str, flags: OFlags) -> Result<Node> {
    let mode = Mode::RUSR | Mode::WUSR;
    let parent = descriptor(parent)?;
    let opened = rustix::fs::openat(parent, name, flags | OFlags::CLOEXEC, mode)?;
    Ok(Node::Open(opened))
}

impl Target for MountedPath {
    fn root(&self) -> &Node {
        &self.home
    }

    fn directory(&self, parent: &Node, name: &str) -> Result<Node> {
        open_at(parent, name, OFlags::DIRECTORY)
    }

    fn make_directory(&self, parent: &Node, name: &str) -> Result<Node> {
        rustix::fs::mkdirat(descriptor(parent)?, name, Mode::RWXU)?;
        self.directory(parent, name)
    }

    fn create(&self, parent: &Node, name: &str) -> Result<Node> {
        open_at(parent, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, parent: &Node, name: &str) -> Result<Node> {
        open_at(parent, name, OFlags::RDWR)
    }

    fn close(&self, node: Node) {
        drop(node);
    }

    fn unlink(&self, parent: &Node, name: &str) -> Result<()> {
        let parent = descriptor(parent)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?)
    }

    fn remove_directory(&self, parent: &Node, name: &str) -> Result<()> {
        let parent = descriptor(parent)?;
        Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, parent: &Node, name: &str, new_parent: &Node, new_name: &str) -> Result<()> {
        let (from, to) = (descriptor(parent)?, descriptor(new_parent)?);
        Ok(rustix::fs::renameat(from, name, to, new_name)?)
    }

    fn stat(&self, from: &Node, path: &str) -> Result<u64> {
        let found = rustix::fs::statat(descriptor(from)?, path, AtFlags::SYMLINK_NOFOLLOW)?;
        u64::try_from(found.st_size).context("a size below zero")
    }

    fn list(&self, directory: &Node) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(descriptor(directory)?)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn truncate(&self, file: &Node, size: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(descriptor(file)?, size)?)
    }

    fn allocate(&self, file: &Node, offset: u64, length: u64) -> Result<()> {
        fallocate(file, FallocateFlags::empty(), offset, length)
    }

    fn punch(&self, file: &Node, offset: u64, length: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, offset, length)
    }

    fn write(&self, file: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match rustix::io::pwrite(descriptor(file)?.as_fd(), &bytes[done..], at) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read(&self, file: &Node, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            match rustix::io::pread(descriptor(file)?, &mut into[done..], at) {
                Ok(0) => return short_read(),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn room(&self) -> Result<Room> {
        let told = rustix::fs::fstatvfs(descriptor(&self.home)?)?;
        Ok(Room {
            bytes: told.f_bavail.saturating_mul(told.f_frsize),
            inodes: (told.f_files > 0).then_some(told.f_favail),
        })
    }

    fn sync_all(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(descriptor(&self.home)?)?)
    }

    fn sync(&self, file: &Node) -> Result<()> {
        Ok(rustix::fs::fsync(descriptor(file)?)?)
    }

    fn set_attribute(&self, file: &Node, name: &str, value: &[u8]) -> Result<()> {
        let file = descriptor(file)?;
        Ok(rustix::fs::fsetxattr(
            file,
            name,
            value,
            XattrFlags::empty(),
        )?)
    }
}

fn fallocate(file: &Node, flags: FallocateFlags, offset: u64, length: u64) -> Result<()> {
    loop {
        match rustix::fs::fallocate(descriptor(file)?, flags, offset, length) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}
