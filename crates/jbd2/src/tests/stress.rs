//! Many threads: the state after a crash is a consistent cut through the operations of all of them.

use fastrand::Rng;
use pext4_block::{Event, RecordDevice};
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::{thread, topology};

use super::*;

const LOG: u32 = 60;
const WORKERS: usize = 6;
const OPERATIONS: u64 = 120;
/// The cell that every operation of every worker adds one to.
const SHARED: usize = 0;

/// A worker's own cells and blocks, all of which each of its operations writes.
fn own(worker: usize) -> ([usize; 2], u64) {
    (
        [1 + worker, CELLS_PER_BLOCK + worker],
        BLOCKS.start + worker as u64,
    )
}

fn work(toy: &Toy, recorder: &RecordDevice, worker: usize, seed: u64) -> Vec<(usize, u64)> {
    let _pin = topology::pin(worker);
    let mut random = Rng::with_seed(seed.wrapping_add(worker as u64));
    let (cells, block) = own(worker);
    let mut acknowledged = Vec::new();
    for number in 1..=OPERATIONS {
        let mut handle = toy
            .journal
            .start(4 + random.usize(..8) as u32)
            .expect("the journal runs");
        toy.cells[SHARED].change(&mut handle, |value| value + 1);
        toy.set_cell(&mut handle, cells[0], number);
        if random.usize(..5) == 0 {
            thread::yield_now();
        }
        toy.create(&mut handle, block, number);
        toy.set_cell(&mut handle, cells[1], number);
        let tid = handle.tid();
        drop(handle);
        if random.usize(..10) == 0 {
            toy.journal.commit(tid).expect("the journal runs");
            acknowledged.push((recorder.mark(), number));
        }
    }
    acknowledged
}

/// Checks that a recovered device is a consistent cut; returns how many operations it contains.
fn check(device: &dyn Device, acknowledged: &[Vec<(usize, u64)>], position: usize) -> u64 {
    let mut sum = 0;
    for (worker, acknowledged) in acknowledged.iter().enumerate() {
        let (cells, block) = own(worker);
        let number = read_cell(device, cells[0]);
        assert_eq!(
            read_cell(device, cells[1]),
            number,
            "worker {worker} is torn"
        );
        if number > 0 {
            assert_metadata(device, block, number);
        }
        let promised = acknowledged.iter().filter(|(mark, _)| *mark <= position);
        let promised = promised.map(|(_, number)| *number).max().unwrap_or(0);
        assert!(
            number >= promised,
            "worker {worker} was promised {promised}, has {number}"
        );
        sum += number;
    }
    assert_eq!(read_cell(device, SHARED), sum, "a cut through all workers");
    sum
}

#[test]
fn every_crash_is_one_cut_through_all_threads() {
    let seed = seed();
    let device = blank(LOG);
    let start = device.fork();
    let recorder = Arc::new(RecordDevice::new(Arc::new(device)));
    let toy = Toy::open(Arc::clone(&recorder) as Arc<dyn Device>, Some(LOG));
    let stop = AtomicBool::new(false);
    let acknowledged: Vec<_> = thread::scope(|scope| {
        // Commits happen at any moment, not only when a thread waits for one.
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                toy.journal.request_commit();
                thread::sleep(Duration::from_micros(300));
            }
        });
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (toy, recorder) = (&toy, &recorder);
                scope.spawn(move || work(toy, recorder, worker, seed))
            })
            .collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().expect("it works"))
            .collect();
        stop.store(true, Ordering::Release);
        results
    });
    toy.journal.commit_running().expect("the journal runs");
    let statistics = toy.journal.statistics();
    assert!(
        statistics.commits > 10 && statistics.checkpoints > 2,
        "{statistics:?}"
    );
    assert_eq!(statistics.handles, WORKERS as u64 * OPERATIONS);

    let events = recorder.events();
    let step = (events.len() / 300).max(1);
    for (position, event) in events.iter().enumerate() {
        if position % step == 0 || *event == Event::Flush {
            let crashed = start.fork();
            recover(&crashed, LOG);
            check(&crashed, &acknowledged, position);
        }
        event.apply(&start).expect("a ram device works");
    }
    recover(&start, LOG);
    let all = check(&start, &acknowledged, events.len());
    assert_eq!(all, WORKERS as u64 * OPERATIONS);
}

#[test]
fn a_tiny_journal_makes_handles_wait_and_never_overflows() {
    const THREADS: usize = 8;
    let toy = Toy::open(Arc::new(blank(24)), Some(24));
    let most = toy.journal.max_credits();
    assert!((4..=10).contains(&most), "{most}");
    thread::scope(|scope| {
        for worker in 0..THREADS {
            let toy = &toy;
            scope.spawn(move || {
                let _pin = topology::pin(worker);
                for number in 0..40 {
                    let mut handle = toy.journal.start(most - 1).expect("it waits for its turn");
                    for step in 0..most as usize - 1 {
                        let cell = (worker + step * 31 + number * 7) % CELLS;
                        toy.cells[cell].change(&mut handle, |value| value + 1);
                    }
                }
            });
        }
    });
    toy.journal.shutdown().expect("everything is brought home");
    let statistics = toy.journal.statistics();
    assert!(statistics.waits > 0, "{statistics:?}");
    let sum: u64 = (0..CELLS).map(|cell| read_cell(&*toy.device, cell)).sum();
    assert_eq!(sum, THREADS as u64 * 40 * u64::from(most - 1));
}

#[test]
fn many_who_wait_for_one_transaction_share_its_commit() {
    let toy = Toy::open(Arc::new(blank(LOG)), Some(LOG));
    let tid = {
        let mut handle = toy.journal.start(1).expect("the journal runs");
        toy.set_cell(&mut handle, 1, 1);
        handle.tid()
    };
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| toy.journal.commit(tid).expect("the journal runs"));
        }
    });
    assert_eq!(toy.journal.statistics().commits, 1);
    assert!(toy.journal.is_durable(tid));
    assert_eq!(toy.told(|told| told.committed.clone()), [tid]);
}
