//! Conversions between the types of the library and those of `fuser`.
//!
//! `fuser` 0.18 reads a time before 1970 as if nanoseconds counted backwards; [`time_from_fuser`]
//! corrects that.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, INodeNo, TimeOrNow};
use pext4_fs::{Attributes, FileType, SetTime, Time};

use crate::dispatch::{Listed, encode_device};
use crate::node::unreadable_node;

/// A kind of file as fuser's type.
pub(super) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::Symlink => fuser::FileType::Symlink,
    }
}

/// Attributes as fuser's type.
pub(super) fn attributes_for_fuser(attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(u64::from(attributes.inode.get())),
        size: attributes.size,
        blocks: attributes.sectors,
        atime: time_for_fuser(attributes.accessed),
        mtime: time_for_fuser(attributes.modified),
        ctime: time_for_fuser(attributes.changed),
        crtime: UNIX_EPOCH,
        kind: kind(attributes.file_type),
        perm: attributes.mode & 0o7777,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: encode_device(attributes.device),
        blksize: 4096,
        flags: 0,
    }
}

/// An attribute record that says "no such name, and remember it".
pub(super) fn nothing() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The attributes of a name whose inode cannot be read: a number and the kind, neither of which the
/// kernel may cache. With the number 0 the C library would not show the name.
pub(super) fn unreadable(listed: &Listed) -> FileAttr {
    FileAttr {
        ino: INodeNo(unreadable_node(listed.inode)),
        kind: kind(listed.file_type.unwrap_or(FileType::Regular)),
        nlink: 1,
        ..nothing()
    }
}

fn time_for_fuser(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let start = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanoseconds = Duration::from_nanos(u64::from(time.nanoseconds));
    start
        .and_then(|start| start.checked_add(nanoseconds))
        .unwrap_or(UNIX_EPOCH)
}

/// The time that the kernel sent. Before 1970 `fuser` subtracts the nanoseconds that it ought to
/// add; the number that it subtracted is the one that the kernel sent.
pub(super) fn time_from_fuser(time: SystemTime) -> Time {
    let signed = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Time {
            seconds: signed(after.as_secs()),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Time {
                seconds: -signed(before.as_secs()),
                nanoseconds: before.subsec_nanos(),
            }
        }
    }
}

/// A time that the kernel asks to set.
pub(super) fn time_to_set(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(time_from_fuser(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, SystemTime, Time, UNIX_EPOCH, time_for_fuser, time_from_fuser};

    /// What fuser 0.18 makes of the seconds and nanoseconds that the kernel sends.
    fn as_fuser_reads(seconds: i64, nanoseconds: u32) -> SystemTime {
        let size = Duration::new(seconds.unsigned_abs(), nanoseconds);
        if seconds >= 0 {
            UNIX_EPOCH + size
        } else {
            UNIX_EPOCH - size
        }
    }

    #[test]
    fn times_come_as_they_were_sent_also_before_1970() {
        let far = 0x3_7fff_ffff;
        for (seconds, nanoseconds) in [
            (0, 0),
            (1, 999_999_999),
            (-1, 0),
            (-1, 1),
            (-2, 500_000_000),
            (far, 7),
            (-(1 << 31), 3),
        ] {
            let time = Time {
                seconds,
                nanoseconds,
            };
            assert_eq!(time_from_fuser(as_fuser_reads(seconds, nanoseconds)), time);
        }
    }

    #[test]
    fn times_go_out_with_nanoseconds_that_count_forward() {
        let time = time_for_fuser(Time {
            seconds: -2,
            nanoseconds: 800_000_000,
        });
        assert_eq!(time, UNIX_EPOCH - Duration::new(1, 200_000_000));
        let time = time_for_fuser(Time {
            seconds: 5,
            nanoseconds: 3,
        });
        assert_eq!(time, UNIX_EPOCH + Duration::new(5, 3));
    }
}
