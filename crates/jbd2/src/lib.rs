//! The journal of pext4: jbd2's log on disk, with epochs made for many cores in memory.
//!
//! It knows nothing of ext4. The layer above starts a [`Handle`] for each operation, *touches*
//! what it is about to change, and stops the handle; the journal groups handles into transactions
//! and makes each transaction durable as a whole. Bytes are made once a transaction, by the
//! committer, from *captures* of what was touched (see [`Client`]).
//!
//! A transaction passes through these stages; the right column names the modules that implement
//! each:
//!
//! ```text
//! running      handles come and go                             epoch, handle, credits, transaction
//! closed       no new handles; the last one stops; the client's epoch, commit
//!              last changes (Client::closing); T+1 opens
//! captured     every object's version of T is written down      transaction
//! sealed       versions become blocks with checksums            merge
//! logged       descriptors, blocks, revokes; flush              log_writer
//! durable      commit block; flush; fsyncs return               commit
//! checkpointed blocks written home, log space released          checkpoint
//! ```
//!
//! At most two transactions exist at a time, the running and the committing one: T+1 is not closed
//! before T is durable. Without a journal on disk the same epochs work with a null log: a commit
//! writes the blocks home itself. After a crash, [`recovery`] writes home what the log holds.
//!
//! The numbers of rules in comments are those of `docs/RULES.md`.

#![forbid(unsafe_code)]

pub mod recovery;

mod atomic_tid;
mod checkpoint;
mod client;
mod commit;
mod core;
mod credits;
mod epoch;
mod error;
mod gates;
mod handle;
mod hosts;
mod journal;
mod ledger;
mod log_area;
mod log_writer;
mod merge;
mod offline;
mod opened;
mod ring;
mod statistics;
mod superblock;
mod transaction;

pub use atomic_tid::AtomicTid;
pub use client::{Capture, Client, Owed, Owing};
pub use error::JournalError;
pub use handle::{Forgotten, Handle};
pub use journal::{Config, Journal, JournalWidth, Log};
pub use ledger::Amounts;
pub use log_area::LogArea;
pub use offline::{CommitFailure, Committed, OfflineTransaction};
pub use opened::Opened;
pub use statistics::{CommitStep, CommitTimes, Statistics};

#[cfg(all(test, not(loom)))]
mod tests;
