//! Sources of files: the host, this image, another image, a tar.

use pext4_fs::{DeviceNumber, FileType, Time};

use crate::error::Result;

/// Bytes of data that are read at a time.
pub(crate) const PIECE: usize = 1 << 20;

/// Everything about a file but its content.
#[derive(Clone, Debug)]
pub(crate) struct FileMetadata {
    pub(crate) kind: FileType,
    /// Permission bits (07777).
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) accessed: Time,
    pub(crate) modified: Time,
    /// Bytes of a regular file.
    pub(crate) size: u64,
    pub(crate) device: DeviceNumber,
    /// The target of a symbolic link; else empty.
    pub(crate) target: Vec<u8>,
    /// Extended attributes, values in the image's form.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The flags of the inode, of which a copy gets some; `None` if the source has none.
    pub(crate) flags: Option<u32>,
    /// Identifies a file that has several names, or is met again: device and inode number. Else
    /// `None`.
    pub(crate) identity: Option<(u64, u64)>,
}

/// Receives a piece of a file's data and its offset. Ranges that no piece covers are holes.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// A tree of files to be copied.
pub(crate) trait Source {
    /// A file of the tree.
    type Node;
    /// The names of a directory and their files.
    type Children: Iterator<Item = (Vec<u8>, Self::Node)>;

    fn metadata(&self, node: &Self::Node) -> Result<FileMetadata>;

    /// The names of a directory, sorted.
    fn children(&self, node: &Self::Node) -> Result<Self::Children>;

    /// Passes the data of a regular file to `sink`, in order and without holes. An error if the
    /// file has changed since `metadata` was read.
    fn content(&self, node: &Self::Node, metadata: &FileMetadata, sink: Sink<'_>) -> Result<()>;
}
