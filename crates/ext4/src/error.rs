//! What can go wrong, sorted by who is to blame.
//!
//! `Io` is the device's, `Corrupt` the bytes', `NotExt4`, `TooShort` and `Unsupported` nobody's
//! (there is no such file system, or a feature that this version does not read or write), `InUse`
//! another user's, `Options` and `Refused` the caller's (the latter by POSIX), `Journal` says that
//! an error has stopped the journal. Each has the errno that a system call would give.

use std::fmt;
use std::io;

use pext4_jbd2::JournalError;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};
use thiserror::Error as ThisError;

/// The result of an operation on a volume.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error("device error: {0}")]
    Io(#[from] io::Error),
    /// The image holds bytes that cannot be true.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Corrupt(#[from] Corrupt),
    /// There is no ext4 file system: neither its superblock nor the first copy of it.
    #[error(
        "it is no ext4 file system: its superblock would have 0xEF53 at byte 1080, not {magic:#06X}"
    )]
    NotExt4 {
        /// What is where the magic number would be.
        magic: u16,
    },
    /// There is no ext4 file system: the device ends before its superblock would.
    #[error("it is no ext4 file system: {size} bytes are too few for one")]
    TooShort {
        /// Size of the device in bytes.
        size: u64,
    },
    /// The image uses something that this version does not handle; the text names it.
    #[error("unsupported: {0}")]
    Unsupported(ErrorText),
    /// Another machine, or a checker, uses the file system; the text says which.
    #[error("{0}")]
    InUse(ErrorText),
    /// The options of the mount contradict each other; the text says how.
    #[error("{0}")]
    Options(ErrorText),
    /// The request cannot be granted, for a reason POSIX has a name for.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The journal stopped after an error; nothing more is written.
    #[error(transparent)]
    Journal(Box<JournalError>),
}

/// Every operation returns one of these or nothing, mostly nothing: two words are returned in
/// registers.
const _: () = assert!(size_of::<Error>() == 2 * size_of::<usize>());

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Self {
        Self::Journal(Box::new(error))
    }
}

/// The message of an error, as long as one pointer: a boxed string has two words, with which
/// results would not be returned in registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorText(Box<Box<str>>);

impl ErrorText {
    /// A text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(Box::new(text.into()))
    }
}

impl fmt::Display for ErrorText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Refusals to the caller, by their POSIX names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// `ENOENT`: no such file or directory.
    NotFound,
    /// `EEXIST`: the name is taken.
    Exists,
    /// `ENOTDIR`: a directory is needed here.
    NotADirectory,
    /// `EISDIR`: a directory is not allowed here.
    IsADirectory,
    /// `ENOTEMPTY`: the directory has entries.
    NotEmpty,
    /// `EINVAL`: the arguments make no sense.
    Invalid,
    /// `ENAMETOOLONG`: a name has more than 255 bytes, or a link target more than a block.
    NameTooLong,
    /// `EMLINK`: too many links.
    TooManyLinks,
    /// `ENOSPC`: no free block.
    NoSpace,
    /// `ENOSPC`: every inode is used.
    NoInodes,
    /// `ENOSPC`: the directory has as many names as it can.
    DirectoryFull,
    /// `ENOSPC` too: a file's attributes fit neither into its inode nor into one block.
    AttributesFull,
    /// `EFBIG`: the file would be too large.
    FileTooLarge,
    /// `EROFS`: the volume is read-only.
    ReadOnly,
    /// `EPERM`: not permitted on this file (immutable, append-only, a directory's link).
    NotPermitted,
    /// `ENODATA`: no such extended attribute.
    NoAttribute,
    /// `ERANGE`: a value does not fit.
    Range,
    /// `E2BIG`: an extended attribute's value is too large.
    TooBig,
    /// `EOPNOTSUPP`: not supported for this file.
    NotSupported,
    /// `ENXIO`: no data or hole at or after this offset.
    NoSuchOffset,
    /// `EBUSY`: in use.
    Busy,
    /// `ELOOP`: too many symbolic links.
    TooManySymlinks,
    /// `ESTALE`: the inode no longer exists.
    Stale,
    /// `EXDEV`: a directory with a project takes in nothing of another one.
    OtherProject,
    /// `ENOKEY`: it is encrypted, and the key is not here.
    NoKey,
    /// `EBADF`: the file was not opened for this.
    NotOpen,
}

impl Refusal {
    /// The errno of Linux.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => libc::EPERM,
            Self::NotFound => libc::ENOENT,
            Self::NoSuchOffset => libc::ENXIO,
            Self::TooBig => libc::E2BIG,
            Self::Busy => libc::EBUSY,
            Self::Exists => libc::EEXIST,
            Self::NotADirectory => libc::ENOTDIR,
            Self::IsADirectory => libc::EISDIR,
            Self::Invalid => libc::EINVAL,
            Self::FileTooLarge => libc::EFBIG,
            Self::NoSpace | Self::NoInodes | Self::DirectoryFull | Self::AttributesFull => {
                libc::ENOSPC
            }
            Self::ReadOnly => libc::EROFS,
            Self::TooManyLinks => libc::EMLINK,
            Self::Range => libc::ERANGE,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::TooManySymlinks => libc::ELOOP,
            Self::NoAttribute => libc::ENODATA,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::Stale => libc::ESTALE,
            Self::OtherProject => libc::EXDEV,
            Self::NoKey => libc::ENOKEY,
            Self::NotOpen => libc::EBADF,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotPermitted => "operation not permitted",
            Self::NotFound => "no such file or directory",
            Self::NoSuchOffset => "no data or hole at this offset",
            Self::TooBig => "value too large for an extended attribute",
            Self::Busy => "in use",
            Self::Exists => "file exists",
            Self::NotADirectory => "not a directory",
            Self::IsADirectory => "is a directory",
            Self::Invalid => "invalid argument",
            Self::FileTooLarge => "file too large",
            Self::NoSpace => "no space left on the volume",
            Self::NoInodes => "no inode is free on the volume",
            Self::DirectoryFull => "the directory's index has no room for more names",
            Self::AttributesFull => "no room for more extended attributes on this file",
            Self::ReadOnly => "the volume is read-only",
            Self::TooManyLinks => "too many links",
            Self::Range => "value does not fit",
            Self::NameTooLong => "name too long",
            Self::NotEmpty => "directory not empty",
            Self::TooManySymlinks => "too many levels of symbolic links",
            Self::NoAttribute => "no such extended attribute",
            Self::NotSupported => "not supported for this file",
            Self::Stale => "the inode no longer exists",
            Self::OtherProject => "the directory belongs to another project",
            Self::NoKey => "the file or its directory is encrypted, and its key is not here",
            Self::NotOpen => "the file is not open for this",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

impl std::error::Error for Refusal {}

impl Error {
    /// The image uses `what`, which is not handled.
    pub fn unsupported(what: impl Into<Box<str>>) -> Self {
        Self::Unsupported(ErrorText::new(what))
    }

    /// The errno that a system call would return for this error. That of a device's error is the
    /// system's where a system call failed, else the one that fits its kind, or `EIO`. As in Linux,
    /// that of a wrong checksum is `EBADMSG`, and that of other corruption `EUCLEAN`.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Io(error) => errno_of(error),
            Self::Corrupt(corrupt) if corrupt.is_of_checksum() => libc::EBADMSG,
            Self::Corrupt(_) => libc::EUCLEAN,
            Self::NotExt4 { .. } | Self::TooShort { .. } | Self::Options(_) => {
                Refusal::Invalid.errno()
            }
            Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::InUse(_) => libc::EBUSY,
            Self::Refused(refusal) => refusal.errno(),
            Self::Journal(error) => match &**error {
                // A disk to free or a disk to replace.
                JournalError::Io { cause, .. } if is_without_space(cause) => errno_of(cause),
                JournalError::Io { .. } => libc::EIO,
                _ => libc::EROFS,
            },
        }
    }

    /// Whether the volume has no space for what was written, or the host, or that for its owner.
    pub(crate) fn is_lack_of_space(&self) -> bool {
        match self {
            Self::Io(error) => is_without_space(error),
            error => error.is(Refusal::NoSpace),
        }
    }

    /// The kind of the error of the system that it becomes. What stable Rust can match is chosen
    /// where errno has no such kind: `InvalidData` for [`Error::Corrupt`], and where there is no
    /// ext4 file system.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io(error) => error.kind(),
            Self::Corrupt(_) | Self::NotExt4 { .. } | Self::TooShort { .. } => {
                io::ErrorKind::InvalidData
            }
            Self::Options(_) => io::ErrorKind::InvalidInput,
            Self::Unsupported(_) => io::ErrorKind::Unsupported,
            Self::InUse(_) => io::ErrorKind::ResourceBusy,
            Self::Refused(refusal) => io::Error::from_raw_os_error(refusal.errno()).kind(),
            Self::Journal(error) => match &**error {
                JournalError::Io { cause, .. } => cause.kind(),
                _ => io::ErrorKind::ReadOnlyFilesystem,
            },
        }
    }

    /// For an error of the journal while it is opened: it has not stopped then, and what is wrong
    /// is the image, or the device.
    pub(crate) fn opening(error: JournalError) -> Self {
        match error {
            JournalError::Corrupt(corrupt) => corrupt.into(),
            JournalError::Unsupported(what) => {
                Self::unsupported(format!("the journal uses {what}"))
            }
            JournalError::Io { ref cause, .. } => io::Error::new(cause.kind(), error).into(),
            error => error.into(),
        }
    }

    /// The same error; a corruption also names this inode.
    pub(crate) fn in_inode(self, inode: InodeNumber) -> Self {
        match self {
            Self::Corrupt(corrupt) => corrupt.in_inode(inode).into(),
            other => other,
        }
    }

    /// The same error; a corruption also names this block.
    pub(crate) fn in_block(self, block: BlockNumber) -> Self {
        match self {
            Self::Corrupt(corrupt) => corrupt.in_block(block).into(),
            other => other,
        }
    }

    /// Whether this is the given refusal.
    #[must_use]
    pub fn is(&self, refusal: Refusal) -> bool {
        matches!(self, Self::Refused(this) if *this == refusal)
    }
}

/// Whether the host has no space for what was written, or none for its owner.
pub(crate) fn is_without_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The errno of a device's error or of what caused it; else that of its kind.
fn errno_of(error: &io::Error) -> i32 {
    if let Some(errno) = error.raw_os_error() {
        return errno;
    }
    let mut cause = error
        .get_ref()
        .map(|cause| cause as &(dyn std::error::Error + 'static));
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref() {
            return errno_of(error);
        }
        cause = error.source();
    }
    errno_of_kind(error.kind())
}

fn errno_of_kind(kind: io::ErrorKind) -> i32 {
    match kind {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::ResourceBusy => libc::EBUSY,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::QuotaExceeded => libc::EDQUOT,
        io::ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

/// Keeps the [kind](Error::kind), and for a refusal the errno. Any other error is the source of the
/// new one: `error.get_ref()` and a downcast give it back. So is `Interrupted` of a device, whose
/// kind becomes `Other`: of a [`Read`](io::Read) it would mean "try again", which most readers do,
/// and go on doing where a device cancels all calls.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(error) if error.kind() == io::ErrorKind::Interrupted => {
                Self::other(Error::Io(error))
            }
            Error::Io(error) => error,
            Error::Refused(refusal) => Self::from_raw_os_error(refusal.errno()),
            other => Self::new(other.kind(), other),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Debug, ThisError)]
    #[error("disk.img: cannot open it: {0}")]
    struct Named(#[source] io::Error);

    #[test]
    fn nobody_repeats_what_a_device_has_interrupted() {
        let cancelled = Error::Io(io::ErrorKind::Interrupted.into());
        let error = io::Error::from(cancelled);
        assert_eq!(error.kind(), io::ErrorKind::Other);
        let source = error.get_ref().and_then(|source| source.downcast_ref());
        assert!(matches!(source, Some(Error::Io(_))), "{error}");
        let torn = io::Error::from(Error::Io(io::ErrorKind::UnexpectedEof.into()));
        assert_eq!(torn.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_errno_of_a_device_is_that_of_its_cause_or_its_kind() {
        let missing = || io::Error::from_raw_os_error(2);
        let named = io::Error::new(io::ErrorKind::NotFound, Named(missing()));
        let twice = io::Error::new(io::ErrorKind::NotFound, Named(io::Error::other(missing())));
        let refused = io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "it may not be written");
        let strange = io::Error::other("the cable is out");
        let kind = io::Error::from(io::ErrorKind::StorageFull);
        let errors = [missing(), named, twice, refused, strange, kind];
        let errnos = errors.map(|error| Error::Io(error).errno());
        assert_eq!(errnos, [2, 2, 2, 30, 5, 28]);
    }

    #[test]
    fn what_the_image_holds_is_invalid_data() {
        let corrupt = || Error::from(Corrupt::new("superblock", "is not one"));
        let invalid = [
            corrupt(),
            Error::NotExt4 { magic: 0 },
            Error::TooShort { size: 512 },
        ];
        for error in invalid {
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidData);
        }
        let told = io::Error::from(corrupt());
        let inner = told.get_ref().and_then(|error| error.downcast_ref());
        assert!(matches!(inner, Some(Error::Corrupt(_))), "{told}");
        assert_eq!(corrupt().errno(), libc::EUCLEAN);
        let wrong = Corrupt::checksum("superblock", 1_u32, 2_u32);
        assert_eq!(Error::from(wrong).errno(), libc::EBADMSG);
        assert_eq!(Error::NotExt4 { magic: 0 }.errno(), libc::EINVAL);
        let refused = io::Error::from(Error::from(Refusal::NotFound));
        assert_eq!(refused.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_journal_on_a_full_host_says_so() {
        let failed = |kind| {
            let cause = Arc::new(io::Error::from(kind));
            let operation = "writing to the log";
            Error::from(JournalError::Io { operation, cause }).errno()
        };
        assert_eq!(failed(io::ErrorKind::StorageFull), libc::ENOSPC);
        assert_eq!(failed(io::ErrorKind::QuotaExceeded), libc::EDQUOT);
        assert_eq!(failed(io::ErrorKind::InvalidData), libc::EIO);
    }
}
