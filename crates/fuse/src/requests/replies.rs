//! Sends answers of the dispatch.

use std::time::Duration;

use pext4_fs::{Attributes, FileType, InodeNumber, Time};
use pext4_fuse_kernel::{self as kernel, Entry, Listing, Reply, StatxTime};

use crate::dispatch::{Answer, Found, Listed, XattrReply, fit};
use crate::node::{ROOT_NODE, unreadable_node};

/// How long the kernel may cache names and attributes: only the kernel changes them. (Names in
/// casefolded directories are not cached: the kernel takes each spelling for a name of its own.)
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// The unit of efficient input and output that `stat` shows.
const BLOCK_SIZE: u32 = 4096;

pub(super) fn done(answer: Answer<()>, reply: Reply) {
    match answer {
        Ok(()) => reply.done(),
        Err(errno) => reply.error(errno.0),
    }
}

pub(super) fn bytes(answer: Answer<Vec<u8>>, reply: Reply) {
    match answer {
        Ok(bytes) => reply.bytes(&bytes),
        Err(errno) => reply.error(errno.0),
    }
}

pub(super) fn entry(answer: Answer<Found>, reply: Reply) {
    match answer {
        Ok(found) => reply.entry(&found_entry(&found)),
        Err(errno) => reply.error(errno.0),
    }
}

/// Replies with a file that was made and opened; the kernel numbers open files of its own.
pub(super) fn opened(answer: Answer<Found>, reply: Reply) {
    match answer {
        Ok(found) => reply.made_and_opened(&found_entry(&found)),
        Err(errno) => reply.error(errno.0),
    }
}

/// How long the kernel may cache a name, or that there is none.
fn name_valid(is_lasting: bool) -> Duration {
    if is_lasting { FOREVER } else { Duration::ZERO }
}

/// Replies that there is no such name, which the kernel may cache if that `is_lasting`.
pub(super) fn no_entry(is_lasting: bool, reply: Reply) {
    reply.entry(&Entry {
        node: 0,
        generation: 0,
        name_valid: name_valid(is_lasting),
        valid: FOREVER,
        attributes: kernel::Attributes::default(),
    });
}

pub(super) fn attributes(answer: Answer<Attributes>, reply: Reply) {
    match answer {
        Ok(attributes) => reply.attributes(FOREVER, &encode(&attributes)),
        Err(errno) => reply.error(errno.0),
    }
}

pub(super) fn statx(answer: Answer<Attributes>, reply: Reply) {
    match answer {
        Ok(attributes) => {
            let born = attributes.created.map(|time| StatxTime {
                seconds: time.seconds,
                nanoseconds: time.nanoseconds,
                reserved: 0,
            });
            reply.statx(FOREVER, &encode(&attributes), born);
        }
        Err(errno) => reply.error(errno.0),
    }
}

pub(super) fn sized(answer: Answer<Vec<u8>>, room: u32, reply: Reply) {
    match answer.and_then(|bytes| fit(bytes, room)) {
        Ok(XattrReply::Length(length)) => reply.size(length),
        Ok(XattrReply::Bytes(bytes)) => reply.bytes(&bytes),
        Err(errno) => reply.error(errno.0),
    }
}

pub(super) fn listed(answer: Answer<()>, listing: &Listing, reply: Reply) {
    match answer {
        Ok(()) => reply.bytes(listing.bytes()),
        Err(errno) => reply.error(errno.0),
    }
}

/// Adds a name; false if it did not fit.
pub(super) fn add(listing: &mut Listing, listed: &Listed, file_type: FileType) -> bool {
    let number = u64::from(listed.inode.get());
    let kind = u32::from(file_type.to_mode());
    listing.add(number, listed.cookie, kind, &listed.name)
}

/// Adds a name with the attributes of its inode; false if it did not fit. If the inode could not be
/// read (`found` is `None`), the kernel must not cache anything of it: it asks when a process uses
/// the name, and gets the error. `is_lasting` tells whether the kernel may cache the name.
pub(super) fn add_entry(
    listing: &mut Listing,
    listed: &Listed,
    found: Option<&Attributes>,
    is_lasting: bool,
) -> bool {
    let entry = match found {
        Some(attributes) => Entry {
            // No name but `.` and `..`, of which the kernel takes no node, leads to the root.
            node: u64::from(attributes.inode.get()),
            generation: u64::from(attributes.generation),
            name_valid: name_valid(is_lasting),
            valid: FOREVER,
            attributes: encode(attributes),
        },
        None => unreadable(listed),
    };
    listing.add_entry(&entry, listed.cookie, &listed.name)
}

/// The node of a name. To the root, which is of generation 0, only a file handle leads.
fn found_entry(found: &Found) -> Entry {
    let attributes = &found.attributes;
    let (node, generation) = match attributes.inode {
        InodeNumber::ROOT => (ROOT_NODE, 0),
        inode => (u64::from(inode.get()), u64::from(attributes.generation)),
    };
    Entry {
        node,
        generation,
        name_valid: name_valid(found.is_lasting),
        valid: FOREVER,
        attributes: encode(attributes),
    }
}

/// A name whose inode cannot be read: a number and the kind, neither of which the kernel may cache.
/// With the number 0 the C library would not show the name.
fn unreadable(listed: &Listed) -> Entry {
    let node = unreadable_node(listed.inode);
    let file_type = listed.file_type.unwrap_or(FileType::Regular);
    Entry {
        node,
        generation: 0,
        name_valid: Duration::ZERO,
        valid: Duration::ZERO,
        attributes: kernel::Attributes {
            inode: node,
            mode: u32::from(file_type.to_mode()),
            links: 1,
            ..kernel::Attributes::default()
        },
    }
}

fn encode(attributes: &Attributes) -> kernel::Attributes {
    let Time {
        seconds: accessed,
        nanoseconds: accessed_nanoseconds,
    } = attributes.accessed;
    let Time {
        seconds: modified,
        nanoseconds: modified_nanoseconds,
    } = attributes.modified;
    let Time {
        seconds: changed,
        nanoseconds: changed_nanoseconds,
    } = attributes.changed;
    kernel::Attributes {
        inode: u64::from(attributes.inode.get()),
        size: attributes.size,
        sectors: attributes.sectors,
        accessed,
        modified,
        changed,
        accessed_nanoseconds,
        modified_nanoseconds,
        changed_nanoseconds,
        mode: u32::from(attributes.mode),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: kernel::DeviceNumber {
            major: attributes.device.major,
            minor: attributes.device.minor,
        }
        .to_wire(),
        block_size: BLOCK_SIZE,
        flags: 0,
    }
}
