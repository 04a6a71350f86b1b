//! Modes, owners, times and extended attributes.

use std::sync::Arc;

use pext4_fs::{SetTime, SetXattrMode};

use super::{Body, Expected, KnownTime, Model, Verdict};
use crate::content::pattern;
use crate::errno::{EEXIST, EINVAL, ENODATA, EOPNOTSUPP, EPERM, ERANGE};
use crate::op::{Op, Target};
use crate::outcome::PERMISSIONS;

/// Longest name of an extended attribute, prefix included.
const LONGEST_ATTRIBUTE: usize = 255;
/// Bytes of an attribute block that no entry can use: the header and the end mark.
const BLOCK_OVERHEAD: u64 = 32 + 4;
/// Bytes of an entry without name and value.
const ENTRY: u64 = 16;

fn moment(time: SetTime) -> KnownTime {
    match time {
        SetTime::Now => KnownTime::Recent,
        SetTime::To(time) => KnownTime::Exactly(time),
    }
}

impl Model {
    pub(super) fn apply_attributes(&mut self, op: &Op) -> Verdict {
        match op {
            Op::Stat(of) => Ok(Expected::File(self.resolve(of)?)),
            Op::ReadLink(of) => self.read_link(of),
            Op::SetMode { of, permissions } => {
                let inode = self.resolve(of)?;
                if let Body::Symlink(_) = self.existing(inode).body {
                    return Err([EOPNOTSUPP, EPERM].into());
                }
                self.change(inode).permissions = permissions & PERMISSIONS;
                Ok(Expected::Done)
            }
            Op::SetOwner { of, uid, gid } => {
                let inode = self.resolve(of)?;
                let node = self.change(inode);
                (node.uid, node.gid) = (*uid, *gid);
                Ok(Expected::Done)
            }
            Op::SetTimes {
                of,
                accessed,
                modified,
            } => {
                let inode = self.resolve(of)?;
                let node = self.change(inode);
                node.accessed = accessed.map_or(node.accessed, moment);
                node.modified = modified.map_or(node.modified, moment);
                Ok(Expected::Done)
            }
            Op::SetXattr {
                of,
                name,
                length,
                fill,
                mode,
            } => self.set_xattr(of, name, &pattern(*fill, *length as usize), *mode),
            Op::GetXattr { of, name } => {
                let inode = self.resolve(of)?;
                let value = self.existing(inode).xattrs.get(name).ok_or(ENODATA)?;
                Ok(Expected::Bytes(value.to_vec()))
            }
            Op::RemoveXattr { of, name } => {
                let inode = self.resolve(of)?;
                if !self.existing(inode).xattrs.contains_key(name) {
                    return Err([ENODATA, EPERM].into());
                }
                self.change(inode).xattrs.remove(name);
                Ok(Expected::Done)
            }
            Op::ListXattrs(of) => {
                let inode = self.resolve(of)?;
                Ok(Expected::Names(
                    self.existing(inode).xattrs.keys().cloned().collect(),
                ))
            }
            other => unreachable!("{other} belongs elsewhere"),
        }
    }

    fn read_link(&mut self, of: &Target) -> Verdict {
        let inode = self.resolve(of)?;
        let Body::Symlink(to) = &self.existing(inode).body else {
            return Err(EINVAL.into());
        };
        let to = to.clone();
        self.forget_access(inode);
        Ok(Expected::Bytes(to))
    }

    fn set_xattr(&mut self, of: &Target, name: &[u8], value: &[u8], mode: SetXattrMode) -> Verdict {
        let inode = self.resolve(of)?;
        let node = self.existing(inode);
        if name.len() > LONGEST_ATTRIBUTE {
            return Err(ERANGE.into());
        }
        let users = matches!(node.body, Body::Regular(_) | Body::Directory { .. });
        if name.starts_with(b"user.") && !users {
            return Err([EPERM, EOPNOTSUPP].into());
        }
        match (mode, node.xattrs.contains_key(name)) {
            (SetXattrMode::Create, true) => return Err(EEXIST.into()),
            (SetXattrMode::Replace, false) => return Err(ENODATA.into()),
            _ => {}
        }
        self.change(inode)
            .xattrs
            .insert(name.to_vec(), Arc::from(value));
        Ok(Expected::Done)
    }

    /// Whether all attributes of an inode, including this one, fit in one attribute block; then no
    /// layout is a reason to refuse.
    pub(super) fn xattrs_fit(&self, of: &Target, name: &[u8], length: u64) -> bool {
        let Ok(inode) = self.resolve(of) else {
            return false;
        };
        let others = self
            .existing(inode)
            .xattrs
            .iter()
            .filter(|(other, _)| other.as_slice() != name);
        let sizes = others.map(|(other, value)| entry_size(other, value.len() as u64));
        let total: u64 = sizes.sum::<u64>() + entry_size(name, length);
        total + BLOCK_OVERHEAD <= self.block_size
    }
}

/// Bytes that an attribute takes in a block, counting its prefix although that is stored as a
/// number.
fn entry_size(name: &[u8], value: u64) -> u64 {
    ENTRY + (name.len() as u64).next_multiple_of(4) + value.next_multiple_of(4)
}
