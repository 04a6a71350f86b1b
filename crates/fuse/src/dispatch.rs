//! What each request of the FUSE protocol means for a volume, whatever carries it.
//!
//! A request names nodes by number; a node that was found or made is *held* in the volume until
//! `forget` has given it back as often as it was answered. Names, permissions and open files are
//! the kernel's: it checks access by the modes and lists it is told (`default_permissions`), or there is nothing to
//! check (`entrants`). So nothing here does, but for what is left to servers: that an append-only file keeps what it
//! has, that a list set by a stranger to the group takes the set-group-id bit, and what not even root may do. There are
//! no file handles; open and close send no request.
//!
//! Nothing here keeps state of its own, but for the few files whose times the kernel will tell though they may no
//! longer change: all calls take `&self` and may run at once.

mod attributes;
mod data;
mod directory;
mod ioctl;
mod late;
mod namespace;
mod room;
mod xattr;

use std::fs;
use std::sync::Arc;

use pext4_sync::thread;

use pext4_fs::{AccessTimes, Attributes, Entry, Error, InodeNumber, New, Refusal, StatFs, Volume};

use crate::complaints::Complaints;
use crate::node::{inode_of, node_of};
use crate::options::KernelOptions;
use late::LateTimes;

pub use attributes::Change;
pub use data::Whence;
pub use directory::Listed;
pub(crate) use namespace::encode_device;
use room::Room;
pub use xattr::{OPTIMIZE_SCAN, REPORT, REPORT_JSON, Sized, fit};

/// A request's answer, or the number of the error.
pub type Answer<T> = Result<T, Errno>;

/// An error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Input/output error.
    pub const IO: Self = Self(5);
    /// Not permitted.
    pub const NOT_PERMITTED: Self = Self(1);
    /// The mode forbids it.
    pub const NO_ACCESS: Self = Self(13);
    /// Nothing can be written.
    pub const READ_ONLY: Self = Self(30);
    /// There is one already.
    pub const EXISTS: Self = Self(17);
    /// No space left.
    pub const NO_SPACE: Self = Self(28);
    /// Invalid argument.
    pub const INVALID: Self = Self(22);
    /// No data or hole at this offset.
    pub const NO_SUCH_OFFSET: Self = Self(6);
    /// Not a command this file knows.
    pub const NO_SUCH_COMMAND: Self = Self(25);
    /// The answer does not fit.
    pub const RANGE: Self = Self(34);
    /// The server does not do this at all; the kernel stops asking.
    pub const NO_SUCH_CALL: Self = Self(38);
    /// Not supported.
    pub const NOT_SUPPORTED: Self = Self(95);
    /// The node is gone.
    pub const STALE: Self = Self(116);
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Its thread.
    pub process: u32,
}

impl Caller {
    /// Whether it is in a group; one that cannot be asked is in its own alone.
    fn is_in_group(self, group: u32) -> bool {
        let status = || fs::read_to_string(format!("/proc/{}/status", self.process)).ok();
        self.gid == group || status().is_some_and(|status| names_group(&status, group))
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Whether a set-group-id bit of the file may outlive what the caller does to it.
    fn may_keep_group_id(self, file: &Attributes) -> bool {
        self.is_root() || self.is_in_group(file.gid)
    }

    /// What the caller makes is the caller's.
    fn owner(self) -> New {
        New {
            uid: self.uid,
            gid: self.gid,
            ..New::default()
        }
    }
}

/// Whether the text of `/proc/PID/status` has the group among the further ones.
fn names_group(status: &str, group: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|groups| {
        let mut numbers = groups.split_ascii_whitespace();
        numbers.any(|number| number.parse::<u32>() == Ok(group))
    })
}

/// A node that was looked up or made, and is held once more.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its number.
    pub node: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

impl Found {
    fn of(entry: Entry) -> Self {
        Self {
            node: node_of(entry.inode),
            attributes: entry.attributes,
        }
    }
}

/// A volume that answers requests.
pub struct Dispatch {
    volume: Arc<Volume>,
    complaints: Arc<Complaints>,
    /// [immutable]
    noting: Noting,
    /// [immutable] Whether changes of names are committed before they are answered.
    synchronous_names: bool,
    /// [immutable] Whether all changes are.
    synchronous: bool,
    late_times: LateTimes,
    room: Room,
}

/// When times of access are noted.
#[derive(Clone, Copy, Debug)]
struct Noting {
    files: AccessTimes,
    directories: AccessTimes,
}

impl Noting {
    /// As the options of a mount say it.
    fn of(options: &KernelOptions) -> Self {
        let files = options.access_times;
        let directories = match options.directory_access_times {
            true => files,
            false => AccessTimes::Never,
        };
        Self { files, directories }
    }
}

impl Dispatch {
    /// Answers requests by `volume`; what went wrong below goes to `complaints`.
    pub(crate) fn new(
        volume: Arc<Volume>,
        complaints: Arc<Complaints>,
        options: &KernelOptions,
    ) -> Self {
        Self {
            volume,
            complaints,
            noting: Noting::of(options),
            synchronous_names: options.synchronous || options.synchronous_directories,
            synchronous: options.synchronous,
            late_times: LateTimes::new(),
            room: Room::new(),
        }
    }

    /// Notes that something was read. The reader has what it wanted; that the time of it could not be
    /// noted is complained about.
    fn note_access(&self, inode: InodeNumber, policy: AccessTimes) {
        let _ = self.answer(self.volume.note_access(inode, policy));
    }

    /// Whether the volume takes no changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    /// What `statfs` tells.
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        self.volume.statfs()
    }

    /// Blocks that are free now.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.volume.statfs().free_blocks
    }

    /// Whether there are more free blocks than `before`, or are as soon as deleted files are given back. Not for the
    /// threads that serve: it may wait.
    pub(crate) fn has_more_room(&self, before: u64) -> bool {
        let look = || match self.free_blocks() > before {
            true => Ok(()),
            false => Err(Error::Refused(Refusal::NoSpace)),
        };
        self.with_room(look).is_ok()
    }

    /// Gives back `count` holds of a node.
    pub fn forget(&self, node: u64, count: u64) {
        if let (Some(inode), 1..) = (inode_of(node), count) {
            // The kernel holds the root by itself; nobody looked it up.
            if inode != InodeNumber::ROOT {
                self.volume.forget(inode, count);
            }
        }
    }

    /// Carries out a request on a thread that serves; none if it found no space and some may come at any moment. It is
    /// to be carried out again then, where it can wait for that; twice does what once would.
    pub(crate) fn attempt<T>(request: impl FnOnce() -> Answer<T>) -> Option<Answer<T>> {
        room::without_waiting(request)
    }

    /// Runs what may find no space, and runs it again while deleted files may be about to be given back.
    fn with_room<T>(&self, operation: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let nameless = || self.volume.unlinked_inodes_fingerprint();
        self.room.wait_for(operation, nameless, thread::sleep)
    }

    /// Waits until a change that is none of names is on the device, where the mount wants that. The kernel sees to it
    /// for written content only.
    fn commit_change(&self) -> Answer<()> {
        if self.synchronous {
            self.answer(self.volume.sync())?;
        }
        Ok(())
    }

    fn inode(node: u64) -> Answer<InodeNumber> {
        inode_of(node).ok_or(Errno::STALE)
    }

    /// The number for the caller; what the caller cannot be told is complained about.
    fn errno(&self, error: &Error) -> Errno {
        match error {
            Error::Refused(Refusal::ReadOnly) | Error::Journal(_) => self.tell_failure(error),
            Error::Refused(_) => {}
            _ => self.complaints.say(&error.to_string()),
        }
        Errno(error.errno())
    }

    /// Says why the volume takes no changes any more. What failed may have been a part of what was
    /// asked for, and then nobody has heard of it.
    fn tell_failure(&self, error: &Error) {
        let failure = self.volume.failure();
        if let Some(failure) = failure {
            let text = format!("the volume is read-only now: {failure}");
            self.complaints.say(&text);
        } else if matches!(error, Error::Journal(_)) {
            self.complaints.say(&error.to_string());
        }
    }

    fn answer<T>(&self, result: Result<T, Error>) -> Answer<T> {
        result.map_err(|error| self.errno(&error))
    }

    /// The same, where `refusal` is an answer as well.
    fn unless<T>(&self, result: Result<T, Error>, refusal: Refusal) -> Answer<Option<T>> {
        match result {
            Err(error) if error.is(refusal) => Ok(None),
            result => self.answer(result).map(Some),
        }
    }
}
