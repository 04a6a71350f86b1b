//! Failures stop the journal and lose nothing that had been acknowledged.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pext4_block::FaultDevice;
use pext4_block::fault::Operation;

use super::*;
use crate::Owing;

pub(super) const LOG: u32 = 44;

pub(super) fn operate(toy: &Toy, number: u64) -> Result<Tid, JournalError> {
    let mut handle = toy.journal.start(4)?;
    toy.set_cell(&mut handle, 1, number);
    toy.set_cell(&mut handle, 200, number);
    toy.create(&mut handle, BLOCKS.start + number % 7, number);
    Ok(handle.tid())
}

/// Works until there is an error; returns what was acknowledged, and the error.
fn work_until_it_fails(toy: &Toy) -> (u64, JournalError) {
    let mut acknowledged = 0;
    for number in 1..1000 {
        match operate(toy, number).and_then(|tid| toy.journal.commit(tid)) {
            Ok(()) => acknowledged = number,
            Err(error) => return (acknowledged, error),
        }
    }
    panic!("the fault never came");
}

#[test]
fn a_fault_at_any_write_or_flush_stops_the_journal_and_loses_nothing() {
    for operation in [Operation::Write, Operation::Flush] {
        for nth in 0..60 {
            let ram = Arc::new(blank(LOG));
            let faulty = Arc::new(FaultDevice::new(Arc::clone(&ram) as Arc<dyn Device>));
            let toy = Toy::open(Arc::clone(&faulty) as Arc<dyn Device>, Some(LOG));
            faulty.fail_nth(operation, nth);
            let (acknowledged, error) = work_until_it_fails(&toy);
            assert!(matches!(error, JournalError::Io { .. }), "{error}");
            assert!(toy.journal.start(1).is_err());
            assert!(toy.journal.commit_running().is_err());
            let told = toy.told(|told| told.aborted.clone());
            assert_eq!(told, [error.to_string()], "before the call came back");
            assert!(toy.journal.flush_data().is_err());
            assert!(toy.journal.shutdown().is_err());
            drop(toy);

            let recovered = recover(&*ram, LOG);
            assert_eq!(recovered.errno, -5, "{operation} {nth}: remembered on disk");
            let found = read_cell(&*ram, 1);
            assert!(
                found >= acknowledged,
                "{operation} {nth}: {found} of {acknowledged}"
            );
            assert_eq!(read_cell(&*ram, 200), found);
        }
    }
}

/// Everything may be home already, and only the superblock of the empty log be missing.
#[test]
fn a_fault_during_the_shutdown_is_told_and_remembered() {
    for operation in [Operation::Write, Operation::Flush] {
        let is_met = |nth| {
            let ram = Arc::new(blank(LOG));
            let faulty = Arc::new(FaultDevice::new(Arc::clone(&ram) as Arc<dyn Device>));
            let toy = Toy::open(Arc::clone(&faulty) as Arc<dyn Device>, Some(LOG));
            operate(&toy, 1).expect("it works still");
            faulty.fail_nth(operation, nth);
            let Err(error) = toy.journal.shutdown() else {
                return false;
            };
            assert!(matches!(error, JournalError::Io { .. }), "{error}");
            assert!(toy.journal.shutdown().is_err(), "{operation} {nth}");
            assert!(toy.journal.failure().is_some());
            let told = toy.told(|told| told.aborted.clone());
            assert_eq!(told, [error.to_string()], "{operation} {nth}");
            drop(toy);
            assert_eq!(recover(&*ram, LOG).errno, -5, "{operation} {nth}");
            true
        };
        let met = (0..60).take_while(|&nth| is_met(nth)).count();
        assert!((4..60).contains(&met), "{operation}: {met}");
    }
}

#[test]
fn errors_name_the_operation_and_the_cause() {
    let faulty = Arc::new(FaultDevice::new(Arc::new(blank(LOG))));
    let toy = Toy::open(Arc::clone(&faulty) as Arc<dyn Device>, Some(LOG));
    let tid = operate(&toy, 1).expect("nothing is written yet");
    faulty.fail_from(Operation::Write, 0);
    let text = toy
        .journal
        .commit(tid)
        .expect_err("the cable is out")
        .to_string();
    assert!(
        text.starts_with("writing the journal's superblock failed: "),
        "{text}"
    );
    assert_eq!(toy.journal.failure().expect("it stopped").to_string(), text);
}

#[test]
fn an_abort_from_above_reaches_those_who_wait_and_the_disk() {
    let ram = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, Some(LOG));
    let tid = operate(&toy, 1).expect("the journal runs");
    {
        // Inside a handle, which keeps the commit waiting until then.
        let _handle = toy.journal.start(1).expect("the journal runs");
        toy.journal.abort("a directory makes no sense");
    }
    let text = toy
        .journal
        .commit(tid)
        .expect_err("it has stopped")
        .to_string();
    assert_eq!(text, "the journal has stopped: a directory makes no sense");
    assert!(toy.journal.shutdown().is_err());
    drop(toy);
    assert_eq!(read_cell(&*ram, 1), 0);
    let superblock = recovery::read_superblock(&*ram, &area(LOG)).expect("it is there");
    assert_eq!(superblock.errno, -5);
}

/// The thread that aborts is interrupted between its first two steps, and the committer tells of
/// the abort: who is told finds the journal stopped.
#[test]
fn who_learns_of_an_abort_finds_that_the_journal_has_stopped() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let error = JournalError::Aborted("a directory makes no sense".into());
    let core = &toy.journal.core;
    core.failure.set(error.clone()).expect("it is the first");
    core.notify_abort(&error);
    assert!(toy.journal.start(1).is_err());
    assert!(toy.journal.commit_running().is_err());
    assert!(toy.journal.shutdown().is_err());
}

#[test]
fn the_error_of_an_abort_stays_on_disk_until_it_is_cleared() {
    let ram = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, Some(LOG));
    toy.journal.abort("a directory makes no sense");
    assert!(toy.journal.commit_running().is_err());
    drop(toy);
    let recorded =
        || recovery::read_superblock(&*ram, &area(LOG)).map(|superblock| superblock.errno);
    let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, Some(LOG));
    assert_eq!(recorded().expect("it is there"), -5);
    toy.journal.clear_error().expect("a ram device works");
    assert_eq!(recorded().expect("it is there"), 0);
    let tid = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(tid).expect("a ram device works");
    assert_eq!(recover(&ram.fork(), LOG).errno, 0);
}

/// The transaction is closed and waits only for the handle that aborts the journal.
#[test]
fn without_a_log_changes_of_an_aborted_transaction_are_not_written() {
    for log in [None, Some(LOG)] {
        let ram = Arc::new(blank(LOG));
        let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, log);
        let mut handle = toy.journal.start(1).expect("the journal runs");
        toy.set_cell(&mut handle, 1, 7);
        let tid = handle.tid();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| toy.journal.commit(tid));
            // Time for the committer to close it.
            std::thread::sleep(Duration::from_millis(50));
            toy.journal.abort("half of a change");
            drop(handle);
            let committed = waits.join().expect("no panic");
            assert!(committed.is_err(), "{log:?}");
        });
        assert!(toy.journal.shutdown().is_err());
        drop(toy);
        assert_eq!(read_cell(&*ram, 1), 0, "{log:?}");
    }
}

#[test]
fn a_transaction_that_outgrows_the_log_stops_the_journal_before_it_writes() {
    let ram = Arc::new(blank(24));
    let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, Some(24));
    let first = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(first).expect("the journal runs");
    let mut handle = toy.journal.start(1).expect("the journal runs");
    for block in BLOCKS {
        toy.create(&mut handle, block, 2);
    }
    let tid = handle.tid();
    drop(handle);
    let error = toy.journal.commit(tid).expect_err("it cannot fit");
    assert_eq!(
        error.to_string(),
        "transaction 3 needs 42 blocks of a log of 23"
    );
    drop(toy);
    recover(&*ram, 24);
    assert_eq!(read_cell(&*ram, 1), 1);
    assert_metadata(&*ram, BLOCKS.start + 1, 1);
}

#[test]
fn a_failed_flush_of_data_stops_the_journal() {
    let faulty = Arc::new(FaultDevice::new(Arc::new(blank(LOG))));
    let toy = Toy::open(Arc::clone(&faulty) as Arc<dyn Device>, Some(LOG));
    toy.journal.flush_data().expect("the device works");
    faulty.fail_nth(Operation::Flush, 0);
    assert!(toy.journal.flush_data().is_err());
    assert!(
        toy.journal.start(1).is_err(),
        "a second flush would prove nothing"
    );
}

/// A device that panics when one block is written: where the table of cells is at home, or another.
struct PanicsAtHome {
    below: Arc<RamDevice>,
    block: u64,
    /// The number of flushes before the panic, of which the last one ends after it.
    flushes: u32,
    flushed: AtomicU32,
    is_at_home: AtomicBool,
    has_panicked: AtomicBool,
}

impl PanicsAtHome {
    fn new(below: &Arc<RamDevice>, flushes: u32) -> Arc<Self> {
        Self::at(TABLE, below, flushes)
    }

    fn at(block: u64, below: &Arc<RamDevice>, flushes: u32) -> Arc<Self> {
        Arc::new(Self {
            below: Arc::clone(below),
            block,
            flushes,
            flushed: AtomicU32::new(0),
            is_at_home: AtomicBool::new(false),
            has_panicked: AtomicBool::new(false),
        })
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

impl Device for PanicsAtHome {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        if offset == self.block * BLOCK as u64 {
            self.is_at_home.store(true, Ordering::SeqCst);
            wait_until(|| self.flushed.load(Ordering::SeqCst) >= self.flushes);
            self.has_panicked.store(true, Ordering::SeqCst);
            panic!("a bug of the device");
        }
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        if self.is_at_home.load(Ordering::SeqCst)
            && self.flushed.fetch_add(1, Ordering::SeqCst) + 1 == self.flushes
        {
            wait_until(|| self.has_panicked.load(Ordering::SeqCst));
        }
        Ok(())
    }
}

#[test]
fn a_panic_of_the_checkpointer_aborts_and_notifies_the_client() {
    let ram = Arc::new(blank(LOG));
    let toy = Toy::open(PanicsAtHome::new(&ram, 0), Some(LOG));
    let tid = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(tid).expect("the log takes it");
    assert!(toy.journal.checkpoint().is_err());
    assert!(toy.journal.flush_data().is_err());
    let text = "the journal has stopped: a thread of the journal panicked";
    assert_eq!(toy.told(|told| told.aborted.clone()), [text]);
    assert!(toy.journal.shutdown().is_err());
    assert_eq!(toy.told(|told| told.aborted.len()), 1);
    drop(toy);
    let recovered = recover(&*ram, LOG);
    assert_eq!((recovered.transactions, recovered.errno), (1, -5));
}

/// The write that panics is of the first block of the log after its superblock, or, without a log,
/// of the table of cells at home.
#[test]
fn a_panic_of_the_committer_is_an_abort_that_is_told() {
    for (log, block) in [(Some(LOG), LOG_START + 1), (None, TABLE)] {
        let ram = Arc::new(blank(LOG));
        let toy = Toy::open(PanicsAtHome::at(block, &ram, 0), log);
        let tid = operate(&toy, 1).expect("the journal runs");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| toy.journal.commit(tid));
            assert!(toy.journal.commit_running().is_err());
            assert!(waits.join().expect("no panic").is_err());
        });
        let text = "the journal has stopped: a thread of the journal panicked";
        assert_eq!(toy.told(|told| told.aborted.clone()), [text]);
        assert!(toy.journal.start(1).is_err());
        assert!(toy.journal.flush_data().is_err());
        assert!(toy.journal.shutdown().is_err());
        assert_eq!(toy.told(|told| told.aborted.len()), 1);
        drop(toy);
        if log.is_some() {
            let recovered = recover(&*ram, LOG);
            assert_eq!((recovered.transactions, recovered.errno), (0, -5));
        }
    }
}

/// The number of the read of a device that panics.
struct PanicsAtRead {
    below: Arc<RamDevice>,
    reads_left: AtomicU32,
}

impl Device for PanicsAtRead {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        assert_ne!(
            self.reads_left.fetch_sub(1, Ordering::SeqCst),
            1,
            "a bug of the device"
        );
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The operation changes two blocks, and the read of the second one panics.
#[test]
fn a_panic_between_two_changes_of_an_operation_stops_the_journal() {
    for log in [None, Some(LOG)] {
        let ram = Arc::new(blank(LOG));
        let device = Arc::new(PanicsAtRead {
            below: Arc::clone(&ram),
            reads_left: AtomicU32::new(0),
        });
        let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, log);
        let panics = |changes_before: bool| {
            let mut handle = toy.journal.start(4).expect("the journal runs");
            if changes_before {
                toy.set_cell(&mut handle, 1, 7);
            }
            device.reads_left.store(1, Ordering::SeqCst);
            let block = toy.cache.get(BlockNumber(BLOCKS.start + 30));
            unreachable!("the read of {:?} panics", block.map(|block| block.block()));
        };
        let run = |changes_before| {
            std::thread::scope(|scope| scope.spawn(|| panics(changes_before)).join().is_err())
        };
        assert!(run(false));
        let tid = operate(&toy, 1).expect("nothing was changed");
        toy.journal.commit(tid).expect("nothing was changed");
        assert!(run(true));
        let text = "the journal has stopped: an operation panicked between two changes";
        let error = toy.journal.commit_running().expect_err("it has stopped");
        assert_eq!(error.to_string(), text);
        assert!(toy.journal.shutdown().is_err());
        assert_eq!(toy.told(|told| told.aborted.clone()), [text]);
        drop(toy);
        if log.is_some() {
            assert_eq!(recover(&*ram, LOG).errno, -5);
        }
        assert_eq!(read_cell(&*ram, 1), 1, "{log:?}: the last whole operation");
    }
}

/// A handle that a destructor opens while its thread unwinds is whole.
#[test]
fn an_operation_of_a_thread_that_unwinds_is_no_failure() {
    struct Operates<'a>(&'a Toy);
    impl Drop for Operates<'_> {
        fn drop(&mut self) {
            operate(self.0, 1).expect("the journal runs");
        }
    }
    let ram = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, Some(LOG));
    std::thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let _operates = Operates(&toy);
            panic!("somebody's bug");
        });
        assert!(panics.join().is_err());
    });
    toy.journal.commit_running().expect("the journal runs");
    toy.journal.shutdown().expect("the journal runs");
    drop(toy);
    assert_eq!(read_cell(&*ram, 1), 1);
}

/// A block is freed whose last version is being written home; that write panics while the commit
/// block is written.
#[test]
fn a_commit_does_not_wait_for_a_home_write_that_panicked() {
    let ram = Arc::new(blank(LOG));
    let device = PanicsAtHome::new(&ram, 2);
    let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, Some(LOG));
    let tid = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(tid).expect("the log takes it");
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(toy.journal.checkpoint().is_err()));
        wait_until(|| device.is_at_home.load(Ordering::SeqCst));
        let mut handle = toy.journal.start(1).expect("the journal runs");
        handle.forget(BlockNumber(BLOCKS.start + 1));
        let tid = handle.tid();
        drop(handle);
        assert!(toy.journal.commit(tid).is_err());
    });
    assert!(toy.journal.shutdown().is_err());
    assert_eq!(toy.told(|told| told.aborted.len()), 1);
}

/// Writes home only once it may.
struct HoldsAtHome {
    below: Arc<RamDevice>,
    is_at_home: AtomicBool,
    may_land: AtomicBool,
    has_landed: AtomicBool,
}

impl Device for HoldsAtHome {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let is_home = offset == TABLE * BLOCK as u64;
        if is_home {
            self.is_at_home.store(true, Ordering::SeqCst);
            wait_until(|| self.may_land.load(Ordering::SeqCst));
        }
        self.below.write_at(offset, from)?;
        self.has_landed.fetch_or(is_home, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
}

/// The client may then write such a block itself, with the error in it.
#[test]
fn the_client_is_told_of_an_abort_when_no_version_is_on_its_way_home_any_more() {
    let device = Arc::new(HoldsAtHome {
        below: Arc::new(blank(LOG)),
        is_at_home: AtomicBool::new(false),
        may_land: AtomicBool::new(false),
        has_landed: AtomicBool::new(false),
    });
    let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, Some(LOG));
    let tid = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(tid).expect("the log takes it");
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(toy.journal.checkpoint().is_err()));
        wait_until(|| device.is_at_home.load(Ordering::SeqCst));
        toy.journal.abort("a test");
        scope.spawn(|| {
            // Time enough for a client that is told too early.
            std::thread::sleep(Duration::from_millis(50));
            device.may_land.store(true, Ordering::SeqCst);
        });
        assert!(toy.journal.commit_running().is_err());
        assert_eq!(toy.told(|told| told.aborted.len()), 1, "before it returns");
        assert!(device.has_landed.load(Ordering::SeqCst));
    });
    assert!(toy.journal.shutdown().is_err());
}

/// The versions of a failed commit exist only in memory.
#[test]
fn blocks_of_a_failed_commit_stay_in_memory() {
    for log in [None, Some(LOG)] {
        for operation in [Operation::Read, Operation::Write, Operation::Flush] {
            let faulty = Arc::new(FaultDevice::new(Arc::new(blank(LOG))));
            let toy = Toy::open(Arc::clone(&faulty) as Arc<dyn Device>, log);
            let tid = operate(&toy, 1).expect("the journal runs");
            faulty.fail_nth(operation, 0);
            assert!(toy.journal.commit(tid).is_err(), "{log:?} {operation}");
            toy.cache.evict_idle();
            let made = toy.cache.get(BlockNumber(BLOCKS.start + 1));
            let page = made.expect("it is in memory").page();
            assert_eq!(
                page[..BLOCK - 4],
                pattern(1)[..BLOCK - 4],
                "{log:?} {operation}"
            );
            if operation != Operation::Read {
                let table = toy.cache.get(BlockNumber(TABLE)).expect("it is in memory");
                assert_eq!(
                    table.page()[8..16],
                    1u64.to_le_bytes(),
                    "{log:?} {operation}"
                );
            }
        }
    }
}

/// An object whose capture panics.
struct NoCapture;

impl Owing for NoCapture {
    fn capture(&self, _: Tid, _: &mut Vec<Capture>) {
        panic!("a bug of the client");
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Panics {
    Capture,
    Seal,
    Write,
}

#[test]
fn blocks_of_a_commit_that_panics_stay_in_memory() {
    for log in [None, Some(LOG)] {
        for panics in [Panics::Capture, Panics::Seal, Panics::Write] {
            let ram = Arc::new(blank(LOG));
            let at = log.map_or(TABLE, |_| LOG_START + 1);
            let device = match panics {
                Panics::Write => PanicsAtHome::at(at, &ram, 0) as Arc<dyn Device>,
                _ => ram,
            };
            let toy = Toy::open(device, log);
            {
                let mut handle = toy.journal.start(4).expect("the journal runs");
                if panics == Panics::Capture {
                    // What was listed last is captured first.
                    let mut owed = Owed::default();
                    handle.touch(&mut owed, 1, || Arc::new(NoCapture), |_| ());
                }
                toy.set_cell(&mut handle, 1, 1);
                if panics == Panics::Seal {
                    toy.create(&mut handle, BLOCKS.start + 1, NO_SEAL);
                }
                toy.create(&mut handle, BLOCKS.start, 1);
            }
            assert!(toy.journal.commit_running().is_err(), "{log:?} {panics:?}");
            toy.cache.evict_idle();
            let made = toy.cache.get(BlockNumber(BLOCKS.start));
            let page = made.expect("it is in memory").page();
            let number = u64::from_le_bytes(page[..8].try_into().expect("eight bytes"));
            assert_eq!(number, 1, "{log:?} {panics:?}");
        }
    }
}

#[test]
fn a_journal_dropped_in_the_middle_is_no_failure() {
    let ram = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&ram) as Arc<dyn Device>, Some(LOG));
    let tid = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(tid).expect("the journal runs");
    operate(&toy, 2).expect("the journal runs");
    toy.journal.request_commit();
    drop(toy);
    let recovered = recover(&*ram, LOG);
    assert_eq!(recovered.errno, 0);
    assert!(recovered.transactions >= 1);
}
