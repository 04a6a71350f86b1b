//! The revoke pass: up to which transaction each block's logged versions are void.
//!
//! Only blocks with versions in the log are remembered, so memory is bounded by the log's length
//! even if the log is full of revokes.

use std::collections::HashMap;

use pext4_ondisk::journal::revoke;
use pext4_ondisk::{BlockNumber, Tid};

use super::LogReader;
use super::scan::{LoggedBlock, Scan};
use crate::error::JournalError;

/// The last revoke of each block in the log.
pub(super) struct Revokes(HashMap<BlockNumber, Option<Tid>>);

impl Revokes {
    /// Reads all revoke blocks of committed transactions.
    pub(super) fn gather(log: &LogReader<'_>, scan: &Scan) -> Result<Self, JournalError> {
        let mut last: HashMap<BlockNumber, Option<Tid>> =
            scan.blocks.iter().map(|block| (block.home, None)).collect();
        for &(at, tid) in &scan.revokes {
            let block = log.read(at)?;
            let records = revoke::records(&log.format, &block);
            for revoked in records.map_err(|corrupt| log.locate(at, corrupt))? {
                if let Some(entry) = last.get_mut(&revoked) {
                    // The scan lists transactions in order, so the last one found is the latest.
                    *entry = Some(tid);
                }
            }
        }
        Ok(Self(last))
    }

    /// Whether a version must not be replayed: its block was revoked in its transaction or later.
    pub(super) fn is_revoked(&self, block: &LoggedBlock) -> bool {
        let revoked = self.0.get(&block.home).copied().flatten();
        revoked.is_some_and(|revoked| revoked.is_at_or_after(block.tid))
    }
}
