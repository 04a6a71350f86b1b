//! The fast commits behind a log, and how what they change becomes durable.
//!
//! They describe changes of files since the last transaction of the log, so whoever knows the file
//! system applies them to it as the log leaves it, in memory, and comes back with the blocks that
//! this changes. These are written as one ordinary transaction, with the number that the fast
//! commits have. Until it is durable, that is the first number without a transaction, so the area
//! counts; from then on it is not, and the area is old. A crash at any time leaves one or the
//! other (rule 11).
//!
//! The steps of [`Replay::write_with_fast_commits`]:
//!
//! 1. The log's blocks are written home. The log stays as it is, since an empty one would lose the
//!    number; replaying it again changes nothing.
//! 2. The log begins again, with the number of the fast commits, at its first block. What lies
//!    there is of earlier transactions, so a log interrupted here is empty. The feature of fast
//!    commits stays set and their area is not part of the ring, unlike in a log of our own.
//! 3. The transaction is committed, written home, and its log declared empty.

use std::sync::Arc;

use pext4_block::{Device, Page};
use pext4_ondisk::journal::JournalSuperblock;
use pext4_ondisk::journal::fast_commit::{Record, Scan};
use pext4_ondisk::{BlockNumber, Tid};

use super::{LogReader, Recovered, Replay};
use crate::error::JournalError;
use crate::journal::Log;
use crate::offline::OfflineTransaction;
use crate::superblock::{check_writable, read_superblock};

/// The whole fast commits of the transaction `next`.
pub(super) fn read(
    log: &LogReader<'_>,
    superblock: &JournalSuperblock,
    next: Tid,
) -> Result<Vec<Vec<Record>>, JournalError> {
    let Some(first) = superblock.first_fast_commit() else {
        return Ok(Vec::new());
    };
    let mut scan = Scan::new(next);
    for at in first..superblock.max_len {
        let is_more = scan.block(&log.read(at)?);
        if !is_more.map_err(|corrupt| log.locate(at, corrupt))? {
            break;
        }
    }
    let features = scan.features();
    let commits = scan.into_commits();
    if features != 0 && !commits.is_empty() {
        let what = format!("fast commits with features {features:#x}");
        return Err(JournalError::Unsupported(what));
    }
    Ok(commits)
}

impl Replay {
    /// The records of the fast commits behind the log, commit by commit.
    #[must_use]
    pub fn fast_commits(&self) -> &[Vec<Record>] {
        &self.fast_commits
    }

    /// Fails if there are fast commits, for who cannot apply them: they are never passed over.
    ///
    /// # Errors
    ///
    /// `Unsupported`, with who can.
    pub fn refuse_fast_commits(&self) -> Result<(), JournalError> {
        if self.fast_commits.is_empty() {
            return Ok(());
        }
        let what = "fast commits that wait to be replayed (by mounting the image once, or by \
                    `e2fsck`)";
        Err(JournalError::Unsupported(what.into()))
    }

    /// As [`Replay::write`], and makes durable with it what the fast commits change: `changes` are
    /// whole blocks, on the file system as the log leaves it. `log` is that of the plan, and
    /// becomes the one that is left. `amend` is shown these blocks too.
    ///
    /// # Errors
    ///
    /// `Unsupported` by name or because the log is too small, and `Corrupt` if a block belongs to
    /// the journal, all before anything is written; `Io`.
    pub fn write_with_fast_commits(
        &self,
        device: &Arc<dyn Device>,
        log: &mut Log,
        blocks: u64,
        mut changes: Vec<(BlockNumber, Page)>,
        amend: impl Fn(BlockNumber, &mut [u8]),
    ) -> Result<Recovered, JournalError> {
        check_writable(&log.superblock)?;
        for (home, page) in &mut changes {
            amend(*home, page.make_mut());
        }
        let transaction = OfflineTransaction::of_fast_commits(Arc::clone(device), log, self.next)?;
        transaction.check(&changes).map_err(|error| match error {
            JournalError::LogTooSmall { .. } => too_many(changes.len()),
            error => error,
        })?;
        let written = self.write_home(&**device, blocks, amend)?;
        transaction.commit(changes)?.finish()?;
        log.superblock = read_superblock(&**device, &log.area)?;
        Ok(Recovered {
            blocks: written,
            ..self.report
        })
    }
}

fn too_many(blocks: usize) -> JournalError {
    JournalError::Unsupported(format!(
        "fast commits that change {blocks} blocks, more than its log can hold at once (`e2fsck` \
         replays them)"
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use pext4_block::{Device, Page, RamDevice, RecordDevice};
    use pext4_ondisk::BlockNumber;
    use pext4_ondisk::journal::JournalIncompat;

    use super::super::Replay;
    use super::super::tests::{self, BLOCK, DEVICE_BLOCKS, RUNS, with_fast_commits};
    use crate::error::JournalError;
    use crate::journal::Log;
    use crate::log_area::LogArea;
    use crate::superblock::{read_superblock, write_superblock};

    fn log_of(device: &dyn Device) -> Log {
        let area = LogArea::new(BLOCK as u32, &RUNS).expect("runs are apart");
        let superblock = read_superblock(device, &area).expect("it is sound");
        Log {
            area,
            superblock,
            keeps_checksums: true,
        }
    }

    fn plan(device: &dyn Device, log: &Log) -> Replay {
        let planned = Replay::plan(device, &log.area, &log.superblock, DEVICE_BLOCKS);
        planned.expect("a sound journal")
    }

    /// A log with a transaction that brings 1 to block 3, and fast commits behind it.
    fn device() -> RamDevice {
        let rig = with_fast_commits(0, tests::FIRST_TID.next());
        write_superblock(&rig.device, &rig.area, &rig.superblock).expect("memory");
        rig.device
    }

    /// What the fast commits are said to change: block 3 too.
    fn changes() -> Vec<(BlockNumber, Page)> {
        let page = |block| (BlockNumber(block), Page::from(vec![7; BLOCK]));
        [3, 4, 5].map(page).into()
    }

    fn first_byte(device: &dyn Device, block: BlockNumber) -> u8 {
        let mut byte = [0];
        let read = device.read_at(block.get() * BLOCK as u64, &mut byte);
        read.expect("memory");
        byte[0]
    }

    /// Does what a mount does; returns whether there were fast commits to apply.
    fn mount(device: &Arc<dyn Device>) -> bool {
        let mut log = log_of(&**device);
        let replay = plan(&**device, &log);
        let wait = !replay.fast_commits().is_empty();
        let done = match wait {
            true => replay.write_with_fast_commits(
                device,
                &mut log,
                DEVICE_BLOCKS,
                changes(),
                |_, _| {},
            ),
            false => replay.write(&**device, &mut log.superblock, DEVICE_BLOCKS, |_, _| {}),
        };
        done.expect("memory");
        assert_eq!(log.superblock.start, 0);
        wait
    }

    #[test]
    fn a_crash_leaves_the_fast_commits_or_all_that_they_change() {
        let base = device();
        let record = Arc::new(RecordDevice::new(Arc::new(base.fork())));
        assert!(mount(
            &(Arc::<RecordDevice>::clone(&record) as Arc<dyn Device>)
        ));
        let events = record.events();
        let mut waited = Vec::new();
        for cut in 0..=events.len() {
            let left = base.fork();
            for event in &events[..cut] {
                event.apply(&left).expect("memory");
            }
            let left: Arc<dyn Device> = Arc::new(left);
            waited.push(mount(&left));
            for (block, _) in changes() {
                assert_eq!(first_byte(&*left, block), 7, "cut at {cut}, block {block}");
            }
            assert!(!mount(&left), "cut at {cut}: they do not count any more");
        }
        assert!(
            waited.is_sorted_by(|before, after| before >= after),
            "{waited:?}"
        );
        assert!(waited[0] && !waited[events.len()], "{waited:?}");
    }

    /// What the log may still hold is judged by the features that it was written with.
    #[test]
    fn a_crash_before_the_transaction_is_durable_leaves_the_features_of_the_log() {
        let base = device();
        let mut log = log_of(&base);
        log.superblock.incompat |= JournalIncompat::ASYNC_COMMIT;
        write_superblock(&base, &log.area, &log.superblock).expect("memory");
        let record = Arc::new(RecordDevice::new(Arc::new(base.fork())));
        assert!(mount(
            &(Arc::<RecordDevice>::clone(&record) as Arc<dyn Device>)
        ));
        let needed = JournalIncompat::ASYNC_COMMIT | JournalIncompat::FAST_COMMIT;
        for event in record.events() {
            let log = log_of(&base);
            let waits = !plan(&base, &log).fast_commits().is_empty();
            assert!(!waits || log.superblock.incompat.contains(needed));
            event.apply(&base).expect("memory");
        }
    }

    #[test]
    fn changes_that_do_not_fit_are_refused_before_anything_is_written() {
        let record = Arc::new(RecordDevice::new(Arc::new(device())));
        let device = Arc::<RecordDevice>::clone(&record) as Arc<dyn Device>;
        let mut log = log_of(&*device);
        let replay = plan(&*device, &log);
        let mut refused = |blocks: Vec<u64>| {
            let page = |block| (BlockNumber(block), Page::zeroed(BLOCK));
            let changes = blocks.into_iter().map(page).collect();
            let write = replay.write_with_fast_commits(
                &device,
                &mut log,
                DEVICE_BLOCKS,
                changes,
                |_, _| {},
            );
            write.expect_err("it is refused")
        };
        let error = refused((1..30).collect()).to_string();
        assert!(error.contains("that change 29 blocks"), "{error}");
        let error = refused(vec![RUNS[1].0.get()]);
        assert!(matches!(error, JournalError::Corrupt(_)), "{error}");
        assert_eq!(record.mark(), 0);
    }
}
