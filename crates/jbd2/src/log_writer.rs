//! Writing a transaction to the log.
//!
//! First the revoke blocks, then descriptors, each followed by the blocks it names, contiguously
//! from the head of the ring on; a flush; then the commit block alone, and a flush. The first flush
//! also covers the data that operations of this transaction wrote to the device before they stopped
//! (rule 9).
//!
//! The place of the commit block is cleared before, together with the blocks. All that it says is
//! in its first sector, so of a torn write, of which only that sector arrives, the whole block is
//! right. Our recovery does not need this ([`commit::verify`]), but that of e2fsck 1.47 and of
//! older versions of Linux refuses the log if an earlier lap's bytes follow.
//!
//! [`commit::verify`]: pext4_ondisk::journal::commit::verify
//!
//! Only the committer writes the log, so there is no lock here. It has reserved the space from the
//! checkpoint before ([`crate::checkpoint`]).

use std::sync::Arc;

use pext4_block::{Device, Page};
use pext4_ondisk::journal::{
    Commit, DescriptorWriter, RecordFormat, RevokeWriter, TransactionSum, header,
};
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::time;

use crate::error::JournalError;
use crate::log_area::LogArea;
use crate::merge::Version;
use crate::ring::Ring;

/// The head of the log.
pub(crate) struct LogWriter {
    device: Arc<dyn Device>,
    area: Arc<LogArea>,
    format: RecordFormat,
    uuid: [u8; 16],
    ring: Ring,
    /// Where the next transaction begins.
    head: u32,
    /// The time of the last commit, in seconds and nanoseconds. Within a mount, times in the log
    /// never decrease: otherwise a leftover of an earlier lap would look newer than the last
    /// commit.
    last_time: (u64, u32),
}

/// A block as a transaction writes it.
pub(crate) trait SealedBlock {
    /// The block's home.
    fn home(&self) -> BlockNumber;
    /// The block's bytes.
    fn bytes(&self) -> &Page;
}

impl SealedBlock for Version {
    fn home(&self) -> BlockNumber {
        self.block
    }

    fn bytes(&self) -> &Page {
        &self.page
    }
}

impl SealedBlock for (BlockNumber, Page) {
    fn home(&self) -> BlockNumber {
        self.0
    }

    fn bytes(&self) -> &Page {
        &self.1
    }
}

/// The location of a transaction in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
}

impl LogWriter {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        area: Arc<LogArea>,
        format: RecordFormat,
        uuid: [u8; 16],
        ring: Ring,
    ) -> Self {
        Self {
            device,
            area,
            format,
            uuid,
            ring,
            head: ring.first,
            last_time: (0, 0),
        }
    }

    /// The exact number of log blocks that this transaction will take.
    pub(crate) fn needs(&self, versions: &[impl SealedBlock], revoked: &[BlockNumber]) -> usize {
        self.format.footprint(versions.len(), revoked.len())
    }

    /// Where the next transaction begins.
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Writes a transaction with zeroes in the place of its commit block, and flushes.
    /// [`LogWriter::write_commit`] then makes it durable.
    pub(crate) fn write_body(
        &self,
        tid: Tid,
        versions: &[impl SealedBlock],
        revoked: &[BlockNumber],
    ) -> Result<(), JournalError> {
        let mut row = Vec::with_capacity(self.needs(versions, revoked));
        self.push_revokes(tid, revoked, &mut row);
        self.push_blocks(tid, versions, &mut row);
        row.push(Page::zeroed(self.format.block_size));
        self.write_row(self.head, &row)
            .and_then(|()| self.device.flush())
            .map_err(JournalError::io("writing a transaction to the log"))
    }

    /// Writes the commit block and flushes: the transaction is durable. Returns its location.
    pub(crate) fn write_commit(
        &mut self,
        tid: Tid,
        versions: &[impl SealedBlock],
        revoked: &[BlockNumber],
    ) -> Result<Logged, JournalError> {
        let needs = self.needs(versions, revoked);
        let blocks = u32::try_from(needs).expect("the checkpoint found room for it");
        let block = Page::from(self.commit_block(tid));
        self.write_row(self.ring.after(self.head, blocks - 1), &[block])
            .and_then(|()| self.device.flush())
            .map_err(JournalError::io("writing a commit block to the log"))?;
        let logged = Logged {
            start: self.head,
            blocks,
        };
        self.head = self.ring.after(self.head, blocks);
        Ok(logged)
    }

    fn commit_block(&mut self, tid: Tid) -> Vec<u8> {
        let now = time::since_epoch();
        self.last_time = self.last_time.max((now.as_secs(), now.subsec_nanos()));
        let (seconds, nanoseconds) = self.last_time;
        Commit {
            sequence: tid,
            seconds,
            nanoseconds,
            transaction_sum: TransactionSum::None,
        }
        .encode(&self.format)
    }

    fn push_revokes(&self, tid: Tid, revoked: &[BlockNumber], row: &mut Vec<Page>) {
        for records in revoked.chunks(self.format.revokes_per_block()) {
            let mut writer = RevokeWriter::new(&self.format, tid);
            for &block in records {
                assert!(writer.push(block), "a chunk is what fits a block");
            }
            row.push(Page::from(writer.finish()));
        }
    }

    fn push_blocks(&self, tid: Tid, versions: &[impl SealedBlock], row: &mut Vec<Page>) {
        for described in versions.chunks(self.format.tags_per_block()) {
            let mut writer = DescriptorWriter::new(&self.format, tid, self.uuid);
            let descriptor = row.len();
            row.push(Page::zeroed(0));
            for version in described {
                let escaped = header::begins_with_magic(version.bytes());
                let logged = if escaped {
                    escape(version.bytes())
                } else {
                    version.bytes().clone()
                };
                let checksum = self.format.data_checksum(tid, &logged);
                assert!(
                    writer.push(version.home(), escaped, checksum),
                    "a chunk is what fits a block"
                );
                row.push(logged);
            }
            row[descriptor] = Page::from(writer.finish());
        }
    }

    /// Writes consecutive log blocks from `at` on, wrapping at the end of the ring.
    fn write_row(&self, at: u32, row: &[Page]) -> std::io::Result<()> {
        let room = (self.ring.end - at) as usize;
        let (before, after) = row.split_at(row.len().min(room));
        for (at, part) in [(at, before), (self.ring.first, after)] {
            let blocks: Vec<&[u8]> = part.iter().map(|page| &page[..]).collect();
            self.area.write(&*self.device, at, &blocks)?;
        }
        Ok(())
    }
}

/// The block as it is logged: only the journal's own records may begin with the magic there.
fn escape(page: &Page) -> Page {
    let mut escaped = page.clone();
    escaped.make_mut()[..4].fill(0);
    escaped
}
