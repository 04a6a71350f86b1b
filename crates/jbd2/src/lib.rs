//! The journal of pext4.

#![forbid(unsafe_code)]

use thiserror::Error;

/// Why the journal refuses.
#[derive(Debug, Error)]
#[error("the journal stopped")]
pub struct JournalError;
