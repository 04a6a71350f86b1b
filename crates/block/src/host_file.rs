//! Files of the system that an image can be in: regular files and block devices. Errors name the
//! file and what could not be done with it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pext4_sync::{thread, time};
use rustix::fs::OFlags;

/// What an image is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Block,
}

impl Kind {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path).map_err(|source| error(path, "open it", source))?;
        Self::of_opened(path, &metadata)
    }

    pub(crate) fn of_opened(path: &Path, metadata: &Metadata) -> io::Result<Self> {
        let file_type = metadata.file_type();
        if file_type.is_file() {
            Ok(Self::Regular)
        } else if file_type.is_block_device() {
            Ok(Self::Block)
        } else {
            let refusal = "it is neither a regular file nor a block device";
            Err(error(
                path,
                "open it",
                io::Error::new(io::ErrorKind::InvalidInput, refusal),
            ))
        }
    }
}

/// An error with the action that failed and the file.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
struct FileError {
    path: PathBuf,
    action: String,
    source: io::Error,
}

/// Time between two attempts to open a file that is leased, and how long to try.
const LEASE_INTERVAL: Duration = Duration::from_millis(10);
const MAX_LEASE: Duration = Duration::from_secs(60);

/// Opens a file or block device for reading without a lock: it may be in use. If a server that is
/// closing it makes others wait, waits for that to end.
///
/// # Errors
///
/// It cannot be opened, or is neither a file nor a block device (opening a pipe would wait for a
/// writer).
pub fn open_unlocked(path: &Path) -> io::Result<File> {
    let deadline = time::now().saturating_add(MAX_LEASE);
    loop {
        match open_checked(path, OpenOptions::new().read(true)) {
            Err(error) if is_leased(&error) && time::now() < deadline => {
                thread::sleep(LEASE_INTERVAL);
            }
            opened => return opened,
        }
    }
}

/// Whether a file was not opened because its user has a lease.
pub(crate) fn is_leased(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Opens what must be a file or block device and may be anything, such as a path that another user
/// has chosen. Opening a pipe does not wait, and no terminal becomes that of this process. A file
/// whose user has a lease is not waited for: that is an error of kind `WouldBlock`.
pub(crate) fn open_checked(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    Kind::of(path)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let failed = |source| error(path, "open it", source);
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(failed)?;
    // Another file may have taken its place meanwhile.
    Kind::of_opened(path, &file.metadata().map_err(failed)?)?;
    Ok(file)
}

/// An error of the same kind that names the file.
pub(crate) fn error(
    path: &Path,
    action: impl Into<String>,
    source: impl Into<io::Error>,
) -> io::Error {
    let source = source.into();
    let kind = source.kind();
    io::Error::new(
        kind,
        FileError {
            path: path.to_owned(),
            action: action.into(),
            source,
        },
    )
}
