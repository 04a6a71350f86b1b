//! What callers give and get: attributes, entries, what to change, what to make.
//!
//! Times are seconds since 1970 (negative before) with nanoseconds; sizes and offsets are bytes;
//! modes are those of `stat(2)`, type bits included where a whole mode is given.

pub use pext4_ondisk::directory::FileType;
pub use pext4_ondisk::quota::{Limits as QuotaLimits, OwnerKind};
pub use pext4_ondisk::time::Time;
pub use pext4_ondisk::{InodeNumber, LogicalBlock};

use pext4_ondisk::directory::PERMISSIONS;

use crate::error::Result;

/// A device number of a character or block special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceNumber {
    /// Major number (12 bits).
    pub major: u32,
    /// Minor number (20 bits).
    pub minor: u32,
}

/// What `stat(2)` tells of an inode, and its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attributes {
    /// The inode.
    pub inode: InodeNumber,
    /// Generation: tells a reused inode number from its earlier life.
    pub generation: u32,
    /// What kind of file it is.
    pub file_type: FileType,
    /// Type and permission bits, as `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes, as `st_blocks`.
    pub sectors: u64,
    /// Names that lead here.
    pub links: u32,
    /// The device a special file stands for; zero for all others.
    pub device: DeviceNumber,
    /// Last access.
    pub accessed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// Birth, where the inode has room for it.
    pub created: Option<Time>,
    /// ext4's flags as `FS_IOC_GETFLAGS` shows them.
    pub flags: u32,
    /// Project; 0 where the image has no projects.
    pub project: u32,
}

impl Attributes {
    /// Those of an empty file of root's with one name, at the start of 1970: something to begin
    /// with for tests of what gets attributes.
    #[must_use]
    pub fn new(inode: InodeNumber, file_type: FileType, permissions: u16) -> Self {
        Self {
            inode,
            generation: 0,
            file_type,
            mode: file_type.to_mode() | permissions & PERMISSIONS,
            uid: 0,
            gid: 0,
            size: 0,
            sectors: 0,
            links: 1,
            device: DeviceNumber::default(),
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            created: None,
            flags: 0,
            project: 0,
        }
    }

    /// The permission bits (07777) of the mode.
    #[must_use]
    pub fn permissions(&self) -> u16 {
        self.mode & PERMISSIONS
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type == FileType::Regular
    }

    /// Whether it is a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
    }
}

/// A name that was looked up or created. Its inode is *held*: it stays in existence, even without a
/// name, until [`Volume::forget`](crate::Volume::forget) has been called as often as an `Entry` of
/// it was returned; [`Paths::adopt`](crate::path::Paths::adopt) makes a value of it that does so
/// when it is dropped. It is one hold, so it has no copies. The operations on paths need neither.
#[derive(Debug)]
#[must_use = "it holds the inode: `Volume::forget` or `Paths::adopt` takes the hold"]
pub struct Entry {
    /// The inode that the name leads to.
    pub inode: InodeNumber,
    /// Its attributes at that moment.
    pub attributes: Attributes,
}

/// Permissions and owner of a new inode. By default there are no permissions, and the owner is 0:0.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateAttributes {
    /// Permission bits (07777), the umask already applied; the operation determines the type.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group; that of a set-group-id parent directory is used instead.
    pub gid: u32,
}

/// POSIX access control lists of a new inode, as stored on the image.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acls<'a> {
    /// The access list, if the permission bits alone do not express it.
    pub access: Option<&'a [u8]>,
    /// The default list of a directory: what files and directories created in it inherit.
    pub default: Option<&'a [u8]>,
}

/// What a rename leaves under the old name (`RENAME_WHITEOUT`): an overlay file system hides with
/// it the file of the same name in a lower layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whiteout<'a> {
    /// Owner and group; its permission bits are zero.
    pub owner: CreateAttributes,
    /// Its access list as stored on the image, if it inherits one.
    pub access_list: Option<&'a [u8]>,
}

/// When reading updates the time of last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessTimes {
    /// Not at all (`noatime`).
    Never,
    /// When the last one is not later than the last change of content or inode, or is a day old
    /// (`relatime`).
    #[default]
    Relative,
    /// Always (`strictatime`).
    Strict,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// This time.
    To(Time),
}

/// What to change of an inode; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits (07777).
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates or extends a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last modification.
    pub modified: Option<SetTime>,
    /// Last inode change; set to the present when absent and anything else is set.
    pub changed: Option<SetTime>,
    /// Birth, where the inode has room for it.
    pub created: Option<SetTime>,
    /// ext4's user-modifiable flags, as `FS_IOC_SETFLAGS`.
    pub flags: Option<u32>,
    /// Project, where the image has projects.
    pub project: Option<u32>,
}

/// How `rename` treats its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RenameMode {
    /// An existing target is replaced.
    #[default]
    Replace,
    /// An existing target is an error (`RENAME_NOREPLACE`).
    NoReplace,
    /// The two names change places (`RENAME_EXCHANGE`).
    Exchange,
}

/// What `allocate` does to a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateMode {
    /// Blocks for the range, and the size grows to cover it.
    Extend,
    /// Blocks for the range, the size stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// The range becomes a hole (`FALLOC_FL_PUNCH_HOLE`), as far as the block in which the file
    /// ends: blocks behind it stay.
    PunchHole,
    /// The range reads as zeroes, its blocks stay or come (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange {
        /// Whether the size stays as it is.
        keep_size: bool,
    },
}

/// What is sought in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seek {
    /// Written bytes (`SEEK_DATA`).
    Data,
    /// A hole (`SEEK_HOLE`).
    Hole,
}

/// A contiguous part of a file on the device, in bytes, as `FIEMAP` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedRange {
    /// Offset in the file.
    pub logical: u64,
    /// Offset on the device.
    pub physical: u64,
    /// Length.
    pub length: u64,
    /// Allocated but never written: reads as zeroes.
    pub unwritten: bool,
}

/// One name of a directory listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DirectoryEntry<'a> {
    /// The inode it leads to.
    pub inode: InodeNumber,
    /// The type, if the directory stores it (`filetype`).
    pub file_type: Option<FileType>,
    /// The name's bytes.
    pub name: &'a [u8],
    /// A listing from here begins with this entry, or with another one that shares the cookie.
    pub cookie: u64,
    /// Where a listing continues after this entry. Entries whose names have the same hash share a
    /// cookie, and only the last of them has a later `next_cookie`; put all of them into one reply.
    pub next_cookie: u64,
}

impl<'a> DirectoryEntry<'a> {
    /// A name by itself, whose listing continues with the next cookie: something to begin with for
    /// tests of what gets a listing.
    #[must_use]
    pub fn new(inode: InodeNumber, name: &'a [u8], cookie: u64) -> Self {
        Self {
            inode,
            file_type: None,
            name,
            cookie,
            next_cookie: cookie.saturating_add(1),
        }
    }
}

/// Returns the attributes of the inode of an entry in a listing, and holds it; see
/// [`Volume::read_directory_with`](crate::Volume::read_directory_with).
pub type GetAttributes<'a> = dyn FnMut() -> Result<Attributes> + 'a;

/// Whether setting an extended attribute may create or must replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetXattrMode {
    /// Either.
    #[default]
    Any,
    /// It must not exist (`XATTR_CREATE`).
    Create,
    /// It must exist (`XATTR_REPLACE`).
    Replace,
}

/// What `statfs(2)` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks, less the file system's own.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks that ordinary users may take.
    pub available_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Longest name in bytes.
    pub name_length: u32,
}

/// What a user, a group or a project uses, of those whose usage an image counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The owner's number.
    pub id: u32,
    /// Bytes of blocks.
    pub space: u64,
    /// Inodes.
    pub inodes: u64,
    /// What the owner may use. Limits are stored, and nobody is held to them here.
    pub limits: QuotaLimits,
}

#[cfg(test)]
mod tests {
    use super::{Attributes, FileType, InodeNumber};

    #[test]
    fn a_mode_is_a_type_and_permissions() {
        let number = InodeNumber(12);
        let directory = Attributes::new(number, FileType::Directory, 0o1777);
        assert_eq!(
            (directory.mode, directory.permissions()),
            (0o041_777, 0o1777)
        );
        let types = [FileType::Directory, FileType::Regular, FileType::Symlink];
        for (at, kind) in types.into_iter().enumerate() {
            let file = Attributes::new(number, kind, 0);
            let answers = [file.is_dir(), file.is_file(), file.is_symlink()];
            assert_eq!(answers.iter().position(|&is_it| is_it), Some(at));
        }
        let pipe = Attributes::new(number, FileType::Fifo, 0);
        assert!(!pipe.is_dir() && !pipe.is_file() && !pipe.is_symlink());
    }
}
