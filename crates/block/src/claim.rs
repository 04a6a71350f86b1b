//! Exclusive or shared use of a file or block device.
//!
//! A claim is an advisory lock, exclusive for writing and shared for reading, of the file and of
//! every file behind it (a loop device or a partition of one has the same bytes as its file; a file
//! that cannot be opened by the path that the system shows is not locked, and not used while others
//! have it locked). It consists of two locks. One is of bytes ([`range_lock`]): all of them, or,
//! for a file system that begins inside the file, its first byte. The other is of the whole file
//! (`flock`), for programs that look only at that; a claim of a part takes it shared, since others
//! may use other parts. Where the host has only one of them, that one is the claim; where it has
//! none, a file can only be read.
//!
//! For writing, a block device is opened with `O_EXCL`, which fails while the kernel has it
//! mounted. A file that the kernel has mounted by another loop device, or by a partition of one, is
//! not locked by the kernel; it is refused for writing, as is one with a loop device that something
//! else has to itself. Locks end when the files are closed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pext4_sync::{thread, time};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::file::Access;
use crate::holders;
use crate::host_file::{error, is_leased, open_checked};
use crate::loops::{self, Backing, Identity};
use crate::range_lock::{self, Bytes, RangeLock};

/// Time between two attempts while a file is in use.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// An open file, locked.
pub(crate) struct Claim {
    /// The file itself.
    pub(crate) file: File,
    /// The locked files behind a loop device.
    pub(crate) backing: Vec<File>,
}

/// An open file whose lock can be tried, to find out when its user is done with it. It is held
/// until this is dropped.
#[derive(Debug)]
pub struct LockProbe {
    file: File,
    path: PathBuf,
    bytes: Bytes,
    access: Access,
}

impl LockProbe {
    /// Opens a file in which a file system begins at byte `start`, as
    /// [`FileDevice::open`](crate::FileDevice::open) does (0) or
    /// [`FileDevice::open_range`](crate::FileDevice::open_range), but without its lock.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or is neither a file nor a block device. An error of kind `WouldBlock`
    /// means that its user is closing it and makes others wait (a lease).
    pub fn open(path: &Path, start: u64, access: Access) -> io::Result<Self> {
        let file = open_to_lock(path, access)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            bytes: Bytes::beginning_at(start),
            access,
        })
    }

    /// Takes the lock of that file system for `access`; false if somebody else has it.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn try_lock(&self) -> io::Result<bool> {
        lock(&self.file, &self.path, self.bytes, self.access)
    }
}

/// The result of one attempt.
enum Attempt<T> {
    Claimed(T),
    /// The file is in use, or what this text names.
    Busy(Option<String>),
}

/// Opens a file and locks these bytes of it. While they are in use, tries again until `wait` has
/// passed.
pub(crate) fn claim(
    path: &Path,
    bytes: Bytes,
    options: &OpenOptions,
    access: Access,
    wait: Duration,
) -> io::Result<Claim> {
    let deadline = time::now().saturating_add(wait);
    loop {
        match try_claim(path, bytes, options, access)? {
            Attempt::Claimed(claim) => return Ok(claim),
            Attempt::Busy(what) if time::now() >= deadline => {
                return Err(error(path, "open it", in_use(what)));
            }
            Attempt::Busy(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

/// Locks all bytes of a file that is open already; `path` names it in errors. While it is in use,
/// tries again until `wait` has passed. Where that fails, the file is unlocked: others may have
/// duplicates of it, and would keep its locks.
pub(crate) fn claim_opened(
    file: File,
    path: &Path,
    access: Access,
    wait: Duration,
) -> io::Result<Claim> {
    let deadline = time::now().saturating_add(wait);
    loop {
        let attempt = match lock(&file, path, Bytes::All, access)? {
            true => claim_locked(&file, path, Bytes::All, access),
            false => Ok(Attempt::Busy(None)),
        };
        if let Ok(Attempt::Claimed(backing)) = attempt {
            return Ok(Claim { file, backing });
        }
        unlock(&file);
        match attempt? {
            Attempt::Busy(what) if time::now() >= deadline => {
                return Err(error(path, "use it", in_use(what)));
            }
            _ => thread::sleep(RETRY_INTERVAL),
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
fn try_claim(
    path: &Path,
    bytes: Bytes,
    options: &OpenOptions,
    access: Access,
) -> io::Result<Attempt<Claim>> {
    let file = match options.open(path) {
        Ok(file) => file,
        Err(source) if source.kind() == io::ErrorKind::ResourceBusy => {
            // This lasts for a moment only, unless it is mounted.
            let identity = fs::metadata(path).ok().as_ref().map(Identity::of);
            refuse_if_mounted(path, path, identity, bytes, access)?;
            return Ok(Attempt::Busy(None));
        }
        Err(source) if is_leased(&source) => return Ok(Attempt::Busy(None)),
        Err(source) => return Err(error(path, "open it", source)),
    };
    if !lock(&file, path, bytes, access)? || !is_still_at(&file, path) {
        return Ok(Attempt::Busy(None));
    }
    Ok(match claim_locked(&file, path, bytes, access)? {
        Attempt::Claimed(backing) => Attempt::Claimed(Claim { file, backing }),
        Attempt::Busy(what) => Attempt::Busy(what),
    })
}

/// Locks the files behind a file that is locked, unless it must not be used all the same.
fn claim_locked(
    file: &File,
    path: &Path,
    mut bytes: Bytes,
    access: Access,
) -> io::Result<Attempt<Vec<File>>> {
    let mut identity = file.metadata().ok().as_ref().map(Identity::of);
    refuse_if_mounted(path, path, identity, bytes, access)?;
    refuse_if_read_only(file, path, access)?;
    let mut backing = Vec::new();
    for _ in 0..loops::MAX_LOOP_DEPTH {
        let Some(next) = identity.and_then(Identity::backing) else {
            break;
        };
        bytes = next.translate(bytes);
        identity = next.identity;
        refuse_if_mounted(path, &next.path, identity, bytes, access)?;
        let busy = || Attempt::Busy(Some(format!("{}, the file behind it", next.path.display())));
        let file = match open_behind(&next, access) {
            Ok(Some(file)) => file,
            Err(error) if is_leased(&error) => return Ok(busy()),
            // A file that its path does not lead to cannot be locked, but another process may have
            // done that.
            Ok(None) | Err(_) => {
                if identity.is_some_and(|file| holders::is_locked(file, access)) {
                    return Ok(busy());
                }
                continue;
            }
        };
        if !lock(&file, &next.path, bytes, access)? {
            return Ok(busy());
        }
        backing.push(file);
    }
    Ok(Attempt::Claimed(backing))
}

/// The file behind a loop device; `None` if its path leads to another one.
fn open_behind(backing: &Backing, access: Access) -> io::Result<Option<File>> {
    let file = open_to_lock(&backing.path, access)?;
    let is_it = Some(Identity::of(&file.metadata()?)) == backing.identity;
    Ok(is_it.then_some(file))
}

/// Opens a file to lock it, for writing if its bytes are to be locked for that and it can be: some
/// file systems do not lock a file that was opened for reading only.
fn open_to_lock(path: &Path, access: Access) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let writing = options.read(true).write(access == Access::ReadWrite);
    open_checked(path, writing).or_else(|_| open_checked(path, OpenOptions::new().read(true)))
}

/// Takes both locks, or none: false if another process holds one.
fn lock(file: &File, path: &Path, bytes: Bytes, access: Access) -> io::Result<bool> {
    let failed = |source| error(path, "lock it", source);
    let of_bytes = range_lock::lock(file, access, bytes).map_err(failed)?;
    let is_shared = match of_bytes {
        RangeLock::Busy => return Ok(false),
        RangeLock::Taken => access == Access::ReadOnly || bytes != Bytes::All,
        RangeLock::Unsupported => access == Access::ReadOnly,
    };
    let operation = match is_shared {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => {
            if of_bytes == RangeLock::Taken {
                range_lock::unlock(file, bytes).map_err(failed)?;
            }
            Ok(false)
        }
        // Some network file systems have one of the locks only, or none.
        Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP)
            if of_bytes == RangeLock::Taken || access == Access::ReadOnly =>
        {
            Ok(true)
        }
        Err(errno) => Err(error(path, "lock it", errno)),
    }
}

/// Gives back both locks of a whole file, as far as it has them.
fn unlock(file: &File) {
    // What has not been taken cannot be given back.
    let _ = range_lock::unlock(file, Bytes::All);
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// Whether `path` still leads to the open file. The process that held the lock may have replaced
/// the file by another one, which must then be opened. If the files cannot be compared, true if the
/// path exists.
fn is_still_at(file: &File, path: &Path) -> bool {
    leads_to(path, file).unwrap_or_else(|_| path.exists())
}

/// Whether a path leads to this open file, and not to another one that was put in its place.
///
/// # Errors
///
/// The path leads nowhere, or one of the files cannot be examined.
pub fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    let (there, open) = (fs::metadata(path)?, file.metadata()?);
    Ok((there.dev(), there.ino()) == (open.dev(), open.ino()))
}

/// Refuses to write to a file system that the kernel has mounted, which would corrupt it. `what` is
/// the path itself, or that of a file behind it.
fn refuse_if_mounted(
    path: &Path,
    what: &Path,
    identity: Option<Identity>,
    bytes: Bytes,
    access: Access,
) -> io::Result<()> {
    let Some(identity) = identity.filter(|_| access == Access::ReadWrite) else {
        return Ok(());
    };
    let it = match what == path {
        true => "it".to_owned(),
        false => format!("{}, the file behind it,", what.display()),
    };
    let Some(directory) = loops::mounted_on(identity, bytes) else {
        // Of the devices on a file behind a device, one is that which this process has opened.
        let Some(device) = loops::used_device_on(identity, bytes).filter(|_| what == path) else {
            return Ok(());
        };
        let problem = format!(
            "the kernel uses {it} by {}, for a mount in another namespace or as a part of another \
             device",
            device.display()
        );
        return Err(error(path, "write to it", busy(problem)));
    };
    let way = match identity {
        Identity::File { .. } => " by a loop device",
        Identity::Device(..) => "",
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A mount may name any path as its image.
    #[test]
    fn a_probe_opens_only_what_can_be_an_image() {
        let directory = tempfile::tempdir().expect("there is room");
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("there is room");
        for path in [&*pipe, Path::new("/dev/null"), directory.path()] {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let refused = LockProbe::open(path, 0, access).expect_err("no image");
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
            }
        }
    }

    #[test]
    fn a_probe_that_finds_a_lock_takes_none() {
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("image");
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).read(true).write(true);
        let [other, last] = [(); 2].map(|()| options.open(&path).expect("it is made"));
        // A program that looks only at the lock of the whole file.
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).expect("it is free");
        let probe = LockProbe::open(&path, 0, Access::ReadWrite).expect("it is there");
        assert!(!probe.try_lock().expect("files can be locked here"));
        let bytes = range_lock::lock(&last, Access::ReadWrite, Bytes::All).expect("sound");
        assert_eq!(bytes, RangeLock::Taken, "the probe has left none behind");
    }
}
