//! Areas of fast commits as Linux writes them, for tests of those who read them, here and in the
//! layers above: pext4 itself writes none.

use super::{RECORD_HEADER, TAIL_LENGTH, tag};
use crate::checksum::crc32c;
use crate::extent::Extent;
use crate::number::{InodeNumber, Tid};

/// Writes the bytes of an area of fast commits, from its first block on.
#[derive(Clone, Debug)]
pub struct AreaWriter {
    block_size: usize,
    bytes: Vec<u8>,
    /// The checksum of the commit that is being written.
    sum: u32,
}

impl AreaWriter {
    /// An area without a commit, for a journal with blocks of this size.
    #[must_use]
    pub fn new(block_size: usize) -> Self {
        Self {
            block_size,
            bytes: Vec::new(),
            sum: 0,
        }
    }

    /// The blocks so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, to be damaged.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    fn left(&self) -> usize {
        self.block_size - self.bytes.len() % self.block_size
    }

    fn put(&mut self, tag: u16, length: usize, value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend(tag.to_le_bytes());
        let length = u16::try_from(length).expect("blocks of up to 64 KiB less a header");
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(value);
        self.sum = crc32c(self.sum, &self.bytes[start..]);
    }

    /// Adds a record of any tag; one that the rest of the block cannot hold goes to the next block.
    pub fn record(&mut self, tag: u16, value: &[u8]) -> &mut Self {
        // A header always fits behind, for padding or the tail.
        if self.left() < RECORD_HEADER + value.len() + RECORD_HEADER {
            self.pad();
        }
        self.put(tag, value.len(), value);
        self
    }

    fn pad(&mut self) {
        let padding = vec![0; self.left() - RECORD_HEADER];
        self.put(tag::PADDING, padding.len(), &padding);
    }

    /// Adds the first record of an area.
    pub fn head(&mut self, features: u32, tid: Tid) -> &mut Self {
        self.record(tag::HEAD, &value([features, tid.0], &[]))
    }

    /// Ends a commit, and its block.
    pub fn tail(&mut self, tid: Tid) -> &mut Self {
        if self.left() < RECORD_HEADER + TAIL_LENGTH {
            self.pad();
        }
        let length = self.left() - RECORD_HEADER;
        self.put(tag::TAIL, length, &tid.0.to_le_bytes());
        let sum = std::mem::take(&mut self.sum);
        self.bytes.extend(sum.to_le_bytes());
        let end = self.bytes.len().next_multiple_of(self.block_size);
        self.bytes.resize(end, 0);
        self
    }

    /// Maps blocks of a file.
    pub fn add_range(&mut self, inode: InodeNumber, extent: &Extent) -> &mut Self {
        self.record(tag::ADD_RANGE, &value([inode.get()], &extent.encode()))
    }

    /// Unmaps `length` blocks of a file from `logical` on.
    pub fn delete_range(&mut self, inode: InodeNumber, logical: u32, length: u32) -> &mut Self {
        self.record(
            tag::DELETE_RANGE,
            &value([inode.get(), logical, length], &[]),
        )
    }

    /// Gives a new inode its first name.
    pub fn create(&mut self, parent: InodeNumber, inode: InodeNumber, name: &[u8]) -> &mut Self {
        self.name(tag::CREATE, parent, inode, name)
    }

    /// Gives an inode one more name.
    pub fn link(&mut self, parent: InodeNumber, inode: InodeNumber, name: &[u8]) -> &mut Self {
        self.name(tag::LINK, parent, inode, name)
    }

    /// Removes a name.
    pub fn unlink(&mut self, parent: InodeNumber, inode: InodeNumber, name: &[u8]) -> &mut Self {
        self.name(tag::UNLINK, parent, inode, name)
    }

    fn name(
        &mut self,
        tag: u16,
        parent: InodeNumber,
        inode: InodeNumber,
        name: &[u8],
    ) -> &mut Self {
        self.record(tag, &value([parent.get(), inode.get()], name))
    }

    /// Sets the attributes of an inode, by the bytes of its slot.
    pub fn inode(&mut self, inode: InodeNumber, slot: &[u8]) -> &mut Self {
        self.record(tag::INODE, &value([inode.get()], slot))
    }
}

/// The bytes of words, and what follows them.
fn value<const N: usize>(words: [u32; N], rest: &[u8]) -> Vec<u8> {
    let words = words.into_iter().flat_map(u32::to_le_bytes);
    words.chain(rest.iter().copied()).collect()
}
