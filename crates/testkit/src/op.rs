//! The operation language of the tests, fuzzers, the crash rig and saved failures.
//!
//! An operation names files by a [`Target`]: a path from the root, a *slot* that holds a file open
//! (so that the file can outlive its name), or an inode number (recorded concurrent histories).
//! Symbolic links are never followed. Each operation is one line of text; text and value convert
//! into each other without loss.

pub mod generate;
pub mod text;

use pext4_fs::{AllocateMode, FileType, RenameMode, SetTime, SetXattrMode};

/// The bytes of one name.
pub type Name = Vec<u8>;

/// Where a path starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// The root of the tree under test.
    Root,
    /// The file in a slot, put there by [`Op::Hold`] or [`Op::CreateUnnamed`].
    Slot(u8),
    /// An inode by its number; the caller ensures that it is held.
    Inode(u32),
}

/// A file: where to start and the names to walk from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The start.
    pub base: Base,
    /// Names to look up, one after another.
    pub path: Vec<Name>,
}

impl Target {
    /// The root.
    #[must_use]
    pub fn root() -> Self {
        Self {
            base: Base::Root,
            path: Vec::new(),
        }
    }

    /// A path from the root, with names separated by `/`.
    #[must_use]
    pub fn path(path: &str) -> Self {
        let names = path.split('/').filter(|name| !name.is_empty());
        Self {
            base: Base::Root,
            path: names.map(|name| name.as_bytes().to_vec()).collect(),
        }
    }

    /// The file in a slot.
    #[must_use]
    pub fn slot(slot: u8) -> Self {
        Self {
            base: Base::Slot(slot),
            path: Vec::new(),
        }
    }

    /// An inode by number.
    #[must_use]
    pub fn inode(number: u32) -> Self {
        Self {
            base: Base::Inode(number),
            path: Vec::new(),
        }
    }

    /// The target with one more name.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut path = self.path.clone();
        path.push(name.to_vec());
        Self {
            base: self.base,
            path,
        }
    }

    /// The directory and the last name; `None` without a name.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &Name)> {
        let (name, directory) = self.path.split_last()?;
        Some((
            Self {
                base: self.base,
                path: directory.to_vec(),
            },
            name,
        ))
    }
}

/// The initial attributes of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NewAttributes {
    /// Permission bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl NewAttributes {
    /// Owned by root, with these permissions.
    #[must_use]
    pub fn plain(permissions: u16) -> Self {
        Self {
            permissions,
            uid: 0,
            gid: 0,
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Looks up a name.
    Lookup(Target),
    /// Creates a regular file.
    Create {
        /// Its place.
        at: Target,
        /// Its beginning.
        new: NewAttributes,
    },
    /// Creates a directory.
    MakeDirectory {
        /// Its place.
        at: Target,
        /// Its beginning.
        new: NewAttributes,
    },
    /// Creates a fifo, socket or device.
    MakeNode {
        /// Its place.
        at: Target,
        /// Its beginning.
        new: NewAttributes,
        /// Kind of file.
        kind: FileType,
        /// Major and minor number.
        device: (u32, u32),
    },
    /// Creates a symbolic link.
    MakeSymlink {
        /// Its place.
        at: Target,
        /// Its beginning; permissions are always 0777.
        new: NewAttributes,
        /// The target of the link.
        to: Name,
    },
    /// Creates a hard link.
    Link {
        /// The file.
        of: Target,
        /// The new name.
        at: Target,
    },
    /// Removes a name of anything but a directory.
    Unlink(Target),
    /// Removes an empty directory.
    RemoveDirectory(Target),
    /// Renames a file.
    Rename {
        /// The old name.
        from: Target,
        /// The new name.
        to: Target,
        /// What happens to an existing file at the new name.
        mode: RenameMode,
    },
    /// Holds a file open in a slot; the file that the slot held before is released first.
    Hold {
        /// The file.
        of: Target,
        /// The slot.
        slot: u8,
    },
    /// Creates a file without a name and holds it.
    CreateUnnamed {
        /// The directory near which it is allocated.
        directory: Target,
        /// Its beginning.
        new: NewAttributes,
        /// The slot.
        slot: u8,
    },
    /// Releases the file in a slot.
    Release(u8),
    /// Reads.
    Read {
        /// The file.
        of: Target,
        /// First byte.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Writes a pattern.
    Write {
        /// The file.
        of: Target,
        /// First byte.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Seed of [`pattern`](crate::content::pattern).
        fill: u64,
    },
    /// Sets the size of a file.
    Truncate {
        /// The file.
        of: Target,
        /// The new size.
        size: u64,
    },
    /// `fallocate`.
    Allocate {
        /// The file.
        of: Target,
        /// What is done to the range.
        mode: AllocateMode,
        /// First byte.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// `SEEK_DATA`.
    SeekData {
        /// The file.
        of: Target,
        /// Start of the search.
        offset: u64,
    },
    /// `SEEK_HOLE`.
    SeekHole {
        /// The file.
        of: Target,
        /// Start of the search.
        offset: u64,
    },
    /// Sets permission bits.
    SetMode {
        /// The file.
        of: Target,
        /// The bits (07777).
        permissions: u16,
    },
    /// Sets owner and group.
    SetOwner {
        /// The file.
        of: Target,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// Sets times.
    SetTimes {
        /// The file.
        of: Target,
        /// Last access; `None` keeps it.
        accessed: Option<SetTime>,
        /// Last modification; `None` keeps it.
        modified: Option<SetTime>,
    },
    /// Sets an extended attribute to a pattern.
    SetXattr {
        /// The file.
        of: Target,
        /// Full name.
        name: Name,
        /// Bytes in the value.
        length: u32,
        /// Seed of the value's pattern.
        fill: u64,
        /// Whether the attribute may or must exist before.
        mode: SetXattrMode,
    },
    /// Reads an extended attribute.
    GetXattr {
        /// The file.
        of: Target,
        /// Full name.
        name: Name,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The file.
        of: Target,
        /// Full name.
        name: Name,
    },
    /// Lists the names of all extended attributes.
    ListXattrs(Target),
    /// Reads the target of a symbolic link.
    ReadLink(Target),
    /// Lists a directory; stops after every `at_once` entries and continues by cookie.
    List {
        /// The directory.
        directory: Target,
        /// Entries between two stops.
        at_once: u32,
    },
    /// `stat`.
    Stat(Target),
    /// `statfs`.
    Statistics,
    /// `fsync` or `fdatasync`.
    SyncFile {
        /// The file.
        of: Target,
        /// `fdatasync`.
        data_only: bool,
    },
    /// `syncfs`.
    Sync,
    /// Closes the file system and opens it again; slots are released first.
    Remount,
}

impl Op {
    /// The end of a match on a group of the variants, which another match has assigned to it.
    pub(crate) fn belongs_elsewhere(&self) -> ! {
        unreachable!("{self} belongs to another group")
    }

    /// Whether the operation never changes the tree.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        matches!(
            self,
            Self::Lookup(_)
                | Self::Read { .. }
                | Self::SeekData { .. }
                | Self::SeekHole { .. }
                | Self::GetXattr { .. }
                | Self::ListXattrs(_)
                | Self::ReadLink(_)
                | Self::List { .. }
                | Self::Stat(_)
                | Self::Statistics
        )
    }
}
