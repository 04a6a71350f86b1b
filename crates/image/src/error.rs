//! Errors of image creation, check and resize.

use std::io;

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

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io { ref cause, .. } => Self::Io(io::Error::new(cause.kind(), error)),
            JournalError::Corrupt(corrupt) => Self::Corrupt(corrupt),
            other => Self::Impossible(other.to_string()),
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
}
