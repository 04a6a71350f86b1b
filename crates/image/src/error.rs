//! What can go wrong while an image is made or examined.

use std::io;

use pext4_jbd2::JournalError;
use pext4_ondisk::Corrupt;
use thiserror::Error as ThisError;

/// The result of work on an image.
pub type Result<T> = std::result::Result<T, Error>;

/// Why it failed.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error("device error: {0}")]
    Io(#[from] io::Error),
    /// The image holds bytes that cannot be true.
    #[error("{0}")]
    Corrupt(#[from] Corrupt),
    /// What was asked for cannot be made; the text says what would do.
    #[error("{0}")]
    Impossible(String),
    /// The caller asked to stop.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
}

impl From<JournalError> for Error {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Io { .. } => Self::Io(io::Error::other(error)),
            JournalError::Corrupt(corrupt) => Self::Corrupt(corrupt),
            other => Self::Impossible(other.to_string()),
        }
    }
}
