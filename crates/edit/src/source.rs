//! Where files come from: the host, this image, another image, a tar.

use pext4_fs::{DeviceNumber, FileType, Time};

use crate::error::Result;

/// What is to be known of a file to make it again.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
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
    /// Where a symbolic link leads.
    pub(crate) target: Vec<u8>,
    /// Extended attributes, values in the image's form.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// What tells a file with several names.
    pub(crate) identity: Option<(u64, u64)>,
}

/// Takes a piece of a file's data, with its offset; what no piece covers is a hole.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// A tree that is read.
pub(crate) trait Source {
    /// A file of it.
    type Node;

    fn facts(&self, node: &Self::Node) -> Result<Facts>;

    /// The names of a directory, sorted.
    fn children(&self, node: &Self::Node) -> Result<Vec<(Vec<u8>, Self::Node)>>;

    /// The data of a regular file in order; holes are left out. An error where it is not what `facts`
    /// said any more.
    fn content(&self, node: &Self::Node, facts: &Facts, sink: Sink<'_>) -> Result<()>;
}
