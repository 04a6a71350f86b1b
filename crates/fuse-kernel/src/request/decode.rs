//! Decodes requests.
//!
//! The kernel is a trusted peer, but its versions differ: a request that is shorter than its
//! operation needs is an error and no panic, and one of an unknown operation is
//! [`Operation::Other`]. Names come with a zero byte at their end, which is not part of them.

use zerocopy::FromBytes;

use super::{Caller, Forgotten, NewTime, Operation, Request, SetAttributes};
use crate::device_number::DeviceNumber;
use crate::handshake::Features;
use crate::wire::{self, InHeader, opcode};

/// A request that is shorter than it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooShort;

/// What the kernel sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message<'a> {
    /// Somebody waits for a reply.
    Call(Request<'a>),
    /// Nobody does.
    Forget(Forgotten<'a>),
}

impl<'a> Message<'a> {
    /// Decodes a message from its header and what follows, in the form of the features that were
    /// agreed on.
    pub(crate) fn decode(
        header: &InHeader,
        mut body: Body<'a>,
        agreed: Features,
    ) -> Result<Self, TooShort> {
        Ok(match header.opcode {
            opcode::FORGET => Self::Forget(forgotten(header.node, &mut body)?),
            opcode::BATCH_FORGET => Self::Forget(many_forgotten(&mut body)?),
            _ => Self::Call(Request {
                node: header.node,
                caller: Caller {
                    uid: header.uid,
                    gid: header.gid,
                    thread: header.thread,
                },
                operation: operation(header, body, agreed)?,
                is_through_ring: false,
            }),
        })
    }
}

/// What is left of a request behind its header: the operation's structure, and names or bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a> {
    /// The structure, if it came apart from the rest.
    structure: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// One that begins with the structure, if its operation has one.
    pub(crate) fn joined(bytes: &'a [u8]) -> Self {
        Self {
            structure: None,
            rest: bytes,
        }
    }

    /// One whose structure came in an area of its own, which may be longer.
    pub(crate) fn split(structure: &'a [u8], rest: &'a [u8]) -> Self {
        Self {
            structure: Some(structure),
            rest,
        }
    }

    /// The structure. No operation has more than one.
    fn take<T: FromBytes>(&mut self) -> Result<T, TooShort> {
        let area = self.structure.unwrap_or(self.rest);
        let (value, behind) = T::read_from_prefix(area).map_err(|_| TooShort)?;
        if self.structure.is_none() {
            self.rest = behind;
        }
        Ok(value)
    }

    /// The name at the beginning, up to its zero byte.
    fn name(&mut self) -> Result<&'a [u8], TooShort> {
        let end = self.rest.iter().position(|&byte| byte == 0);
        let (name, rest) = self.rest.split_at(end.ok_or(TooShort)?);
        self.rest = &rest[1..];
        Ok(name)
    }

    fn bytes(&mut self, count: u32) -> Result<&'a [u8], TooShort> {
        let split = self.rest.split_at_checked(count as usize);
        let (bytes, rest) = split.ok_or(TooShort)?;
        self.rest = rest;
        Ok(bytes)
    }
}

fn operation<'a>(
    header: &InHeader,
    mut body: Body<'a>,
    agreed: Features,
) -> Result<Operation<'a>, TooShort> {
    Ok(match header.opcode {
        opcode::LOOKUP => Operation::Lookup { name: body.name()? },
        opcode::GETATTR => Operation::GetAttributes {
            has_file: body.take::<wire::GetAttributesIn>()?.flags & 1 != 0,
        },
        opcode::STATX => Operation::Statx,
        opcode::SETATTR => Operation::SetAttributes(set_attributes(&body.take()?)),
        opcode::READLINK => Operation::ReadLink,
        opcode::UNLINK => Operation::Unlink { name: body.name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: body.name()? },
        opcode::RENAME => {
            let wire::RenameIn { new_parent } = body.take()?;
            rename(new_parent, 0, &mut body)?
        }
        opcode::RENAME2 => {
            let rename2: wire::Rename2In = body.take()?;
            rename(rename2.new_parent, rename2.flags, &mut body)?
        }
        opcode::LINK => Operation::Link {
            node: body.take::<wire::LinkIn>()?.node,
            new_name: body.name()?,
        },
        opcode::SYMLINK | opcode::MKNOD | opcode::MKDIR | opcode::TMPFILE => {
            make(header.opcode, &mut body)?
        }
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::WRITE => {
            transfer(header.opcode, &mut body)?
        }
        opcode::STATFS => Operation::Statfs,
        opcode::OPEN | opcode::OPENDIR | opcode::RELEASE | opcode::RELEASEDIR => {
            open_or_close(header.opcode, &mut body)?
        }
        opcode::FSYNC | opcode::FSYNCDIR => Operation::Sync {
            data_only: body.take::<wire::SyncIn>()?.flags & 1 != 0,
        },
        opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            xattr(header.opcode, &mut body, agreed)?
        }
        opcode::ACCESS => Operation::Access {
            mask: body.take::<wire::AccessIn>()?.mask,
        },
        opcode::IOCTL => {
            let control: wire::IoctlIn = body.take()?;
            Operation::Control {
                command: control.command,
                input: body.bytes(control.input_size)?,
                room: control.output_size,
            }
        }
        opcode::FALLOCATE => {
            let range: wire::AllocateIn = body.take()?;
            Operation::Allocate {
                offset: range.offset,
                length: range.length,
                mode: range.mode,
            }
        }
        opcode::LSEEK => {
            let wire::SeekIn { offset, whence, .. } = body.take()?;
            Operation::Seek { offset, whence }
        }
        opcode::DESTROY => Operation::Destroy,
        other => Operation::Other(other),
    })
}

fn forgotten<'a>(node: u64, body: &mut Body<'a>) -> Result<Forgotten<'a>, TooShort> {
    let wire::ForgetIn { count } = body.take()?;
    Ok(Forgotten {
        one: Some((node, count)),
        many: &[],
    })
}

fn many_forgotten<'a>(body: &mut Body<'a>) -> Result<Forgotten<'a>, TooShort> {
    let wire::BatchForgetIn { count, .. } = body.take()?;
    let length = u32::try_from(size_of::<wire::ForgetOne>()).map_err(|_| TooShort)?;
    Ok(Forgotten {
        one: None,
        many: body.bytes(count.checked_mul(length).ok_or(TooShort)?)?,
    })
}

fn rename<'a>(new_parent: u64, flags: u32, body: &mut Body<'a>) -> Result<Operation<'a>, TooShort> {
    Ok(Operation::Rename {
        name: body.name()?,
        new_parent,
        new_name: body.name()?,
        flags,
    })
}

/// Operations that make an inode.
fn make<'a>(opcode: u32, body: &mut Body<'a>) -> Result<Operation<'a>, TooShort> {
    Ok(match opcode {
        opcode::SYMLINK => Operation::MakeSymlink {
            name: body.name()?,
            target: body.name()?,
        },
        opcode::MKNOD => {
            let node: wire::MakeNodeIn = body.take()?;
            Operation::MakeNode {
                name: body.name()?,
                mode: node.mode,
                umask: node.umask,
                device: DeviceNumber::from_wire(node.device),
            }
        }
        opcode::MKDIR => {
            let wire::MakeDirectoryIn { mode, umask } = body.take()?;
            let name = body.name()?;
            Operation::MakeDirectory { name, mode, umask }
        }
        _ => {
            let wire::CreateIn { mode, umask, .. } = body.take()?;
            Operation::MakeUnnamed { mode, umask }
        }
    })
}

/// Operations on open files.
fn open_or_close<'a>(opcode: u32, body: &mut Body<'a>) -> Result<Operation<'a>, TooShort> {
    Ok(match opcode {
        opcode::OPEN => Operation::Open {
            flags: body.take::<wire::OpenIn>()?.flags.cast_signed(),
        },
        opcode::OPENDIR => Operation::OpenDirectory {
            flags: body.take::<wire::OpenIn>()?.flags.cast_signed(),
        },
        opcode::RELEASEDIR => Operation::ReleaseDirectory {
            handle: body.take::<wire::ReleaseIn>()?.file,
        },
        _ => Operation::Release,
    })
}

/// Operations that move content or lists of names.
fn transfer<'a>(opcode: u32, body: &mut Body<'a>) -> Result<Operation<'a>, TooShort> {
    if opcode == opcode::WRITE {
        let write: wire::WriteIn = body.take()?;
        return Ok(Operation::Write {
            offset: write.offset,
            data: body.bytes(write.size)?,
            is_writeback: write.write_flags & WRITE_CACHE != 0,
            clears_set_id: write.write_flags & WRITE_KILL_SUIDGID != 0,
        });
    }
    let read: wire::ReadIn = body.take()?;
    let (offset, size, flags) = (read.offset, read.size, read.flags.cast_signed());
    Ok(match opcode {
        opcode::READDIR => Operation::List {
            cookie: offset,
            size,
            flags,
        },
        opcode::READDIRPLUS => Operation::ListWithAttributes {
            cookie: offset,
            size,
            flags,
        },
        _ => Operation::Read {
            offset,
            size,
            flags,
        },
    })
}

const WRITE_CACHE: u32 = 1 << 0;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Operations on extended attributes.
fn xattr<'a>(
    opcode: u32,
    body: &mut Body<'a>,
    agreed: Features,
) -> Result<Operation<'a>, TooShort> {
    Ok(match opcode {
        opcode::SETXATTR => set_xattr(body, agreed)?,
        opcode::GETXATTR => {
            let wire::GetXattrIn { room, .. } = body.take()?;
            let name = body.name()?;
            Operation::GetXattr { name, room }
        }
        opcode::LISTXATTR => Operation::ListXattr {
            room: body.take::<wire::GetXattrIn>()?.room,
        },
        _ => Operation::RemoveXattr { name: body.name()? },
    })
}

fn set_xattr<'a>(body: &mut Body<'a>, agreed: Features) -> Result<Operation<'a>, TooShort> {
    let (size, flags, own_flags) = if agreed.contains(Features::SET_GROUP_ID_OF_LISTS) {
        let set: wire::SetXattrExtendedIn = body.take()?;
        (set.size, set.flags, Some(set.own_flags))
    } else {
        let wire::SetXattrIn { size, flags } = body.take()?;
        (size, flags, None)
    };
    Ok(Operation::SetXattr {
        name: body.name()?,
        value: body.bytes(size)?,
        flags,
        clears_set_group_id: own_flags.map(|own| own & SETXATTR_ACL_KILL_SGID != 0),
    })
}

/// The bits of [`wire::SetAttributesIn`]'s `valid`.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ACCESSED: u32 = 1 << 4;
    pub(super) const MODIFIED: u32 = 1 << 5;
    pub(super) const FILE: u32 = 1 << 6;
    pub(super) const ACCESSED_NOW: u32 = 1 << 7;
    pub(super) const MODIFIED_NOW: u32 = 1 << 8;
    pub(super) const CHANGED: u32 = 1 << 10;
}

fn set_attributes(set: &wire::SetAttributesIn) -> SetAttributes {
    let has = |bit| set.valid & bit != 0;
    let time = |bit, now, seconds, nanoseconds| {
        has(bit).then_some(match now {
            true => NewTime::Now,
            false => NewTime::At {
                seconds,
                nanoseconds,
            },
        })
    };
    SetAttributes {
        mode: has(valid::MODE).then_some(set.mode),
        uid: has(valid::UID).then_some(set.uid),
        gid: has(valid::GID).then_some(set.gid),
        size: has(valid::SIZE).then_some(set.size),
        accessed: time(
            valid::ACCESSED,
            has(valid::ACCESSED_NOW),
            set.accessed,
            set.accessed_nanoseconds,
        ),
        modified: time(
            valid::MODIFIED,
            has(valid::MODIFIED_NOW),
            set.modified,
            set.modified_nanoseconds,
        ),
        changed: time(valid::CHANGED, false, set.changed, set.changed_nanoseconds),
        has_file: has(valid::FILE),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;

    fn header(opcode: u32) -> InHeader {
        let mut header = InHeader::new_zeroed();
        (header.opcode, header.node, header.uid, header.thread) = (opcode, 12, 1000, 77);
        header
    }

    /// Decodes where nothing was agreed on.
    fn message(opcode: u32, body: Body<'_>) -> Result<Message<'_>, TooShort> {
        Message::decode(&header(opcode), body, Features::empty())
    }

    fn decoded(opcode: u32, body: &[u8]) -> Operation<'_> {
        match message(opcode, Body::joined(body)).expect("it is whole") {
            Message::Call(request) => {
                assert_eq!((request.node, request.caller.uid), (12, 1000));
                request.operation
            }
            Message::Forget(_) => panic!("{opcode} has a reply"),
        }
    }

    fn forgotten_by(opcode: u32, body: &[u8]) -> Vec<(u64, u64)> {
        match message(opcode, Body::joined(body)).expect("it is whole") {
            Message::Forget(forgotten) => forgotten.iter().collect(),
            Message::Call(request) => panic!("{request:?}"),
        }
    }

    #[test]
    fn names_end_at_their_zero_byte() {
        let body = [&5u64.to_ne_bytes()[..], &[0; 8], b"old\0a new name\0"].concat();
        let Operation::Rename {
            name,
            new_parent,
            new_name,
            flags,
        } = decoded(opcode::RENAME2, &body)
        else {
            panic!("not a rename");
        };
        assert_eq!((name, new_name), (&b"old"[..], &b"a new name"[..]));
        assert_eq!((new_parent, flags), (5, 0));
    }

    #[test]
    fn a_write_has_the_bytes_that_it_says() {
        let mut write = wire::WriteIn::new_zeroed();
        (write.offset, write.size, write.write_flags) = (4096, 3, 1);
        let body = [write.as_bytes(), b"abcd"].concat();
        let Operation::Write {
            data,
            is_writeback,
            clears_set_id,
            ..
        } = decoded(opcode::WRITE, &body)
        else {
            panic!("not a write");
        };
        assert_eq!(data, b"abc");
        assert!(is_writeback && !clears_set_id);
        write.size = 5;
        let body = [write.as_bytes(), b"abcd"].concat();
        let refused = message(opcode::WRITE, Body::joined(&body));
        assert_eq!(refused.map(|_| ()), Err(TooShort));
    }

    #[test]
    fn times_are_now_or_as_given_or_not_set() {
        let mut set = wire::SetAttributesIn::new_zeroed();
        set.valid = valid::ACCESSED | valid::ACCESSED_NOW | valid::CHANGED | valid::SIZE;
        (set.changed, set.changed_nanoseconds) = (-2, 999_999_999);
        let Operation::SetAttributes(set) = decoded(opcode::SETATTR, set.as_bytes()) else {
            panic!("not a change");
        };
        assert_eq!(set.accessed, Some(NewTime::Now));
        assert_eq!(set.modified, None);
        let changed = NewTime::At {
            seconds: -2,
            nanoseconds: 999_999_999,
        };
        assert_eq!((set.changed, set.size), (Some(changed), Some(0)));
        assert_eq!((set.mode, set.has_file), (None, false));
    }

    #[test]
    fn one_node_or_many_are_forgotten() {
        assert_eq!(forgotten_by(opcode::FORGET, &3u64.to_ne_bytes()), [(12, 3)]);
        let body: Vec<u8> = [2u64, 8, 1, 9, 4]
            .iter()
            .flat_map(|number| number.to_ne_bytes())
            .collect();
        assert_eq!(forgotten_by(opcode::BATCH_FORGET, &body), [(8, 1), (9, 4)]);
        let too_many = u64::from(u32::MAX).to_ne_bytes();
        let refused = message(opcode::BATCH_FORGET, Body::joined(&too_many));
        assert_eq!(refused.map(|_| ()), Err(TooShort));
    }

    #[test]
    fn a_structure_may_come_apart_from_the_names() {
        let mut set = [0; 128];
        set[..4].copy_from_slice(&5u32.to_ne_bytes());
        let apart = Body::split(&set, b"user.name\0value");
        let decoded = message(opcode::SETXATTR, apart).expect("it is whole");
        let Message::Call(Request {
            operation: Operation::SetXattr { name, value, .. },
            ..
        }) = decoded
        else {
            panic!("{decoded:?}");
        };
        assert_eq!((name, value), (&b"user.name"[..], &b"value"[..]));
        // This one has none.
        let apart = Body::split(&[7; 128], b"name\0");
        let decoded = message(opcode::LOOKUP, apart).expect("it is whole");
        assert!(matches!(
            decoded,
            Message::Call(Request {
                operation: Operation::Lookup { name: b"name" },
                ..
            })
        ));
    }

    #[test]
    fn an_access_list_says_what_becomes_of_the_set_group_id_bit() {
        let decoded = |agreed, structure: &[u32]| {
            let mut body: Vec<u8> = structure.iter().flat_map(|n| n.to_ne_bytes()).collect();
            body.extend_from_slice(b"user.name\0value");
            let header = header(opcode::SETXATTR);
            let decoded = Message::decode(&header, Body::joined(&body), agreed);
            let Ok(Message::Call(Request {
                operation:
                    Operation::SetXattr {
                        name: b"user.name",
                        value: b"value",
                        flags: 2,
                        clears_set_group_id,
                    },
                ..
            })) = decoded
            else {
                panic!("{decoded:?}");
            };
            clears_set_group_id
        };
        let agreed = Features::SET_GROUP_ID_OF_LISTS;
        assert_eq!(decoded(Features::empty(), &[5, 2]), None);
        assert_eq!(decoded(agreed, &[5, 2, 0, 0]), Some(false));
        assert_eq!(decoded(agreed, &[5, 2, 1, 0]), Some(true));
    }

    #[test]
    fn no_cut_and_no_number_makes_a_panic() {
        let body = [&[7; 96][..], b"name\0other\0"].concat();
        for opcode in 0..70 {
            for length in 0..body.len() {
                for agreed in [Features::empty(), Features::all()] {
                    let body = Body::joined(&body[..length]);
                    let _ = Message::decode(&header(opcode), body, agreed);
                }
            }
        }
    }
}
