//! The result of an operation, the same for every subject, and the trait of subjects.

use pext4_fs::{Attributes, FileType, Time};

use crate::errno::Failure;
use crate::op::{Name, Op};
use crate::tree::Tree;

// The model judges the engine, so it does not take these from it.

/// Set-group-id, as a permission bit.
pub const SET_GROUP_ID: u16 = 0o2000;
/// The permission bits of a mode.
pub const PERMISSIONS: u16 = 0o7777;

/// The result of one operation.
pub type Outcome = Result<Answer, Failure>;

/// The answer of a successful operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success without a value.
    Done,
    /// A file that was looked up, created or examined.
    File(Facts),
    /// Bytes that were read.
    Bytes(Vec<u8>),
    /// Number of bytes written.
    Count(u64),
    /// The offset that a seek found.
    Offset(u64),
    /// Entries of a directory without `.` and `..`, in the order of the listing.
    Entries(Vec<Listed>),
    /// Names of extended attributes.
    Names(Vec<Name>),
    /// The result of `statfs`.
    Space(Space),
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Its inode number.
    pub inode: u32,
    /// The kind of file in the directory entry, if it has one.
    pub kind: Option<FileType>,
}

impl From<pext4_fs::DirectoryEntry<'_>> for Listed {
    fn from(entry: pext4_fs::DirectoryEntry<'_>) -> Self {
        Self {
            name: entry.name.to_vec(),
            inode: entry.inode.get(),
            kind: entry.file_type,
        }
    }
}

impl Listed {
    /// Whether the entry agrees with the file that its name leads to.
    #[must_use]
    pub fn agrees(&self, facts: &Facts) -> bool {
        self.inode == facts.inode && self.kind.is_none_or(|kind| kind == facts.kind)
    }
}

/// The result of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Inode number.
    pub inode: u32,
    /// What kind of file it is.
    pub kind: FileType,
    /// Permission bits (07777).
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Link count.
    pub links: u32,
    /// Major and minor device number; zero for other files.
    pub device: (u32, u32),
    /// Space taken, in units of 512 bytes.
    pub sectors: u64,
    /// Last access.
    pub accessed: Time,
    /// Last modification.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
}

/// Free and total space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// All inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

impl From<&Attributes> for Facts {
    fn from(attributes: &Attributes) -> Self {
        Self {
            inode: attributes.inode.get(),
            kind: attributes.file_type,
            permissions: attributes.mode & PERMISSIONS,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            links: attributes.links,
            device: (attributes.device.major, attributes.device.minor),
            sectors: attributes.sectors,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
        }
    }
}

/// A file system under test.
pub trait Subject {
    /// Runs one operation.
    fn run(&mut self, op: &Op) -> Outcome;
    /// Walks the whole tree and returns it.
    fn tree(&mut self) -> Result<Tree, Failure>;
}
