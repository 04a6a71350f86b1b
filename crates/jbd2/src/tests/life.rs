//! From opening to shutdown, with a log and without.

use pext4_block::fault::Operation;
use pext4_block::{Event, FaultDevice, RecordDevice};
use pext4_ondisk::journal::JournalIncompat;
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{thread, topology};

use super::*;
use crate::Forgotten;
use crate::recovery::{Replay, ReplayedDevice};

const LOG: u32 = 60;

fn one_operation(toy: &Toy, number: u64) -> Tid {
    let mut handle = toy.journal.start(3).expect("the journal runs");
    toy.set_cell(&mut handle, 5, number);
    toy.create(&mut handle, 21, number);
    handle.tid()
}

#[test]
fn a_shutdown_brings_everything_home_and_leaves_an_empty_log() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let superblock = || recovery::read_superblock(&device, &area(LOG)).expect("it is there");
    for number in 1..4 {
        let named = superblock().sequence;
        let toy = Toy::open(Arc::clone(&device), Some(LOG));
        let tid = one_operation(&toy, number);
        // A transaction of the number that an empty log names may be in it.
        assert_eq!(tid, named.next());
        toy.journal.shutdown().expect("the device works");
        assert!(matches!(toy.journal.start(1), Err(JournalError::ShutDown)));
        assert_eq!(read_cell(&*device, 5), number);
        assert_metadata(&*device, 21, number);
        let superblock = superblock();
        assert_eq!((superblock.start, superblock.sequence), (0, tid.next()));
        let features = JournalIncompat::REVOKE | JournalIncompat::CSUM_V3;
        assert_eq!(superblock.incompat, features);
        assert_eq!(toy.cache.pinned(), 0);
    }
}

#[test]
fn a_checkpoint_leaves_nothing_in_the_log_and_the_journal_goes_on() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    for number in 1..4 {
        one_operation(&toy, number);
        toy.journal.checkpoint().expect("the device works");
        assert_eq!(read_cell(&*device, 5), number, "home while it runs");
        assert_metadata(&*device, 21, number);
        assert_eq!(toy.cache.pinned(), 0);
    }
    let before = toy.journal.statistics().checkpoints;
    toy.journal.checkpoint().expect("nothing to do");
    assert_eq!(toy.journal.statistics().checkpoints, before);
    one_operation(&toy, 4);
    toy.journal.commit_running().expect("the journal runs");
    drop(toy);

    let mut superblock = recovery::read_superblock(&device, &area(LOG)).expect("it is there");
    let blocks = device.size() / BLOCK as u64;
    let recovered = recovery::recover(&device, &area(LOG), &mut superblock, blocks);
    recovered.expect("the log begins where the checkpoint left it");
    assert_eq!(read_cell(&*device, 5), 4);
}

#[test]
fn a_handle_that_extends_by_what_other_shards_have_requests_a_commit() {
    const ATTEMPTS: u32 = 30_000;
    let shards = topology::shard_count();
    if shards == 1 {
        return;
    }
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let pin = topology::pin(shards - 1);
    drop(toy.journal.start(1).expect("the journal runs"));
    drop(pin);
    let _pin = topology::pin(0);
    let mut handle = toy.journal.start(1).expect("the journal runs");
    toy.set_cell(&mut handle, 5, 1);
    while handle.extend(1) {}
    let tid = handle.tid();
    drop(handle);
    let is_durable = (0..ATTEMPTS).any(|_| {
        thread::sleep(Duration::from_millis(1));
        toy.journal.is_durable(tid)
    });
    assert!(is_durable, "nothing else requests it");
}

#[test]
fn a_shutdown_during_another_one_does_nothing() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let handle = toy.journal.start(1).expect("the journal runs");
    thread::scope(|scope| {
        let first = scope.spawn(|| toy.journal.shutdown());
        let second = scope.spawn(|| {
            // A handle would not tell: it may have to wait for the one that is open.
            while toy.journal.is_running() {
                thread::yield_now();
            }
            toy.journal.shutdown()
        });
        let second = second.join().expect("it does not panic");
        second.expect("it does not wait for the handle");
        drop(handle);
        let first = first.join().expect("it does not panic");
        first.expect("the second one has not disturbed it");
    });
}

/// Somebody asks for a commit after a shutdown has emptied the log and before it has ended the
/// threads.
#[test]
fn a_commit_after_the_last_one_leaves_the_log_empty() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    let last = one_operation(&toy, 1);
    let closed = toy.journal.core.commit_last();
    assert!(closed.expect("the device works"));
    let late = last.next();
    toy.journal.core.request_commit(late);
    while !toy.journal.is_durable(late) {
        thread::yield_now();
    }
    let superblock = recovery::read_superblock(&device, &area(LOG)).expect("it is there");
    assert_eq!((superblock.start, superblock.sequence), (0, late));
    toy.journal.core.stop_threads();
}

/// An empty transaction is being committed when the shutdown begins, and the one after it is not
/// empty.
#[test]
fn a_shutdown_leaves_no_gap_in_the_log() {
    let ram = Arc::new(blank(LOG));
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&ram) as Arc<dyn Device>));
    let toy = Toy::open(Arc::clone(&faulty) as Arc<dyn Device>, Some(LOG));
    let first = one_operation(&toy, 1);
    toy.journal.commit(first).expect("the device works");
    // Home writes fail, so that the log keeps its content.
    let table = TABLE * BLOCK as u64;
    faulty.fail_touching(Operation::Write, table..table + BLOCK as u64);

    let mut handle = toy.journal.start(2).expect("the journal runs");
    let buffer = handle.create(BlockNumber(BLOCKS.start), SEALED);
    assert_eq!(handle.forget(buffer.block()), Forgotten::WithoutTrace);
    drop(handle);
    // The committer asks the buffer whether it owes anything.
    let keeps_waiting = buffer.write();
    toy.journal.request_commit();
    thread::scope(|scope| {
        let works = scope.spawn(|| {
            while toy.journal.running() != first.next().next() {
                thread::yield_now();
            }
            let mut handle = toy.journal.start(1).expect("the journal runs");
            toy.set_cell(&mut handle, 5, 2);
            scope.spawn(|| assert!(toy.journal.shutdown().is_err()));
            let refuses = scope.spawn(|| while toy.journal.start(1).is_ok() {});
            refuses.join().expect("no panic");
        });
        works.join().expect("no panic");
        drop(keeps_waiting);
    });
    drop(toy);
    assert_eq!(recover(&*ram, LOG).transactions, 3);
    assert_eq!(read_cell(&*ram, 5), 2);
}

#[test]
fn opening_and_shutting_down_writes_nothing() {
    let recorder = Arc::new(RecordDevice::new(Arc::new(blank(LOG))));
    let toy = Toy::open(Arc::clone(&recorder) as Arc<dyn Device>, Some(LOG));
    drop(toy.journal.start(3).expect("the journal runs"));
    toy.journal.commit_running().expect("nothing to do");
    toy.journal.shutdown().expect("nothing to do");
    assert_eq!(recorder.mark(), 0);
}

#[test]
fn the_start_of_the_log_is_durable_before_its_first_commit() {
    let recorder = Arc::new(RecordDevice::new(Arc::new(blank(LOG))));
    let toy = Toy::open(Arc::clone(&recorder) as Arc<dyn Device>, Some(LOG));
    let tid = one_operation(&toy, 1);
    toy.journal.commit(tid).expect("the journal runs");
    let events = recorder.events();
    let shape: String = events
        .iter()
        .map(|event| match event {
            Event::Write { offset, .. } if *offset == LOG_START * BLOCK as u64 => 's',
            Event::Write { .. } => 'w',
            Event::Flush => 'f',
            Event::Discard { .. } => 'd',
        })
        .collect();
    assert_eq!(
        shape, "sfwfwf",
        "superblock; body; commit block; a flush after each"
    );
}

#[test]
fn without_a_log_a_commit_writes_home() {
    let recorder = Arc::new(RecordDevice::new(Arc::new(blank(LOG))));
    let toy = Toy::open(Arc::clone(&recorder) as Arc<dyn Device>, None);
    let tid = one_operation(&toy, 7);
    assert_eq!(recorder.mark(), 0);
    toy.journal.commit(tid).expect("the journal runs");
    assert_eq!(read_cell(&*toy.device, 5), 7);
    assert_metadata(&*toy.device, 21, 7);
    assert_eq!(recorder.events().first(), Some(&Event::Flush), "data first");
    assert_eq!(recorder.events().last(), Some(&Event::Flush));
    let mut handle = toy.journal.start(2).expect("the journal runs");
    handle.forget(BlockNumber(21));
    drop(handle);
    toy.journal.shutdown().expect("the device works");
    assert_metadata(&*toy.device, 21, 7);
}

#[test]
fn closing_changes_are_part_of_the_closed_transaction() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let value = |handle: &mut Handle<'_>| toy.cells[CLOSING].change(handle, |value| value);
    let first = one_operation(&toy, 1);
    toy.journal.commit(first).expect("the journal runs");
    let mut handle = toy.journal.start(10).expect("the journal runs");
    assert_eq!(value(&mut handle), 0, "nobody had set credits aside");
    handle.set_aside(3);
    let second = handle.tid();
    drop(handle);
    let mut handle = toy.journal.start(10).expect("the journal runs");
    assert_eq!(handle.tid(), second);
    handle.set_aside(2);
    toy.journal.request_commit();
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let mut handle = toy.journal.start(10).expect("the journal runs");
            (value(&mut handle), handle.tid())
        });
        drop(handle);
        // A handle of the next transaction must see it done; this one may be in either.
        let (value, tid) = next.join().expect("it does not panic");
        assert_eq!(value, if tid == second { 0 } else { 5 });
    });
    toy.journal.commit(second).expect("the journal runs");
    let replica = Arc::new(RamDevice::new(DEVICE_BLOCKS * BLOCK as u64));
    let mut bytes = vec![0; (DEVICE_BLOCKS * BLOCK as u64) as usize];
    toy.device.read_at(0, &mut bytes).expect("it reads");
    replica.write_at(0, &bytes).expect("it takes writes");
    recover(&*replica, LOG);
    assert_eq!(read_cell(&*replica, CLOSING), 5);
}

#[test]
fn the_interval_commits_unasked_and_only_what_is_dirty() {
    let interval = Duration::from_millis(2);
    let toy = Toy::open_with(Arc::new(blank(LOG)), Some(LOG), interval);
    let tid = one_operation(&toy, 1);
    for _ in 0..10_000 {
        if toy.journal.is_durable(tid) {
            break;
        }
        thread::sleep(interval);
    }
    assert!(toy.journal.is_durable(tid));
    for _ in 0..5 {
        thread::sleep(interval);
    }
    assert_eq!(
        toy.journal.running(),
        tid.next(),
        "nothing to commit, nothing committed"
    );
}

#[test]
fn a_change_of_the_next_transaction_does_not_reach_the_last() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let first = one_operation(&toy, 1);
    // The committer waits for this handle, while the next operation waits for the committer.
    let handle = toy.journal.start(1).expect("the journal runs");
    toy.journal.request_commit();
    thread::scope(|scope| {
        let next = scope.spawn(|| {
            let mut number = 2;
            while one_operation(&toy, number) == first {
                number += 1;
            }
            number
        });
        thread::sleep(Duration::from_millis(5));
        drop(handle);
        let number = next.join().expect("it gets in");
        toy.journal.commit(first).expect("the journal runs");
        let area = area(LOG);
        let superblock = recovery::read_superblock(&toy.device, &area).expect("it is there");
        let replay = Replay::plan(&toy.device, &area, &superblock, DEVICE_BLOCKS);
        let replay = Arc::new(replay.expect("a sound log"));
        let replayed = ReplayedDevice::new(Arc::clone(&toy.device), replay);
        let mut value = [0; 8];
        let place = TABLE * BLOCK as u64 + 40;
        replayed
            .read_at(place, &mut value)
            .expect("inside the device");
        assert_eq!(
            value,
            (number - 1).to_le_bytes(),
            "the last of the first transaction"
        );
    });
}

#[test]
fn handles_extend_and_restart() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let most = toy.journal.max_credits();
    let mut handle = toy.journal.start(2).expect("the journal runs");
    assert!(handle.extend(3));
    assert_eq!(handle.credits(), 5);
    assert!(!handle.extend(most));
    toy.set_cell(&mut handle, 1, 1);
    toy.set_cell(&mut handle, 1, 2);
    assert_eq!(handle.credits(), 4, "charged once");
    let before = handle.tid();
    // Only a new transaction has that many credits.
    handle.restart(most).expect("the journal runs");
    assert_eq!((handle.tid(), handle.credits()), (before.next(), most));
    let refused = handle
        .restart(most + 1)
        .expect_err("no transaction has that many");
    assert!(
        matches!(refused, JournalError::TooLarge { .. }),
        "{refused}"
    );
    drop(handle);
    let text = toy
        .journal
        .start(most + 1)
        .expect_err("too many")
        .to_string();
    assert!(text.contains("the journal is too small"), "{text}");
    toy.journal.shutdown().expect("nobody is left inside");
}

#[test]
#[should_panic(expected = "HandleStart")]
fn a_commit_inside_a_handle_panics() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let handle = toy.journal.start(1).expect("the journal runs");
    let _ = toy.journal.commit(handle.tid());
}

#[test]
#[should_panic(expected = "HandleStart is taken while Group is held")]
fn a_restart_under_a_lock_of_what_the_committer_takes_panics() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let mut handle = toy.journal.start(1).expect("the journal runs");
    let group = Mutex::new(Class::Group, ());
    let _group = group.lock();
    let _ = handle.restart(1);
}

#[test]
fn a_journal_with_room_for_fast_commits_goes_on_without_them_over_its_whole_length() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let area = area(LOG);
    let mut superblock = recovery::read_superblock(&device, &area).expect("it is there");
    superblock.sequence = Tid(u32::MAX);
    superblock.upgrade(true);
    superblock.incompat.insert(JournalIncompat::FAST_COMMIT);
    superblock.num_fast_commit_blocks = 5;
    write_superblock(&*device, &area, &superblock).expect("a ram device works");
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    for number in 1..30 {
        let tid = one_operation(&toy, number);
        toy.journal.commit(tid).expect("the journal runs");
    }
    drop(toy);
    let read = recovery::read_superblock(&device, &area).expect("it is there");
    let without = superblock.incompat.difference(JournalIncompat::FAST_COMMIT);
    assert_eq!(read.incompat, without);
    assert_eq!(read.num_fast_commit_blocks, 5, "for who wants them again");
    assert!(recover(&device, LOG).transactions > 0);
    assert_eq!(read_cell(&*device, 5), 29);
    assert_metadata(&*device, 21, 29);
    let mut last = vec![0; BLOCK];
    area.read(&device, LOG - 1, &mut last)
        .expect("inside the area");
    assert!(last.iter().any(|byte| *byte != 0), "it is log now");
}

#[test]
fn a_block_freed_and_begun_again_in_one_transaction_is_not_revoked() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    let mut handle = toy.journal.start(9).expect("the journal runs");
    toy.create(&mut handle, 21, 1);
    toy.create(&mut handle, 22, 1);
    drop(handle);
    toy.journal.commit_running().expect("the journal runs");
    let mut handle = toy.journal.start(9).expect("the journal runs");
    assert_eq!(handle.forget(BlockNumber(21)), Forgotten::Revoked);
    toy.create(&mut handle, 21, 2);
    assert_eq!(handle.forget(BlockNumber(22)), Forgotten::Revoked);
    drop(handle);
    toy.journal.commit_running().expect("the journal runs");
    assert_eq!(toy.journal.statistics().revokes, 1);
    drop(toy);
    let recovered = recover(&device, LOG);
    assert_eq!(recovered.transactions, 2);
    assert_metadata(&*device, 21, 2);
}

/// It needs no revoke, and its next life needs no credit, since the block is still on the list.
#[test]
fn a_block_that_began_and_ended_in_one_transaction_leaves_no_trace() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    let mut handle = toy.journal.start(9).expect("the journal runs");
    for value in 1..=3 {
        toy.create(&mut handle, 21, value);
        assert_eq!(handle.credits(), 8);
        assert_eq!(handle.forget(BlockNumber(21)), Forgotten::WithoutTrace);
    }
    toy.create(&mut handle, 22, 5);
    assert_eq!(handle.forget(BlockNumber(22)), Forgotten::WithoutTrace);
    toy.create(&mut handle, 22, 6);
    assert_eq!(handle.credits(), 7);
    drop(handle);
    toy.journal.commit_running().expect("the journal runs");
    assert_eq!(toy.journal.statistics().revokes, 0);
    let mut handle = toy.journal.start(9).expect("the journal runs");
    assert_eq!(
        handle.forget(BlockNumber(22)),
        Forgotten::Revoked,
        "it is in the log"
    );
    drop(handle);
    drop(toy);
    let recovered = recover(&device, LOG);
    assert_eq!(recovered.transactions, 1);
    assert_eq!(read_block(&*device, 21), [0; BLOCK], "never written");
    assert_metadata(&*device, 22, 6);
}

#[test]
fn a_created_block_is_zeroes_whatever_it_was() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    toy.write_data(22, 5);
    one_operation(&toy, 1);
    let mut handle = toy.journal.start(2).expect("the journal runs");
    for block in [21, 22] {
        let page = handle.create(BlockNumber(block), SEALED).page();
        assert_eq!(*page, [0; BLOCK]);
    }
}

#[test]
fn only_records_begin_with_the_magic_in_the_log() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let tid = one_operation(&toy, 3);
    toy.journal.commit(tid).expect("the journal runs");
    let area = area(LOG);
    let mut records = 0;
    for index in 1..LOG {
        let mut block = vec![0; BLOCK];
        area.read(&toy.device, index, &mut block)
            .expect("inside the area");
        records += usize::from(pext4_ondisk::journal::Header::decode(&block).is_some());
    }
    assert_eq!(records, 2, "a descriptor and a commit block");
    assert!(pext4_ondisk::journal::header::begins_with_magic(&pattern(
        3
    )));
}

#[test]
fn durability_is_not_held_by_what_the_client_does_afterwards() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let tid = one_operation(&toy, 1);
    // The client waits for this lock when it is told of the transaction.
    toy.told(|told| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| toy.journal.make_durable(tid));
            let durable = waits.join().expect("no panic");
            durable.expect("the journal runs");
        });
        assert!(told.committed.is_empty());
    });
    toy.journal.commit(tid).expect("the journal runs");
    assert_eq!(toy.told(|told| told.committed.clone()), [tid]);
}

#[test]
fn a_freed_block_is_cold_when_its_transaction_is_durable() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    let first = one_operation(&toy, 1);
    toy.journal.commit(first).expect("the journal runs");
    let mut handle = toy.journal.start(1).expect("the journal runs");
    handle.forget(BlockNumber(21));
    let second = handle.tid();
    drop(handle);
    toy.journal.commit(second).expect("the journal runs");
    assert!(
        toy.cache.peek(BlockNumber(21)).is_none(),
        "nor is it in the cache"
    );
    toy.write_data(21, 9);
    toy.journal.shutdown().expect("the device works");
    assert_data(&*device, 21, 9);
}

/// Writes only while it may.
struct HoldsWrites {
    below: RamDevice,
    is_holding: AtomicBool,
    has_waited: AtomicBool,
}

impl Device for HoldsWrites {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        while self.is_holding.load(Ordering::SeqCst) {
            self.has_waited.store(true, Ordering::SeqCst);
            thread::yield_now();
        }
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.below.flush()
    }
}

/// A file may keep the cluster in which it has unmapped a block, and fill the block again at once.
#[test]
fn a_forgotten_block_that_the_next_transaction_begins_again_stays_in_the_cache() {
    for log in [Some(LOG), None] {
        let device = Arc::new(HoldsWrites {
            below: blank(LOG),
            is_holding: AtomicBool::new(false),
            has_waited: AtomicBool::new(false),
        });
        let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, log);
        let mut handle = toy.journal.start(3).expect("the journal runs");
        toy.set_cell(&mut handle, 5, 1);
        assert_eq!(handle.forget(BlockNumber(21)), Forgotten::Revoked);
        drop(handle);
        device.is_holding.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let commit = scope.spawn(|| toy.journal.commit_running());
            while !device.has_waited.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            let mut handle = toy.journal.start(3).expect("the next transaction is open");
            toy.create(&mut handle, 21, 2);
            drop(handle);
            device.is_holding.store(false, Ordering::SeqCst);
            let committed = commit.join().expect("no panic");
            committed.expect("the device works");
        });
        let page = toy.cache.get(BlockNumber(21)).expect("it is there").page();
        assert_eq!(page[..BLOCK - 4], pattern(2)[..BLOCK - 4], "{log:?}");
        toy.journal.shutdown().expect("the device works");
        assert_metadata(&*device, 21, 2);
    }
}

#[test]
fn an_unrecovered_log_is_not_opened() {
    let device: Arc<dyn Device> = Arc::new(blank(LOG));
    let toy = Toy::open(Arc::clone(&device), Some(LOG));
    toy.journal
        .commit(one_operation(&toy, 1))
        .expect("the journal runs");
    drop(toy);
    let superblock = recovery::read_superblock(&device, &area(LOG)).expect("it is there");
    let opened = Journal::open(Config {
        cache: Arc::new(Cache::new(Arc::clone(&device), BLOCK as u32, 1 << 20)),
        device,
        log: Some(Log {
            area: area(LOG),
            superblock,
            keeps_checksums: true,
        }),
        client: Arc::new(ToyClient {
            told: Mutex::new(Class::Leaf, Told::default()),
            cells: Vec::new(),
        }),
        commit_interval: NEVER,
        width: crate::JournalWidth::default(),
    });
    let text = opened.expect_err("it must be replayed first").to_string();
    assert!(text.contains("has not been replayed"), "{text}");
}
