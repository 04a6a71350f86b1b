//! What an operation gives back, the same for every subject, and what a subject is.

use pext4_fs::{Attributes, FileType, Time};

use crate::errno::Failure;
use crate::op::{Name, Op};
use crate::tree::Tree;

/// Set-group-id, as a permission bit.
pub const SET_GROUP_ID: u16 = 0o2000;
/// The permission bits of a mode.
pub const PERMISSIONS: u16 = 0o7777;

/// Result of one operation.
pub type Outcome = Result<Answer, Failure>;

/// What operations answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing more to say.
    Done,
    /// A file that was looked up, made or asked about.
    File(Facts),
    /// Bytes that were read.
    Bytes(Vec<u8>),
    /// Bytes that were written.
    Count(u64),
    /// An offset that was found.
    Offset(u64),
    /// Entries of a directory, less `.` and `..`, in the order they came.
    Entries(Vec<Listed>),
    /// Names of extended attributes.
    Names(Vec<Name>),
    /// What `statfs` tells.
    Space(Space),
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// The inode it leads to.
    pub inode: u32,
    /// What the directory says it is, where it does.
    pub kind: Option<FileType>,
}

impl Listed {
    /// Whether what is found under the name is what is listed.
    #[must_use]
    pub fn agrees(&self, facts: &Facts) -> bool {
        self.inode == facts.inode && self.kind.is_none_or(|kind| kind == facts.kind)
    }
}

/// What `stat` tells.
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
    /// Names that lead here.
    pub links: u32,
    /// Device number, zero where it is none.
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
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Inodes.
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

/// Something operations can be run on.
pub trait Subject {
    /// Runs one operation.
    fn run(&mut self, op: &Op) -> Outcome;
    /// Walks everything and writes down what is there.
    fn tree(&mut self) -> Result<Tree, Failure>;
}
