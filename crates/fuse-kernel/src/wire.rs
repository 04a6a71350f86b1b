//! The layouts of the FUSE protocol (`linux/fuse.h`, from version 7.31 on).
//!
//! All numbers are in the machine's own byte order. A request is an [`InHeader`], the structure of
//! its operation (for some there is none), and names or bytes behind it; a reply is an
//! [`OutHeader`], and a structure or bytes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The oldest minor version whose layouts are these: that of Linux 5.4.
pub(crate) const OLDEST_MINOR: u32 = 31;
/// The newest minor version that is known here.
pub(crate) const NEWEST_MINOR: u32 = 42;

/// The numbers of the operations.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// The beginning of every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InHeader {
    pub(crate) length: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) thread: u32,
    /// Of optional extensions at the end of the request, in units of 8 bytes. None is asked for.
    pub(crate) extensions: u16,
    pub(crate) padding: u16,
}

/// The beginning of every reply and notification.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OutHeader {
    pub(crate) length: u32,
    /// Zero or the negative error number; of a notification its kind.
    pub(crate) error: i32,
    /// That of the request; zero for a notification.
    pub(crate) unique: u64,
}

/// `FUSE_INIT`: what the kernel offers.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    /// Since 7.36; zero if the kernel sends less.
    pub(crate) more_flags: u32,
    pub(crate) unused: [u32; 11],
}

/// What the server takes of it.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) time_granularity: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) more_flags: u32,
    pub(crate) max_stack_depth: u32,
    pub(crate) request_timeout: u16,
    pub(crate) unused: [u16; 11],
}

/// A file's attributes as `FUSE_GETATTR` and all replies with a node carry them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Attributes {
    /// The inode number that users see.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub sectors: u64,
    /// Seconds of the time of access.
    pub accessed: i64,
    /// Seconds of the time of modification.
    pub modified: i64,
    /// Seconds of the time of change.
    pub changed: i64,
    /// Nanoseconds that count forward from `accessed`.
    pub accessed_nanoseconds: u32,
    /// Nanoseconds that count forward from `modified`.
    pub modified_nanoseconds: u32,
    /// Nanoseconds that count forward from `changed`.
    pub changed_nanoseconds: u32,
    /// Kind and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The number of a device, in the kernel's 32-bit form.
    pub device: u32,
    /// The unit of efficient input and output.
    pub block_size: u32,
    /// Zero.
    pub flags: u32,
}

/// A node, with its attributes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct EntryOut {
    pub(crate) node: u64,
    pub(crate) generation: u64,
    pub(crate) entry_valid: u64,
    pub(crate) attributes_valid: u64,
    pub(crate) entry_valid_nanoseconds: u32,
    pub(crate) attributes_valid_nanoseconds: u32,
    pub(crate) attributes: Attributes,
}

/// `FUSE_FORGET`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ForgetIn {
    pub(crate) count: u64,
}

/// One element of `FUSE_BATCH_FORGET`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ForgetOne {
    pub(crate) node: u64,
    pub(crate) count: u64,
}

/// `FUSE_BATCH_FORGET`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BatchForgetIn {
    pub(crate) count: u32,
    pub(crate) padding: u32,
}

/// `FUSE_GETATTR`; bit 0 of the flags: the kernel names an open file.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct GetAttributesIn {
    pub(crate) flags: u32,
    pub(crate) padding: u32,
    pub(crate) file: u64,
}

/// The reply to `FUSE_GETATTR` and `FUSE_SETATTR`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct AttributesOut {
    pub(crate) valid: u64,
    pub(crate) valid_nanoseconds: u32,
    pub(crate) padding: u32,
    pub(crate) attributes: Attributes,
}

/// A time, as `statx(2)` has it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatxTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds that count forward from them.
    pub nanoseconds: u32,
    /// Zero.
    pub reserved: u32,
}

/// A file's attributes as `statx(2)` has them.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Statx {
    pub(crate) mask: u32,
    pub(crate) block_size: u32,
    pub(crate) attributes: u64,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pub(crate) padding: u16,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) sectors: u64,
    pub(crate) attributes_mask: u64,
    pub(crate) accessed: StatxTime,
    pub(crate) born: StatxTime,
    pub(crate) changed: StatxTime,
    pub(crate) modified: StatxTime,
    pub(crate) device_major: u32,
    pub(crate) device_minor: u32,
    pub(crate) volume_major: u32,
    pub(crate) volume_minor: u32,
    pub(crate) unused: [u64; 14],
}

/// The reply to `FUSE_STATX`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct StatxOut {
    pub(crate) valid: u64,
    pub(crate) valid_nanoseconds: u32,
    pub(crate) flags: u32,
    pub(crate) unused: [u64; 2],
    pub(crate) statx: Statx,
}

/// `FUSE_SETATTR`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SetAttributesIn {
    pub(crate) valid: u32,
    pub(crate) padding: u32,
    pub(crate) file: u64,
    pub(crate) size: u64,
    pub(crate) lock_owner: u64,
    pub(crate) accessed: i64,
    pub(crate) modified: i64,
    pub(crate) changed: i64,
    pub(crate) accessed_nanoseconds: u32,
    pub(crate) modified_nanoseconds: u32,
    pub(crate) changed_nanoseconds: u32,
    pub(crate) mode: u32,
    pub(crate) unused: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) padding_at_end: u32,
}

/// `FUSE_MKNOD`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct MakeNodeIn {
    pub(crate) mode: u32,
    pub(crate) device: u32,
    pub(crate) umask: u32,
    pub(crate) padding: u32,
}

/// `FUSE_MKDIR`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct MakeDirectoryIn {
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

/// `FUSE_TMPFILE` (and `FUSE_CREATE`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CreateIn {
    pub(crate) flags: u32,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
    pub(crate) open_flags: u32,
}

/// `FUSE_OPEN`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OpenIn {
    pub(crate) flags: u32,
    pub(crate) open_flags: u32,
}

/// `FUSE_RELEASEDIR` (and `FUSE_RELEASE`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReleaseIn {
    pub(crate) file: u64,
    pub(crate) flags: u32,
    pub(crate) release_flags: u32,
    pub(crate) lock_owner: u64,
}

/// An open file: the reply to `FUSE_OPEN` and `FUSE_OPENDIR`, and behind the [`EntryOut`] of a file
/// that is made and opened at once.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OpenOut {
    pub(crate) file: u64,
    pub(crate) flags: u32,
    pub(crate) backing: i32,
}

/// `FUSE_RENAME`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RenameIn {
    pub(crate) new_parent: u64,
}

/// `FUSE_RENAME2`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Rename2In {
    pub(crate) new_parent: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// `FUSE_LINK`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct LinkIn {
    pub(crate) node: u64,
}

/// `FUSE_READ`, `FUSE_READDIR` and `FUSE_READDIRPLUS`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReadIn {
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) read_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// `FUSE_WRITE`; bit 0 of its flags: from the page cache; bit 2: the set-id bits must be cleared.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WriteIn {
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) write_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// A number of bytes: the reply to `FUSE_WRITE`, and to a question for an attribute's length.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SizeOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// The reply to `FUSE_STATFS`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Statfs {
    /// Blocks of the volume.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks for everyone.
    pub available_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Most bytes of a name.
    pub name_length: u32,
    /// The unit of the counts of blocks, in bytes.
    pub fragment_size: u32,
    /// Zero.
    pub padding: u32,
    /// Zero.
    pub unused: [u32; 6],
}

/// `FUSE_FSYNC` and `FUSE_FSYNCDIR`; bit 0 of the flags: the content alone.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SyncIn {
    pub(crate) file: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// `FUSE_SETXATTR`, in the form that it has unless `FUSE_SETXATTR_EXT` was negotiated.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SetXattrIn {
    pub(crate) size: u32,
    pub(crate) flags: u32,
}

/// The form that it has then; bit 0 of its own flags: the set-group-id bit must be cleared.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SetXattrExtendedIn {
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) own_flags: u32,
    pub(crate) padding: u32,
}

/// `FUSE_GETXATTR` and `FUSE_LISTXATTR`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct GetXattrIn {
    pub(crate) room: u32,
    pub(crate) padding: u32,
}

/// `FUSE_ACCESS`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct AccessIn {
    pub(crate) mask: u32,
    pub(crate) padding: u32,
}

/// `FUSE_IOCTL`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IoctlIn {
    pub(crate) file: u64,
    pub(crate) flags: u32,
    pub(crate) command: u32,
    pub(crate) argument: u64,
    pub(crate) input_size: u32,
    pub(crate) output_size: u32,
}

/// The reply to `FUSE_IOCTL`, before the bytes.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct IoctlOut {
    pub(crate) result: i32,
    pub(crate) flags: u32,
    pub(crate) input_vectors: u32,
    pub(crate) output_vectors: u32,
}

/// `FUSE_FALLOCATE`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct AllocateIn {
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) mode: u32,
    pub(crate) padding: u32,
}

/// `FUSE_LSEEK`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SeekIn {
    pub(crate) file: u64,
    pub(crate) offset: i64,
    pub(crate) whence: i32,
    pub(crate) padding: u32,
}

/// The reply to `FUSE_LSEEK`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SeekOut {
    pub(crate) offset: i64,
}

/// The beginning of an entry of a directory; its name and zeroes up to a multiple of 8 bytes
/// follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DirectoryEntry {
    pub(crate) inode: u64,
    /// Where the next entry begins.
    pub(crate) cookie: u64,
    pub(crate) name_length: u32,
    pub(crate) kind: u32,
}

/// The notification that a node's attributes and pages are no longer what the kernel has.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InvalidateInode {
    pub(crate) node: u64,
    /// The first byte; negative for the attributes alone.
    pub(crate) offset: i64,
    /// Zero for all bytes from there on.
    pub(crate) length: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the structures in `linux/fuse.h`.
    #[test]
    fn every_layout_has_the_size_that_the_kernel_expects() {
        let sizes = [
            (size_of::<InHeader>(), 40),
            (size_of::<OutHeader>(), 16),
            (size_of::<InitIn>(), 64),
            (size_of::<InitOut>(), 64),
            (size_of::<Attributes>(), 88),
            (size_of::<EntryOut>(), 128),
            (size_of::<AttributesOut>(), 104),
            (size_of::<StatxTime>(), 16),
            (size_of::<Statx>(), 256),
            (size_of::<StatxOut>(), 288),
            (size_of::<SetAttributesIn>(), 88),
            (size_of::<MakeNodeIn>(), 16),
            (size_of::<CreateIn>(), 16),
            (size_of::<Rename2In>(), 16),
            (size_of::<ReadIn>(), 40),
            (size_of::<WriteIn>(), 40),
            (size_of::<Statfs>(), 80),
            (size_of::<SyncIn>(), 16),
            (size_of::<SetXattrIn>(), 8),
            (size_of::<SetXattrExtendedIn>(), 16),
            (size_of::<IoctlIn>(), 32),
            (size_of::<IoctlOut>(), 16),
            (size_of::<AllocateIn>(), 32),
            (size_of::<SeekIn>(), 24),
            (size_of::<DirectoryEntry>(), 24),
            (size_of::<InvalidateInode>(), 24),
        ];
        for (number, (ours, theirs)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, theirs, "structure {number}");
        }
    }
}
