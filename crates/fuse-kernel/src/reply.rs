//! Replies.

use std::sync::Arc;
use std::time::Duration;

use bitflags::bitflags;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device_number::DeviceNumber;
use crate::ring;
use crate::wire::{
    Attributes, AttributesOut, EntryOut, IoctlOut, OpenOut, SeekOut, SizeOut, Statfs, Statx,
    StatxOut, StatxTime,
};

bitflags! {
    /// How the kernel treats an open file or directory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// What is cached of it stays; without this the kernel drops it.
        const KEEP_CACHE = 1 << 1;
        /// The entries of a directory are cached, and listings are answered from there.
        const CACHE_ENTRIES = 1 << 3;
        /// Closing it needs no request, once what was written late is sent.
        const NO_FLUSH = 1 << 5;
    }
}

/// A node as the kernel is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number; 0 says that there is no such name.
    pub node: u64,
    /// Tells apart nodes that had the same number one after the other.
    pub generation: u64,
    /// How long the kernel may remember the name.
    pub name_valid: Duration,
    /// How long the kernel may remember the attributes.
    pub valid: Duration,
    /// Its attributes.
    pub attributes: Attributes,
}

impl Entry {
    pub(crate) fn encode(&self) -> EntryOut {
        EntryOut {
            node: self.node,
            generation: self.generation,
            entry_valid: self.name_valid.as_secs(),
            attributes_valid: self.valid.as_secs(),
            entry_valid_nanoseconds: self.name_valid.subsec_nanos(),
            attributes_valid_nanoseconds: self.valid.subsec_nanos(),
            attributes: self.attributes,
        }
    }
}

/// When a file was made, if that is known.
pub type Born = Option<StatxTime>;

/// The reply to one request. Every method sends it; without one, an I/O error is sent when it is
/// dropped. Errors of sending are ignored: the caller has gone, or the connection has ended.
#[derive(Debug)]
#[must_use = "the caller waits for it"]
pub struct Reply {
    unique: u64,
    /// `None` once it was sent.
    carrier: Option<Carrier>,
}

/// The way that a reply takes.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// The file from which the request was read.
    Device(Arc<Device>),
    /// The entry of a ring.
    Ring(ring::Way),
}

impl Carrier {
    fn send(self, unique: u64, error: i32, parts: [&[u8]; 2]) {
        match self {
            Self::Device(device) => {
                let _ = device.send(unique, error, parts);
            }
            Self::Ring(way) => way.send(unique, error, parts),
        }
    }
}

impl Reply {
    pub(crate) fn new(unique: u64, carrier: Carrier) -> Self {
        Self {
            unique,
            carrier: Some(carrier),
        }
    }

    fn send(mut self, parts: [&[u8]; 2]) {
        if let Some(carrier) = self.carrier.take() {
            carrier.send(self.unique, 0, parts);
        }
    }

    /// The operation failed with an error number of Linux.
    pub fn error(mut self, errno: i32) {
        if let Some(carrier) = self.carrier.take() {
            carrier.send(self.unique, -errno, [&[], &[]]);
        }
    }

    /// It succeeded, and there is nothing to tell.
    pub fn done(self) {
        self.send([&[], &[]]);
    }

    /// Bytes: content, a link's target, a value, names of attributes, or a listing.
    pub fn bytes(self, bytes: &[u8]) {
        self.send([bytes, &[]]);
    }

    /// A node that was found or made.
    pub fn entry(self, entry: &Entry) {
        self.send([entry.encode().as_bytes(), &[]]);
    }

    /// A file or directory that was opened, with a handle by which the kernel names it when it is
    /// closed.
    pub fn opened(self, handle: u64, flags: OpenFlags) {
        let file = OpenOut {
            file: handle,
            flags: flags.bits(),
            ..OpenOut::default()
        };
        self.send([file.as_bytes(), &[]]);
    }

    /// A node that was made and opened.
    pub fn made_and_opened(self, entry: &Entry) {
        let file = OpenOut::default();
        self.send([entry.encode().as_bytes(), file.as_bytes()]);
    }

    /// Attributes, which the kernel may remember for so long.
    pub fn attributes(self, valid: Duration, attributes: &Attributes) {
        let out = AttributesOut {
            valid: valid.as_secs(),
            valid_nanoseconds: valid.subsec_nanos(),
            attributes: *attributes,
            ..AttributesOut::default()
        };
        self.send([out.as_bytes(), &[]]);
    }

    /// The same for `statx(2)`, with the time of birth.
    pub fn statx(self, valid: Duration, attributes: &Attributes, born: Born) {
        let out = StatxOut {
            valid: valid.as_secs(),
            valid_nanoseconds: valid.subsec_nanos(),
            statx: statx(attributes, born),
            ..StatxOut::default()
        };
        self.send([out.as_bytes(), &[]]);
    }

    /// The number of bytes that were written.
    pub fn written(self, size: u32) {
        self.size(size);
    }

    /// The length of a value or list that was asked for without room.
    pub fn size(self, size: u32) {
        self.send([SizeOut { size, padding: 0 }.as_bytes(), &[]]);
    }

    /// Sizes and counts of the volume.
    pub fn statfs(self, statfs: &Statfs) {
        self.send([statfs.as_bytes(), &[]]);
    }

    /// The result of a command of `ioctl(2)`.
    pub fn controlled(self, bytes: &[u8]) {
        self.send([IoctlOut::default().as_bytes(), bytes]);
    }

    /// Where data or a hole was found.
    pub fn offset(self, offset: i64) {
        self.send([SeekOut { offset }.as_bytes(), &[]]);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier.take() {
            // The request was dropped without a reply.
            carrier.send(self.unique, -libc::EIO, [&[], &[]]);
        }
    }
}

/// The fields of `stat(2)`.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BORN: u32 = 0x800;

fn statx(attributes: &Attributes, born: Born) -> Statx {
    let time = |seconds, nanoseconds| StatxTime {
        seconds,
        nanoseconds,
        reserved: 0,
    };
    let device = DeviceNumber::from_wire(attributes.device);
    Statx {
        mask: STATX_BASIC | born.map_or(0, |_| STATX_BORN),
        block_size: attributes.block_size,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        // The kinds and permissions have 16 bits.
        mode: attributes.mode as u16,
        inode: attributes.inode,
        size: attributes.size,
        sectors: attributes.sectors,
        accessed: time(attributes.accessed, attributes.accessed_nanoseconds),
        born: born.unwrap_or_default(),
        changed: time(attributes.changed, attributes.changed_nanoseconds),
        modified: time(attributes.modified, attributes.modified_nanoseconds),
        device_major: device.major,
        device_minor: device.minor,
        ..Statx::default()
    }
}

#[cfg(test)]
mod tests {
    use super::{Attributes, StatxTime, statx};

    #[test]
    fn the_time_of_birth_is_told_if_it_is_known() {
        let attributes = Attributes {
            mode: 0o100_644,
            ..Attributes::default()
        };
        assert_eq!(statx(&attributes, None).mask, 0x7ff);
        let born = StatxTime {
            seconds: 5,
            ..StatxTime::default()
        };
        let told = statx(&attributes, Some(born));
        assert_eq!((told.mask, told.born, told.mode), (0xfff, born, 0o100_644));
    }
}
