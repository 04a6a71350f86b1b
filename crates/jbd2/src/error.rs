//! Why the journal refuses, in words that tell what was being done and what failed.
//!
//! Errors are cloned to everyone who waits on the journal, so the causes stand behind an `Arc`.

use std::io;
use std::sync::Arc;

use pext4_ondisk::{Corrupt, Tid};
use thiserror::Error;

/// Why the journal refuses.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed.
    #[error("{operation} failed: {cause}")]
    Io {
        /// What the journal was doing.
        operation: &'static str,
        /// What the device said.
        cause: Arc<io::Error>,
    },
    /// The journal's bytes cannot be true.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The journal uses something that this version does not handle.
    #[error("the journal uses {0}, which is not supported")]
    Unsupported(String),
    /// One operation asked for more than a transaction of this journal can ever hold.
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
    /// A transaction outgrew the log, against its own accounts.
    #[error("transaction {tid} needs {needed} blocks of a log of {log}")]
    Overflow {
        /// The transaction.
        tid: Tid,
        /// Blocks it would take in the log.
        needed: usize,
        /// Blocks of the whole log.
        log: u32,
    },
    /// The journal was stopped; nothing is written any more.
    #[error("the journal has stopped: {0}")]
    Aborted(Arc<str>),
    /// The same, because the device failed.
    #[error("the journal has stopped: {0}")]
    AbortedByDevice(Arc<str>),
    /// The journal was shut down.
    #[error("the journal is shut down")]
    ShutDown,
}

impl JournalError {
    /// Makes an I/O error of `operation` out of what the device said.
    pub(crate) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Io {
            operation,
            cause: Arc::new(cause),
        }
    }

    /// Whether it is the device that is to blame.
    #[must_use]
    pub fn is_of_device(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::AbortedByDevice(_))
    }

    /// The negative errno that the journal's superblock remembers a stop by.
    pub(crate) fn recorded(&self) -> i32 {
        const EIO: i32 = 5;
        const EUCLEAN: i32 = 117;
        match self {
            Self::Corrupt(_) => -EUCLEAN,
            _ => -EIO,
        }
    }
}
