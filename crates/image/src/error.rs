//! Errors of image creation, check and resize.

use std::io;

use pext4_block::Stopped;
use pext4_jbd2::JournalError;
use pext4_ondisk::Corrupt;
use thiserror::Error as ThisError;

/// The result of an operation on an image.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the operation failed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A read or write of the device failed.
    #[error("device error: {0}")]
    Io(#[from] io::Error),
    /// The image contains invalid data.
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
    /// The image, or the request, has a feature that this version does not support. The text names
    /// it.
    #[error("{0}")]
    Unsupported(String),
    /// The request cannot be satisfied. The text says what would work instead.
    #[error("{0}")]
    Impossible(String),
    /// A resize failed after its commit. Repeating it with a relative size would change the size
    /// twice. If the log still holds it, the next open for writing applies it.
    #[error("the resize is made, so do not repeat it; only its last steps failed: {0}")]
    AfterCommit(#[source] Box<Self>),
    /// The caller asked to stop.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
}

impl From<Stopped> for Error {
    fn from(_: Stopped) -> Self {
        Self::Interrupted
    }
}

impl Error {
    /// The kind of what caused it, which is that of the error of the system that it becomes.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io(error) => error.kind(),
            Self::Corrupt(_) => io::ErrorKind::InvalidData,
            Self::Unsupported(_) => io::ErrorKind::Unsupported,
            Self::Impossible(_) => io::ErrorKind::InvalidInput,
            Self::AfterCommit(error) => error.kind(),
            Self::Interrupted => io::ErrorKind::Interrupted,
        }
    }
}

/// Keeps the kind of a device's error; `error.get_ref()` and a downcast give the error back.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io { ref cause, .. } => Self::Io(io::Error::new(cause.kind(), error)),
            JournalError::Corrupt(corrupt) => Self::Corrupt(corrupt),
            JournalError::Unsupported(_) => Self::Unsupported(error.to_string()),
            // The text says that the journal is too small.
            JournalError::TooLarge { .. } | JournalError::LogTooSmall { .. } => {
                Self::Impossible(error.to_string())
            }
            _ if error.is_device_error() => Self::Io(io::Error::other(error)),
            // It has stopped, or its log is not what it says: no other request would help.
            _ => Self::Corrupt(Corrupt::new("journal", error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use pext4_jbd2::JournalError;

    use super::Error;

    #[test]
    fn an_error_of_the_device_keeps_its_kind() {
        let error = JournalError::Io {
            operation: "reading the log",
            cause: Arc::new(io::ErrorKind::FileTooLarge.into()),
        };
        let text = error.to_string();
        match Error::from(error) {
            Error::Io(error) => {
                assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
                assert_eq!(error.to_string(), text);
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn an_error_is_found_again_in_one_of_the_system() {
        let full = Error::Io(io::ErrorKind::StorageFull.into());
        let full = io::Error::from(Error::AfterCommit(Box::new(full)));
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let impossible = io::Error::from(Error::Impossible("too small".to_owned()));
        assert_eq!(impossible.kind(), io::ErrorKind::InvalidInput);
        let found = impossible.get_ref().and_then(|error| error.downcast_ref());
        assert!(matches!(found, Some(Error::Impossible(_))));
    }

    #[test]
    fn a_journal_that_cannot_be_used_says_why() {
        let unsupported = JournalError::Unsupported("a feature".to_owned());
        let text = unsupported.to_string();
        match Error::from(unsupported) {
            Error::Unsupported(told) => assert_eq!(told, text),
            other => panic!("{other}"),
        }
        let small = JournalError::LogTooSmall {
            blocks: 1020,
            needed: 1026,
            log: 1023,
        };
        match Error::from(small) {
            Error::Impossible(told) => assert!(told.contains("1026 of the 1023"), "{told}"),
            other => panic!("{other}"),
        }
        let device = JournalError::AbortedByDevice("no answer".into());
        assert!(matches!(Error::from(device), Error::Io(_)));
        let stopped = Error::from(JournalError::Aborted("no sense".into()));
        assert!(matches!(stopped, Error::Corrupt(_)), "{stopped}");
        assert!(stopped.to_string().contains("no sense"), "{stopped}");
    }
}
