//! A volume in this process: library calls without system calls.

use std::fmt;

use anyhow::{Context, Result, bail};
use pext4_fs::{
    AllocateMode, CreateAttributes, InodeNumber, RenameMode, SetAttributes, SetXattrMode, Volume,
};

use super::{Node, Room, Target, empty, short_read};

const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o700,
    uid: 0,
    gid: 0,
};

/// The name of the lab's directory.
pub const HOME: &str = "lab";

/// A mounted volume, and the lab's directory in it.
pub struct Library {
    volume: Volume,
    home: Node,
}

impl fmt::Debug for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// Takes a volume and creates the lab's directory in it.
    ///
    /// # Errors
    ///
    /// Errors of the volume.
    pub fn new(volume: Volume) -> Result<Self> {
        let home = volume
            .make_directory(InodeNumber::ROOT, HOME.as_bytes(), &NEW)
            .with_context(|| format!("/{HOME} in the image, which must be free for the lab"))?;
        let home = Node::Held(home.inode);
        Ok(Self { volume, home })
    }

    /// Takes a volume that already has the lab's directory, after [`Library::close`].
    ///
    /// # Errors
    ///
    /// Errors of the volume.
    pub fn reopen(volume: Volume) -> Result<Self> {
        let home = volume.lookup(InodeNumber::ROOT, HOME.as_bytes())?;
        let home = Node::Held(home.inode);
        Ok(Self { volume, home })
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Removes the lab's directory with all its content, and closes the volume.
    ///
    /// # Errors
    ///
    /// Errors of the volume.
    pub fn remove_and_close(self) -> Result<()> {
        empty(&self, &self.home)?;
        self.volume
            .remove_directory(InodeNumber::ROOT, HOME.as_bytes())?;
        self.close()
    }

    /// Writes everything back and closes the volume; the files of the workloads stay.
    ///
    /// # Errors
    ///
    /// Errors of the volume.
    pub fn close(self) -> Result<()> {
        self.volume.forget(inode(&self.home)?, 1);
        Ok(self.volume.close()?)
    }
}

fn inode(node: &Node) -> Result<InodeNumber> {
    match node {
        Node::Held(inode) => Ok(*inode),
        Node::Open(_) => bail!("a descriptor was given to a volume in this process"),
    }
}

impl Target for Library {
    fn root(&self) -> &Node {
        &self.home
    }

    fn directory(&self, parent: &Node, name: &str) -> Result<Node> {
        self.open(parent, name)
    }

    fn make_directory(&self, parent: &Node, name: &str) -> Result<Node> {
        let made = self
            .volume
            .make_directory(inode(parent)?, name.as_bytes(), &NEW)?;
        Ok(Node::Held(made.inode))
    }

    fn create(&self, parent: &Node, name: &str) -> Result<Node> {
        let made = self.volume.create(inode(parent)?, name.as_bytes(), &NEW)?;
        Ok(Node::Held(made.inode))
    }

    fn open(&self, parent: &Node, name: &str) -> Result<Node> {
        let found = self.volume.lookup(inode(parent)?, name.as_bytes())?;
        Ok(Node::Held(found.inode))
    }

    fn close(&self, node: Node) {
        if let Node::Held(inode) = node {
            self.volume.forget(inode, 1);
        }
    }

    fn unlink(&self, parent: &Node, name: &str) -> Result<()> {
        Ok(self.volume.unlink(inode(parent)?, name.as_bytes())?)
    }

    fn remove_directory(&self, parent: &Node, name: &str) -> Result<()> {
        let parent = inode(parent)?;
        Ok(self.volume.remove_directory(parent, name.as_bytes())?)
    }

    fn rename(&self, parent: &Node, name: &str, new_parent: &Node, new_name: &str) -> Result<()> {
        Ok(self.volume.rename(
            inode(parent)?,
            name.as_bytes(),
            inode(new_parent)?,
            new_name.as_bytes(),
            RenameMode::Replace,
        )?)
    }

    fn stat(&self, from: &Node, path: &str) -> Result<u64> {
        let mut parent = inode(from)?;
        let mut size = 0;
        for (depth, name) in path.split('/').enumerate() {
            let found = self.volume.lookup(parent, name.as_bytes());
            if depth > 0 {
                self.volume.forget(parent, 1);
            }
            let found = found?;
            (parent, size) = (found.inode, found.attributes.size);
        }
        self.volume.forget(parent, 1);
        Ok(size)
    }

    fn list(&self, directory: &Node) -> Result<Vec<String>> {
        let mut names = Vec::new();
        self.volume
            .read_directory(inode(directory)?, 0, &mut |entry| {
                if !matches!(entry.name, b"." | b"..") {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                }
                true
            })?;
        Ok(names)
    }

    fn truncate(&self, file: &Node, size: u64) -> Result<()> {
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        self.volume.set_attributes(inode(file)?, &change)?;
        Ok(())
    }

    fn allocate(&self, file: &Node, offset: u64, length: u64) -> Result<()> {
        let file = inode(file)?;
        Ok(self
            .volume
            .allocate(file, AllocateMode::Extend, offset, length)?)
    }

    fn punch(&self, file: &Node, offset: u64, length: u64) -> Result<()> {
        let file = inode(file)?;
        Ok(self
            .volume
            .allocate(file, AllocateMode::PunchHole, offset, length)?)
    }

    fn write(&self, file: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.volume.write(inode(file)?, offset, bytes)?;
        if written < bytes.len() {
            bail!("no space left: {written} of {} bytes", bytes.len());
        }
        Ok(())
    }

    fn read(&self, file: &Node, offset: u64, into: &mut [u8]) -> Result<()> {
        match self.volume.read(inode(file)?, offset, into)? {
            read if read == into.len() => Ok(()),
            _ => short_read(),
        }
    }

    fn room(&self) -> Result<Room> {
        let told = self.volume.statfs();
        Ok(Room {
            bytes: told
                .available_blocks
                .saturating_mul(u64::from(told.block_size)),
            inodes: Some(told.free_inodes),
        })
    }

    fn sync_all(&self) -> Result<()> {
        Ok(self.volume.sync()?)
    }

    fn sync(&self, file: &Node) -> Result<()> {
        Ok(self.volume.fsync(inode(file)?)?)
    }

    fn set_attribute(&self, file: &Node, name: &str, value: &[u8]) -> Result<()> {
        let file = inode(file)?;
        Ok(self
            .volume
            .set_xattr(file, name.as_bytes(), value, SetXattrMode::Any)?)
    }
}
