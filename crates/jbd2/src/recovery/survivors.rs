//! The survivors: selects the versions that are not revoked, the last of each block, verifies their
//! checksums, and reads their bytes.

use std::collections::BTreeMap;
use std::io;

use pext4_ondisk::journal::{JournalIncompat, JournalSuperblock, header};
use pext4_ondisk::{BlockNumber, Corrupt};

use super::LogReader;
use super::revokes::Revokes;
use super::scan::{LoggedBlock, Scan};
use crate::error::JournalError;

type Survivors = BTreeMap<BlockNumber, LoggedBlock>;

/// The versions in the log, by what a replay does with them.
pub(super) struct Selected {
    /// The last version of every block that is not revoked.
    pub(super) survivors: Survivors,
    /// The earlier ones of these, in the order of the log.
    pub(super) superseded: Vec<LoggedBlock>,
    /// The number of revoked versions.
    pub(super) revoked: u64,
}

/// Selects the versions of every block, and verifies the survivors. With asynchronous commits, an
/// incomplete last transaction is removed from the scan.
pub(super) fn select(
    log: &LogReader<'_>,
    superblock: &JournalSuperblock,
    scan: &mut Scan,
) -> Result<Selected, JournalError> {
    let selected = survivors(log, scan)?;
    let Some(damaged) = first_damaged(log, &selected.survivors)? else {
        return Ok(selected);
    };
    let asynchronous = superblock.incompat.contains(JournalIncompat::ASYNC_COMMIT);
    if asynchronous && damaged.tid.next() == scan.next {
        scan.remove_last();
        return select_complete(log, scan);
    }
    Err(damage(&damaged).into())
}

fn select_complete(log: &LogReader<'_>, scan: &Scan) -> Result<Selected, JournalError> {
    let selected = survivors(log, scan)?;
    match first_damaged(log, &selected.survivors)? {
        None => Ok(selected),
        Some(damaged) => Err(damage(&damaged).into()),
    }
}

fn damage(block: &LoggedBlock) -> Corrupt {
    let problem = format!("the sum of a block of transaction {} is wrong", block.tid);
    Corrupt::new("journal", problem).in_block(block.home)
}

fn survivors(log: &LogReader<'_>, scan: &Scan) -> Result<Selected, JournalError> {
    let revokes = Revokes::gather(log, scan)?;
    let mut selected = Selected {
        survivors: BTreeMap::new(),
        superseded: Vec::new(),
        revoked: 0,
    };
    for block in &scan.blocks {
        if revokes.is_revoked(block) {
            selected.revoked += 1;
        } else {
            let earlier = selected.survivors.insert(block.home, *block);
            selected.superseded.extend(earlier);
        }
    }
    Ok(selected)
}

fn first_damaged(
    log: &LogReader<'_>,
    survivors: &Survivors,
) -> Result<Option<LoggedBlock>, JournalError> {
    if !log.format.is_summed() {
        return Ok(None);
    }
    for block in survivors.values() {
        if log.format.data_checksum(block.tid, &log.read(block.at)?) != block.checksum {
            return Ok(Some(*block));
        }
    }
    Ok(None)
}

impl LoggedBlock {
    /// The block's bytes as they belong at its home: unescaped.
    pub(super) fn read(&self, log: &LogReader<'_>) -> io::Result<Vec<u8>> {
        let mut bytes = log.read_block(self.at)?;
        if self.escaped {
            bytes[..4].copy_from_slice(&header::MAGIC.to_be_bytes());
        }
        Ok(bytes)
    }
}
