//! Exclusive or shared use of a file or block device.
//!
//! A claim is an advisory lock (`flock`), exclusive for writing and shared for reading, on the file
//! and, for a loop device, on the file behind it, since both have the same bytes. If the loop
//! device begins inside the file, other users may have other parts of the file, so its aliases,
//! which begin at the same byte, are locked instead of the file. For writing, a block device is
//! opened with `O_EXCL`, which fails while the kernel has it mounted. A file that the kernel has
//! mounted by another loop device is not locked by the kernel; it is refused for writing. Locks end
//! when the files are closed.

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

/// Time between two attempts while a file is in use.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// An open file, locked.
pub(crate) struct Claim {
    /// The file itself.
    pub(crate) file: File,
    /// The locked files behind a loop device, and its aliases.
    pub(crate) backing: Vec<File>,
}

/// The result of one attempt.
enum Attempt {
    Claimed(Claim),
    /// The file is in use, or what this text names.
    Busy(Option<String>),
}

/// Opens and locks a file. While it is in use, tries again until `wait` has passed.
pub(crate) fn claim(
    path: &Path,
    options: &OpenOptions,
    access: Access,
    wait: Duration,
) -> io::Result<Claim> {
    let deadline = time::now().saturating_add(wait);
    loop {
        match try_claim(path, options, access)? {
            Attempt::Claimed(claim) => return Ok(claim),
            Attempt::Busy(what) if time::now() >= deadline => {
                return Err(error(path, "open it", in_use(what)));
            }
            Attempt::Busy(_) => thread::sleep(RETRY_INTERVAL),
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
fn try_claim(path: &Path, options: &OpenOptions, access: Access) -> io::Result<Attempt> {
    let file = match options.open(path) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::ResourceBusy => {
            // This lasts for a moment only, unless it is mounted.
            refuse_if_mounted(path, path, fs::metadata(path).ok(), access)?;
            return Ok(Attempt::Busy(None));
        }
        Err(source) => return Err(error(path, "open it", source)),
    };
    if !lock(&file, path, access)? || !is_still_at(&file, path) {
        return Ok(Attempt::Busy(None));
    }
    refuse_if_mounted(path, path, file.metadata().ok(), access)?;
    refuse_if_read_only(&file, path, access)?;
    let mut claim = Claim {
        file,
        backing: Vec::new(),
    };
    while claim.backing.len() < loops::MAX_LOOP_DEPTH
        && let Some(next) = claim.next_backing()
    {
        // A file that cannot be opened cannot be locked.
        let Ok(file) = File::open(&next) else { break };
        if !lock(&file, path, access)? {
            let what = format!("{}, the file behind it", next.display());
            return Ok(Attempt::Busy(Some(what)));
        }
        refuse_if_mounted(path, &next, file.metadata().ok(), access)?;
        claim.backing.push(file);
    }
    for alias in claim.aliases() {
        let Ok(file) = File::open(&alias) else {
            continue;
        };
        if !lock(&file, path, access)? {
            let what = format!("{}, which has the same bytes", alias.display());
            return Ok(Attempt::Busy(Some(what)));
        }
        refuse_if_mounted(path, &alias, file.metadata().ok(), access)?;
        claim.backing.push(file);
    }
    Ok(Attempt::Claimed(claim))
}

impl Claim {
    /// The other loop devices that begin at the same byte as the innermost one.
    fn aliases(&self) -> Vec<PathBuf> {
        let last = self.backing.last().unwrap_or(&self.file);
        last.metadata()
            .map_or_else(|_| Vec::new(), |metadata| loops::aliases_of(&metadata))
    }

    /// The file behind the innermost one, if that is a loop device.
    fn next_backing(&self) -> Option<PathBuf> {
        let last = self.backing.last().unwrap_or(&self.file);
        loops::backing_of(&last.metadata().ok()?)
    }
}

/// Takes the lock; false if another process holds it.
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

/// Whether `path` still leads to the open file. The process that held the lock may have replaced
/// the file by another one, which must then be opened. If the files cannot be compared, true if the
/// path exists.
fn is_still_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::metadata(path)) else {
        return path.exists();
    };
    open.dev() == there.dev() && open.ino() == there.ino()
}

/// Refuses to write to a file system that the kernel has mounted, which would corrupt it. `what` is
/// the path itself, or that of the file behind it or of an alias.
fn refuse_if_mounted(
    path: &Path,
    what: &Path,
    metadata: Option<Metadata>,
    access: Access,
) -> io::Result<()> {
    let Some(metadata) = metadata.filter(|_| access == Access::ReadWrite) else {
        return Ok(());
    };
    let Some(directory) = loops::mounted_on(&metadata) else {
        return Ok(());
    };
    let it = match what == path {
        true => "it".to_owned(),
        false if metadata.is_file() => format!("{}, the file behind it,", what.display()),
        false => format!("{}, which has the same bytes,", what.display()),
    };
    let way = if metadata.is_file() {
        " by a loop device"
    } else {
        ""
    };
    let directory = directory.display();
    let problem =
        format!("the kernel has {it} mounted on {directory}{way}; `umount {directory}` ends that");
    Err(error(path, "write to it", busy(problem)))
}

/// Refuses a read-only block device for writing: opening it for writing may succeed all the same.
fn refuse_if_read_only(file: &File, path: &Path, access: Access) -> io::Result<()> {
    let is_read_only = || {
        file.metadata()
            .is_ok_and(|metadata| loops::is_read_only(&metadata))
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
