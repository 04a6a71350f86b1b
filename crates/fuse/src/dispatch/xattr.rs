//! Requests for extended attributes, including access control lists.
//!
//! Access control lists have another format on disk than in system calls ([`pext4_ondisk::acl`]),
//! and setting one changes the mode.

use std::cell::LazyCell;

use pext4_fs::{Error, InodeNumber, Refusal, SetXattrMode};
use pext4_ondisk::acl::{self, Acl, is_list};
use pext4_ondisk::directory::SET_GROUP_ID;

use super::{Answer, Caller, Dispatch, Errno};
use crate::report::{
    MAX_VALUE, MESSAGES, OPTIMIZE_SCAN, REPORT, REPORT_JSON, first_group, list_groups,
};

const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
const XATTR_BOTH: i32 = XATTR_CREATE | XATTR_REPLACE;

/// A value for an extended attribute.
#[derive(Clone, Copy, Debug)]
pub struct NewXattr<'a> {
    /// The value.
    pub value: &'a [u8],
    /// Those of `setxattr(2)`.
    pub flags: i32,
    /// Whether an access list takes the file's set-group-id bit, if the kernel says that.
    pub clears_set_group_id: Option<bool>,
}

/// The answer to a caller that may ask for the length first.
#[derive(Debug, PartialEq, Eq)]
pub enum XattrReply {
    /// The length of the value in bytes.
    Length(u32),
    /// The value.
    Bytes(Vec<u8>),
}

/// The answer for a caller with a buffer of `room` bytes: if it is 0, the length.
///
/// # Errors
///
/// `ERANGE` if the room is too small.
pub fn fit(bytes: Vec<u8>, room: u32) -> Answer<XattrReply> {
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::RANGE)?;
    match room {
        0 => Ok(XattrReply::Length(length)),
        _ if length > room => Err(Errno::RANGE),
        _ => Ok(XattrReply::Bytes(bytes)),
    }
}

impl Dispatch {
    /// The value of an extended attribute.
    ///
    /// # Errors
    ///
    /// `ENODATA` if there is none; the volume's.
    pub fn xattr(&self, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let inode = Self::inode(node)?;
        // On the root the mount's own attributes hide those of the image; another file may have an
        // attribute of this name itself.
        if inode == InodeNumber::ROOT
            && let Some(value) = self.mount_attribute(name)
        {
            return Ok(value);
        }
        let value = match self.volume.xattr(inode, name) {
            Err(error) if is_missing(&error) => match self.mount_attribute(name) {
                Some(value) => return Ok(value),
                None => self.answer(Err(error))?,
            },
            value => self.answer(value)?,
        };
        if is_list(name) {
            let list = Acl::from_disk(&value).ok_or_else(|| self.bad_list(inode))?;
            return Ok(list.to_call());
        }
        Ok(value)
    }

    /// The value of one of the mount's own attributes.
    fn mount_attribute(&self, name: &[u8]) -> Option<Vec<u8>> {
        if name == REPORT.as_bytes() {
            Some(self.volume.report().to_string().into_bytes())
        } else if name == REPORT_JSON.as_bytes() {
            Some(self.volume.report().to_json().into_bytes())
        } else if name == MESSAGES.as_bytes() {
            Some(self.error_log.reported(MAX_VALUE).into_bytes())
        } else if name == OPTIMIZE_SCAN.as_bytes() {
            let digit = u8::from(self.volume.optimizes_scan());
            Some(vec![b'0' + digit])
        } else {
            let first = first_group(name)?;
            Some(list_groups(&self.volume, first, MAX_VALUE).into_bytes())
        }
    }

    /// The names of all extended attributes that the caller may see, each followed by a zero byte.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn xattr_names(&self, caller: Caller, node: u64) -> Answer<Vec<u8>> {
        let names = self.answer(self.volume.xattr_names(Self::inode(node)?))?;
        let sees_trusted = LazyCell::new(|| caller.sees_trusted());
        let mut joined = Vec::new();
        for name in names {
            if !name.starts_with(b"trusted.") || *sees_trusted {
                joined.extend_from_slice(&name);
                joined.push(0);
            }
        }
        Ok(joined)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// `EINVAL` for unknown flags or a malformed access list, `EEXIST` or `ENODATA` for both flags
    /// at once; the volume's.
    pub fn set_xattr(
        &self,
        caller: Caller,
        node: u64,
        name: &[u8],
        new: NewXattr<'_>,
    ) -> Answer<()> {
        let (inode, value) = (Self::inode(node)?, new.value);
        if name == OPTIMIZE_SCAN.as_bytes() {
            let optimize = match value {
                b"0" if inode == InodeNumber::ROOT => false,
                b"1" if inode == InodeNumber::ROOT => true,
                _ => return Err(Errno::INVALID),
            };
            self.volume.set_optimize_scan(optimize);
            return Ok(());
        }
        let mode = match new.flags {
            0 => SetXattrMode::Any,
            XATTR_CREATE => SetXattrMode::Create,
            XATTR_REPLACE => SetXattrMode::Replace,
            XATTR_BOTH if !is_list(name) => return self.refuse_both(inode, name),
            _ => return Err(Errno::INVALID),
        };
        if is_list(name) {
            let list = Acl::from_call(value).ok_or(Errno::INVALID)?;
            if name == acl::ACCESS {
                let clears = new.clears_set_group_id;
                self.set_access_list(caller, inode, &list, mode, clears)?;
            } else {
                let stored = list.to_disk();
                let set = || self.volume.set_xattr(inode, name, &stored, mode);
                self.answer(self.retry_if_full(set))?;
            }
        } else {
            self.answer(self.retry_if_full(|| self.volume.set_xattr(inode, name, value, mode)))?;
        }
        self.commit_change()
    }

    /// With both `XATTR_CREATE` and `XATTR_REPLACE` the call always fails: by whether the attribute
    /// exists, with `EEXIST` or `ENODATA`.
    fn refuse_both(&self, inode: InodeNumber, name: &[u8]) -> Answer<()> {
        self.answer(self.volume.xattr(inode, name))?;
        Err(Errno::EXISTS)
    }

    /// Removes an extended attribute. Removing a missing access list succeeds.
    ///
    /// # Errors
    ///
    /// `ENODATA` if there is no such attribute; the volume's.
    pub fn remove_xattr(&self, node: u64, name: &[u8]) -> Answer<()> {
        let removed = self.volume.remove_xattr(Self::inode(node)?, name);
        if is_list(name) {
            self.answer_unless(removed, Refusal::NoAttribute)?;
        } else {
            self.answer(removed)?;
        }
        self.commit_change()
    }

    /// The access list of a node with this attribute name, if it has one.
    pub(super) fn acl(&self, inode: InodeNumber, name: &[u8]) -> Answer<Option<Acl>> {
        let value = match self.volume.xattr(inode, name) {
            Err(error) if is_missing(&error) => return Ok(None),
            value => self.answer(value)?,
        };
        Acl::from_disk(&value)
            .map(Some)
            .ok_or_else(|| self.bad_list(inode))
    }

    /// Sets a list for access. It also sets the mode's bits, and is not stored if the mode
    /// expresses all of it. As with `chmod`, the set-group-id bit is cleared if the caller is not
    /// in the file's group, which the kernel may have judged.
    fn set_access_list(
        &self,
        caller: Caller,
        inode: InodeNumber,
        list: &Acl,
        mode: SetXattrMode,
        clears_set_group_id: Option<bool>,
    ) -> Answer<()> {
        let attributes = self.answer(self.volume.attributes(inode))?;
        let old = attributes.permissions();
        let clears = || caller.list_takes_group_id(&attributes, clears_set_group_id);
        let kept = match old & SET_GROUP_ID != 0 && clears() {
            true => 0o7000 & !SET_GROUP_ID,
            false => 0o7000,
        };
        let new = old & kept | list.mode_bits();
        self.answer(if list.is_mode_only() {
            self.volume.remove_access_list(inode, new)
        } else {
            let stored = list.to_disk();
            self.retry_if_full(|| self.volume.set_access_list(inode, &stored, mode, new))
        })
    }

    fn bad_list(&self, inode: InodeNumber) -> Errno {
        self.error_log.report(&format!(
            "corrupt access control list (inode {inode}); `e2fsck -f` repairs it (keep a copy of the image)"
        ));
        Errno::IO
    }
}

/// Whether there is no attribute of that name, or cannot be one.
fn is_missing(error: &Error) -> bool {
    error.is(Refusal::NoAttribute) || error.is(Refusal::NotSupported)
}

#[cfg(test)]
mod tests {
    use super::{Errno, XattrReply, fit};

    #[test]
    fn a_caller_without_room_learns_the_length() {
        assert_eq!(fit(b"value".to_vec(), 0), Ok(XattrReply::Length(5)));
        assert_eq!(fit(b"value".to_vec(), 4), Err(Errno::RANGE));
        assert_eq!(
            fit(b"value".to_vec(), 5),
            Ok(XattrReply::Bytes(b"value".to_vec()))
        );
        assert_eq!(fit(Vec::new(), 8), Ok(XattrReply::Bytes(Vec::new())));
    }
}
