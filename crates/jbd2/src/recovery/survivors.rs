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

/// The last version of every block that is not revoked, all verified, and the number of revoked
/// versions. With asynchronous commits, an incomplete last transaction is removed from the scan.
pub(super) fn select(
    log: &LogReader<'_>,
    superblock: &JournalSuperblock,
    scan: &mut Scan,
) -> Result<(Survivors, u64), JournalError> {
    let (survivors, revoked) = survivors(log, scan)?;
    let Some(damaged) = first_damaged(log, &survivors)? else {
        return Ok((survivors, revoked));
    };
    let asynchronous = superblock.incompat.contains(JournalIncompat::ASYNC_COMMIT);
    if asynchronous && damaged.tid.next() == scan.next {
        scan.remove_last();
        return select_complete(log, scan);
    }
    Err(damage(&damaged).into())
}

fn select_complete(log: &LogReader<'_>, scan: &Scan) -> Result<(Survivors, u64), JournalError> {
    let (survivors, revoked) = survivors(log, scan)?;
    match first_damaged(log, &survivors)? {
        None => Ok((survivors, revoked)),
        Some(damaged) => Err(damage(&damaged).into()),
    }
}

fn damage(block: &LoggedBlock) -> Corrupt {
    let problem = format!("the sum of a block of transaction {} is wrong", block.tid);
    Corrupt::new("journal", problem).in_block(block.home)
}

fn survivors(log: &LogReader<'_>, scan: &Scan) -> Result<(Survivors, u64), JournalError> {
    let revokes = Revokes::gather(log, scan)?;
    let mut survivors = BTreeMap::new();
    let mut held_back = 0;
    for block in &scan.blocks {
        if revokes.is_revoked(block) {
            held_back += 1;
        } else {
            survivors.insert(block.home, *block);
        }
    }
    Ok((survivors, held_back))
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
