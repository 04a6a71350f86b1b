//! Sends answers of the dispatch through `fuser`'s reply objects.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{
    Generation, INodeNo, ReplyAttr, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyXattr, Request,
};
use pext4_fs::{Attributes, InodeNumber};

use super::translate::{attributes_for_fuser, nothing, unreadable};
use crate::dispatch::{Answer, Caller, Errno, Found, Listed, XattrReply, fit};
use crate::node::ROOT_NODE;

/// How long the kernel may cache names and attributes: only the kernel changes them.
pub(super) const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn error(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.0)
}

pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        thread: request.pid(),
    }
}

pub(super) fn done(answer: Answer<()>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(error(errno)),
    }
}

pub(super) fn entry(answer: Answer<Found>, reply: ReplyEntry) {
    match answer {
        Ok(found) if found.attributes.inode == InodeNumber::ROOT => root(&found, reply),
        Ok(found) => {
            let generation = Generation(u64::from(found.attributes.generation));
            let attributes = attributes_for_fuser(&found.attributes);
            reply.entry(&FOREVER, &attributes, generation);
        }
        Err(errno) => reply.error(error(errno)),
    }
}

/// Replies with the root, which only a file handle leads to. `fuser` takes the node from the inode
/// number in the attributes, and the root's node has another number, so the kernel may not keep
/// these attributes. FUSE's root is of generation 0.
fn root(found: &Found, reply: ReplyEntry) {
    let mut attributes = attributes_for_fuser(&found.attributes);
    attributes.ino = INodeNo(ROOT_NODE);
    reply.entry(&Duration::ZERO, &attributes, Generation(0));
}

/// Replies that there is no such name, which the kernel may cache.
pub(super) fn no_entry(reply: ReplyEntry) {
    reply.entry(&FOREVER, &nothing(), Generation(0));
}

pub(super) fn attributes(answer: Answer<Attributes>, reply: ReplyAttr) {
    match answer {
        Ok(attributes) => reply.attr(&FOREVER, &attributes_for_fuser(&attributes)),
        Err(errno) => reply.error(error(errno)),
    }
}

pub(super) fn sized(answer: Answer<Vec<u8>>, room: u32, reply: ReplyXattr) {
    match answer.and_then(|bytes| fit(bytes, room)) {
        Ok(XattrReply::Length(length)) => reply.size(length),
        Ok(XattrReply::Bytes(bytes)) => reply.data(&bytes),
        Err(errno) => reply.error(error(errno)),
    }
}

/// Adds an entry with the attributes of its inode; false if it did not fit. If the inode could not
/// be read (`found` is `None`), the kernel must not cache anything of it: it asks when a process
/// uses the name, and gets the error.
pub(super) fn add(
    reply: &mut ReplyDirectoryPlus,
    listed: &Listed,
    found: Option<&Attributes>,
) -> bool {
    let (attr, generation, kept) = match found {
        Some(attributes) => {
            let attr = attributes_for_fuser(attributes);
            (attr, attributes.generation, FOREVER)
        }
        None => (unreadable(listed), 0, Duration::ZERO),
    };
    let name = OsStr::from_bytes(&listed.name);
    let generation = Generation(u64::from(generation));
    !reply.add(attr.ino, listed.cookie, name, &kept, &attr, generation)
}
