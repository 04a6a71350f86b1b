//! The scan: which transactions of the log were committed.
//!
//! Records must continue each other: the log ends before the first block that does not have the
//! magic and the expected transaction number. A record that has both but a wrong checksum is
//! *suspect*. If its transaction has no commit block, a crash interrupted its writing, and the log
//! ends before it. If the commit block is older than the last good commit (in whole seconds, since
//! a clock may be set back a little), the transaction is a leftover of an earlier lap, and the log
//! ends before it too. Otherwise bytes that were durable have changed, and that is corruption.
//!
//! What a suspect record says of its length may be what is wrong, so its transaction's commit block
//! is looked for in the rest of the lap. No number is used twice, so a sound one with this number
//! is that of this transaction.

use pext4_ondisk::journal::{
    BlockType, Commit, Header, JournalCompat, JournalIncompat, JournalSuperblock, TagFlags, commit,
    descriptor,
};
use pext4_ondisk::{BlockNumber, Corrupt, Tid, checksum};

use super::LogReader;
use crate::error::JournalError;
use crate::log_area::LogArea;

/// One version of a block in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoggedBlock {
    pub(super) home: BlockNumber,
    pub(super) tid: Tid,
    pub(super) at: u32,
    pub(super) escaped: bool,
    pub(super) checksum: u32,
}

/// The content of the log, in its order.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) blocks: Vec<LoggedBlock>,
    /// The positions and transactions of the revoke blocks.
    pub(super) revokes: Vec<(u32, Tid)>,
    pub(super) transactions: u32,
    /// The first transaction that was not committed.
    pub(super) next: Tid,
}

impl Scan {
    /// An empty log whose next transaction is `next`.
    pub(super) fn empty(next: Tid) -> Self {
        Self {
            blocks: Vec::new(),
            revokes: Vec::new(),
            transactions: 0,
            next,
        }
    }

    /// Fails unless every block's home may be written.
    pub(super) fn check_homes(&self, area: &LogArea, blocks: u64) -> Result<(), Corrupt> {
        let stray = self
            .blocks
            .iter()
            .find(|block| block.home.get() >= blocks || area.contains(block.home));
        match stray {
            None => Ok(()),
            Some(block) => Err(Corrupt::new(
                "journal",
                format!(
                    "transaction {} would write outside the file system's blocks",
                    block.tid
                ),
            )
            .in_block(block.home)),
        }
    }

    /// Removes the last transaction, which turned out to be incomplete.
    pub(super) fn remove_last(&mut self) {
        let last = self.next.previous();
        self.blocks.retain(|block| block.tid != last);
        self.revokes.retain(|(_, tid)| *tid != last);
        self.transactions -= 1;
        self.next = last;
    }
}

/// Whether each commit block has a checksum of its whole transaction (v1).
fn has_sums_of_transactions(superblock: &JournalSuperblock) -> bool {
    !superblock.is_summed() && superblock.compat.contains(JournalCompat::CHECKSUM)
}

/// Walks the log from the start that the superblock gives.
pub(super) fn scan(
    log: &LogReader<'_>,
    superblock: &JournalSuperblock,
) -> Result<Scan, JournalError> {
    let mut scanner = Scanner {
        log,
        asynchronous: superblock.incompat.contains(JournalIncompat::ASYNC_COMMIT),
        sums_transactions: has_sums_of_transactions(superblock),
        at: superblock.start,
        walked: 0,
        open: Open::default(),
        last_commit: None,
        found: Scan::empty(superblock.sequence),
    };
    while scanner.step()? {}
    scanner.look_for_commits()?;
    Ok(scanner.found)
}

struct Scanner<'a> {
    log: &'a LogReader<'a>,
    asynchronous: bool,
    sums_transactions: bool,
    at: u32,
    /// Log blocks passed so far, at most one lap.
    walked: u32,
    open: Open,
    /// When the last good transaction was committed, in seconds since 1970.
    last_commit: Option<u64>,
    found: Scan,
}

/// The first record of a transaction with a wrong checksum.
#[derive(Clone, Copy)]
struct Suspect {
    problem: &'static str,
    at: u32,
    /// The log blocks before it, as in [`Scanner::walked`].
    walked: u32,
}

/// The transaction being read.
struct Open {
    blocks: Vec<LoggedBlock>,
    revokes: Vec<(u32, Tid)>,
    suspect: Option<Suspect>,
    /// The checksum (v1) of its descriptors and blocks so far.
    sum: u32,
}

impl Default for Open {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            revokes: Vec::new(),
            suspect: None,
            sum: checksum::INITIAL,
        }
    }
}

impl Scanner<'_> {
    /// Reads one record; false where the log ends.
    fn step(&mut self) -> Result<bool, JournalError> {
        if self.walked >= self.log.ring.blocks() {
            return Ok(false);
        }
        let block = self.log.read(self.at)?;
        let expected = self.found.next;
        match Header::decode(&block).filter(|header| header.sequence == expected) {
            None => Ok(false),
            Some(header) => match header.block_type {
                BlockType::Descriptor => self.descriptor(&block),
                BlockType::Revoke => Ok(self.revoke(&block)),
                BlockType::Commit => self.commit(&block),
                _ => Ok(false),
            },
        }
    }

    fn descriptor(&mut self, block: &[u8]) -> Result<bool, JournalError> {
        self.suspect_unless(
            self.log.format.verify_tail(block),
            "a descriptor's sum is wrong",
        );
        let tid = self.found.next;
        let tags = descriptor::tags(&self.log.format, block);
        let room = self.log.ring.blocks() - self.walked;
        let count = u32::try_from(tags.len()).expect("a block holds less tags than it has bytes");
        if count >= room {
            return Ok(false);
        }
        if self.sums_transactions {
            self.add_to_sum(block, count)?;
        }
        for (tag, step) in tags.iter().zip(1..) {
            self.open.blocks.push(LoggedBlock {
                home: tag.block,
                tid,
                at: self.log.ring.after(self.at, step),
                escaped: tag.flags.contains(TagFlags::ESCAPE),
                checksum: tag.checksum,
            });
        }
        Ok(self.advance(count + 1))
    }

    /// Adds a descriptor and the blocks behind it to the checksum of the transaction.
    fn add_to_sum(&mut self, descriptor: &[u8], count: u32) -> Result<(), JournalError> {
        let mut sum = checksum::crc32(self.open.sum, descriptor);
        for step in 1..=count {
            sum = checksum::crc32(sum, &self.log.read(self.log.ring.after(self.at, step))?);
        }
        self.open.sum = sum;
        Ok(())
    }

    fn revoke(&mut self, block: &[u8]) -> bool {
        self.suspect_unless(
            self.log.format.verify_tail(block),
            "a revoke block's sum is wrong",
        );
        self.open.revokes.push((self.at, self.found.next));
        self.advance(1)
    }

    fn commit(&mut self, block: &[u8]) -> Result<bool, JournalError> {
        self.suspect_unless(
            commit::verify(&self.log.format, block),
            "the commit block's sum is wrong",
        );
        let Some(commit) = Commit::decode(block) else {
            return Ok(false);
        };
        if self.sums_transactions {
            let sum = self.open.sum;
            self.suspect_unless(
                commit.has_transaction_sum(sum),
                "the transaction's sum is wrong",
            );
        }
        if let Some(suspect) = self.open.suspect {
            self.classify(suspect, commit.seconds)?;
            return Ok(false);
        }
        let open = std::mem::take(&mut self.open);
        self.found.blocks.extend(open.blocks);
        self.found.revokes.extend(open.revokes);
        self.found.transactions += 1;
        self.found.next = self.found.next.next();
        self.last_commit = Some(commit.seconds);
        Ok(self.advance(1))
    }

    /// Decides what a suspect transaction is whose commit block has this time: the end of the log,
    /// or corruption.
    fn classify(&self, suspect: Suspect, seconds: u64) -> Result<(), JournalError> {
        if self.is_leftover(seconds) || self.asynchronous {
            return Ok(());
        }
        Err(self.corruption(suspect))
    }

    /// Whether a commit block with this time is of an earlier lap.
    fn is_leftover(&self, seconds: u64) -> bool {
        self.last_commit.is_some_and(|last| seconds < last)
    }

    fn corruption(&self, suspect: Suspect) -> JournalError {
        let next = self.found.next;
        let text = format!("{} in committed transaction {next}", suspect.problem);
        let corrupt = Corrupt::new("journal", text);
        self.log.locate(suspect.at, corrupt).into()
    }

    /// If the log ended in a suspect transaction, looks behind that record for its commit block and
    /// for those of later transactions.
    fn look_for_commits(&self) -> Result<(), JournalError> {
        let Some(suspect) = self.open.suspect else {
            return Ok(());
        };
        // No later transaction was committed before this one. An older block is of an earlier file
        // system, whose numbers may be larger.
        let mut earliest = 0;
        for step in 1..self.log.ring.blocks() - suspect.walked {
            let Some(commit) = self.sound_commit(self.log.ring.after(suspect.at, step))? else {
                continue;
            };
            if commit.sequence == self.found.next {
                self.classify(suspect, commit.seconds)?;
                earliest = commit.seconds;
            } else if self.may_follow(commit.sequence)
                && !self.is_leftover(commit.seconds)
                && commit.seconds >= earliest
            {
                return Err(self.corruption(suspect));
            }
        }
        Ok(())
    }

    /// The commit block at `at`, if one with a right checksum is there.
    fn sound_commit(&self, at: u32) -> Result<Option<Commit>, JournalError> {
        let block = self.log.read(at)?;
        let is_commit = Header::decode(&block)
            .is_some_and(|header| header.block_type == BlockType::Commit)
            && commit::verify(&self.log.format, &block);
        Ok(Commit::decode(&block).filter(|_| is_commit))
    }

    /// Whether a transaction with this number may follow the suspect one in the same lap.
    fn may_follow(&self, tid: Tid) -> bool {
        let distance = tid.0.wrapping_sub(self.found.next.0);
        (1..self.log.ring.blocks()).contains(&distance)
    }

    fn suspect_unless(&mut self, sound: bool, problem: &'static str) {
        if !sound {
            self.open.suspect.get_or_insert(Suspect {
                problem,
                at: self.at,
                walked: self.walked,
            });
        }
    }

    fn advance(&mut self, count: u32) -> bool {
        self.at = self.log.ring.after(self.at, count);
        self.walked += count;
        true
    }
}
