//! Errors of the journal. Each message names the operation and what failed.
//!
//! Errors are cloned to every thread that waits on the journal, so causes are behind an `Arc`.

use std::io;
use std::sync::Arc;

use pext4_ondisk::{Corrupt, Tid};
use thiserror::Error;

/// An error of the journal.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed.
    #[error("{operation} failed: {cause}")]
    Io {
        /// What the journal was doing.
        operation: &'static str,
        /// The device's error.
        cause: Arc<io::Error>,
    },
    /// The journal's bytes are invalid.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The journal uses a feature that this version does not support.
    #[error("the journal uses {0}, which is not supported")]
    Unsupported(String),
    /// One operation asked for more credits than a whole transaction of this journal has.
    #[error(
        "an operation needs {asked} journal credits and a transaction of this journal holds \
         {limit}: the journal is too small"
    )]
    TooLarge {
        /// Credits asked for at once.
        asked: u32,
        /// Credits of a whole transaction.
        limit: u32,
    },
    /// A transaction that was prepared as a whole does not fit the log.
    #[error(
        "a transaction of {blocks} blocks takes {needed} of the {log} blocks of the log: the \
         journal is too small"
    )]
    LogTooSmall {
        /// Blocks that it changes.
        blocks: usize,
        /// Blocks it would take in the log, with those that describe it.
        needed: usize,
        /// Blocks of the whole log.
        log: u32,
    },
    /// A transaction needs more blocks than the log has, although its credits should prevent this.
    #[error("transaction {tid} needs {needed} blocks of a log of {log}")]
    Overflow {
        /// The transaction.
        tid: Tid,
        /// Blocks it would take in the log.
        needed: usize,
        /// Blocks of the whole log.
        log: u32,
    },
    /// The journal was aborted; nothing is written any more.
    #[error("the journal has stopped: {0}")]
    Aborted(Arc<str>),
    /// The journal was aborted because the device failed.
    #[error("the journal has stopped: {0}")]
    AbortedByDevice(Arc<str>),
    /// The journal was shut down.
    #[error("the journal is shut down")]
    ShutDown,
}

impl JournalError {
    /// Converts a device's error into an [`JournalError::Io`] of `operation`.
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io {
            operation,
            cause: Arc::new(cause),
        }
    }

    /// Whether the device caused the error.
    #[must_use]
    pub fn is_device_error(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::AbortedByDevice(_))
    }

    /// The negative errno that an abort with this error records in the journal's superblock.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Corrupt(_) => -libc::EUCLEAN,
            _ => -libc::EIO,
        }
    }
}
