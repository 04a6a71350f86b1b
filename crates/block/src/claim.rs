//! Having a file or block device for oneself, or with other readers.
//!
//! A claim is an advisory lock (`flock`), exclusive for writing and shared for reading, on the file and,
//! of a loop device, on the file behind it: its bytes have two names. Where it begins inside the file,
//! its twins that begin there too are locked instead, since others may have other parts of the file.
//! A block device for writing is opened with `O_EXCL`, which fails while the kernel has it mounted. What
//! the kernel has mounted by another loop device carries no lock and is refused for writing. Locks end
//! with the open files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pext4_sync::{thread, time};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::file::{Access, error};
use crate::loops;

/// How often a file that is in use is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// An open file, locked.
pub(crate) struct Claim {
    /// The file itself.
    pub(crate) file: File,
    /// What is behind it, if it is a loop device, and what else has its bytes.
    pub(crate) behind: Vec<File>,
}

/// How one try went.
enum Try {
    Claimed(Claim),
    /// Somebody has it, or what is named here.
    Busy(Option<String>),
}

/// Opens and locks a file, trying again until `wait` is over while it is in use.
pub(crate) fn claim(
    path: &Path,
    options: &OpenOptions,
    access: Access,
    wait: Duration,
) -> io::Result<Claim> {
    let deadline = time::now().saturating_add(wait);
    loop {
        match try_claim(path, options, access)? {
            Try::Claimed(claim) => return Ok(claim),
            Try::Busy(what) if time::now() >= deadline => {
                return Err(error(path, "open it", in_use(what)));
            }
            Try::Busy(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

fn in_use(what: Option<String>) -> io::Error {
    let what = what.unwrap_or_else(|| "it".to_owned());
    busy(format!("another process or mount uses {what}"))
}

fn busy(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, problem)
}

/// As [`claim`], once.
fn try_claim(path: &Path, options: &OpenOptions, access: Access) -> io::Result<Try> {
    let file = match options.open(path) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::ResourceBusy => {
            // For a moment only, unless it is mounted.
            refuse_if_mounted(path, path, fs::metadata(path).ok(), access)?;
            return Ok(Try::Busy(None));
        }
        Err(source) => return Err(error(path, "open it", source)),
    };
    if !lock(&file, path, access)? || !is_still_at(&file, path) {
        return Ok(Try::Busy(None));
    }
    refuse_if_mounted(path, path, file.metadata().ok(), access)?;
    refuse_if_read_only(&file, path, access)?;
    let mut claim = Claim {
        file,
        behind: Vec::new(),
    };
    while claim.behind.len() < loops::DEEPEST
        && let Some(next) = claim.next_behind()
    {
        // What may not be opened cannot be asked.
        let Ok(file) = File::open(&next) else { break };
        if !lock(&file, path, access)? {
            let what = format!("{}, the file behind it", next.display());
            return Ok(Try::Busy(Some(what)));
        }
        refuse_if_mounted(path, &next, file.metadata().ok(), access)?;
        claim.behind.push(file);
    }
    for twin in claim.twins() {
        let Ok(file) = File::open(&twin) else {
            continue;
        };
        if !lock(&file, path, access)? {
            let what = format!("{}, which has the same bytes", twin.display());
            return Ok(Try::Busy(Some(what)));
        }
        refuse_if_mounted(path, &twin, file.metadata().ok(), access)?;
        claim.behind.push(file);
    }
    Ok(Try::Claimed(claim))
}

impl Claim {
    /// The other devices that begin where the last one does.
    fn twins(&self) -> Vec<PathBuf> {
        let last = self.behind.last().unwrap_or(&self.file);
        last.metadata()
            .map_or_else(|_| Vec::new(), |facts| loops::twins_of(&facts))
    }

    /// The file behind the last one, if that is a loop device.
    fn next_behind(&self) -> Option<PathBuf> {
        let last = self.behind.last().unwrap_or(&self.file);
        loops::backing_of(&last.metadata().ok()?)
    }
}

/// Whether the lock could be had.
fn lock(file: &File, path: &Path, access: Access) -> io::Result<bool> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(errno) => Err(error(path, "lock it", errno)),
    }
}

/// Whether a path leads to an open file; what cannot be found out does. Whoever had it may have put
/// another file in its place, and that one counts.
fn is_still_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::metadata(path)) else {
        return path.exists();
    };
    open.dev() == there.dev() && open.ino() == there.ino()
}

/// Two that write to one file system each destroy what the other does. `what` is the path itself, or
/// that of the file behind it.
fn refuse_if_mounted(
    path: &Path,
    what: &Path,
    facts: Option<Metadata>,
    access: Access,
) -> io::Result<()> {
    let Some(facts) = facts.filter(|_| access == Access::ReadWrite) else {
        return Ok(());
    };
    let Some(directory) = loops::mounted_on(&facts) else {
        return Ok(());
    };
    let it = match what == path {
        true => "it".to_owned(),
        false if facts.is_file() => format!("{}, the file behind it,", what.display()),
        false => format!("{}, which has the same bytes,", what.display()),
    };
    let way = if facts.is_file() {
        " by a loop device"
    } else {
        ""
    };
    let directory = directory.display();
    let problem =
        format!("the kernel has {it} mounted on {directory}{way}; `umount {directory}` ends that");
    Err(error(path, "write to it", busy(problem)))
}

/// A block device may be opened for writing and still take no write.
fn refuse_if_read_only(file: &File, path: &Path, access: Access) -> io::Result<()> {
    let is_read_only = || {
        file.metadata()
            .is_ok_and(|facts| loops::is_read_only(&facts))
    };
    if access == Access::ReadWrite && is_read_only() {
        let refusal = io::Error::new(
            io::ErrorKind::ReadOnlyFilesystem,
            "it is a read-only device",
        );
        return Err(error(path, "write to it", refusal));
    }
    Ok(())
}
