//! Measures the cost of a lock that two processors of this machine use in turn.
//!
//! Two threads, each pinned to a processor, think, take a lock that is nearly always free, change
//! some lines that it guards, and release it; what each thinks next depends on what it read there.
//! The cost of a hand-over is the time of an operation beyond that of one thread alone, divided by
//! the share of operations before which the other thread had the lock. It is about half of the
//! published transfer times. Those are measured between two threads that poll one line: the line is
//! transferred once to the thread that polls and once more to the thread that writes. The guarded
//! lines arrive together with the lock's word: a processor requests them before it knows that it
//! has the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use crossbeam_utils::CachePadded;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Guarded lines with which the cost of an additional line is measured.
const LINES: usize = 4;
/// Measurements of each kind, alternating.
const ROUNDS: usize = 9;
/// Length of one measurement.
const WINDOW: Duration = Duration::from_millis(12);
/// Minimum steps of thinking between two operations; a random number is added.
const THINK: u64 = 200;
/// Bit of a lock's word that is set while it is held; the other bits are the number of its last
/// holder.
const HELD: u64 = 1;

/// Measures the picoseconds to move a line from one processor of this machine to one that requests
/// it.
///
/// # Errors
///
/// If the program may use only one processor, or cannot pin its threads.
pub fn measured_transfer() -> Result<u64> {
    Ok(picoseconds(median_cost(0)?))
}

/// Measures the picoseconds of each additional line that is transferred together with a lock's
/// word.
///
/// # Errors
///
/// As [`measured_transfer`].
pub fn measured_further() -> Result<u64> {
    let (word, all) = (median_cost(0)?, median_cost(LINES)?);
    Ok(picoseconds((all - word) / LINES as f64))
}

fn picoseconds(nanoseconds: f64) -> u64 {
    (nanoseconds.max(0.0) * 1000.0) as u64
}

/// The median of several measurements.
fn median_cost(lines: usize) -> Result<f64> {
    let processors = two_processors()?;
    let costs = (0..ROUNDS).map(|_| cost(processors, lines));
    let mut costs = costs.collect::<Result<Vec<f64>>>()?;
    costs.sort_by(f64::total_cmp);
    Ok(costs[costs.len() / 2])
}

/// Nanoseconds of a hand-over of a lock that guards `lines` lines.
fn cost(processors: [usize; 2], lines: usize) -> Result<f64> {
    let alone = run(&processors[..1], lines)?;
    let both = run(&processors, lines)?;
    let share = both.handed as f64 / both.operations.max(1) as f64;
    Ok((both.nanoseconds() - alone.nanoseconds()) / share.max(0.01))
}

/// The counts of the threads that used a lock.
struct Used {
    operations: u64,
    /// Operations before which another thread had the lock.
    handed: u64,
    /// Time of all threads.
    time: Duration,
}

impl Used {
    fn nanoseconds(&self) -> f64 {
        self.time.as_nanos() as f64 / self.operations.max(1) as f64
    }
}

/// A lock, the data that it guards, and the flag that stops the threads.
struct Shared {
    word: CachePadded<AtomicU64>,
    lines: Vec<CachePadded<AtomicU64>>,
    is_over: CachePadded<AtomicBool>,
}

/// Runs a thread on each of these processors; all use one lock for [`WINDOW`].
fn run(processors: &[usize], lines: usize) -> Result<Used> {
    let shared = Arc::new(Shared {
        word: CachePadded::default(),
        lines: (0..lines).map(|_| CachePadded::default()).collect(),
        is_over: CachePadded::default(),
    });
    let threads = (1..).zip(processors).map(|(number, &processor)| {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || -> Result<Used> {
            pin(processor)?;
            Ok(use_lock(&shared, number))
        })
    });
    let threads: Vec<_> = threads.collect();
    std::thread::sleep(WINDOW);
    shared.is_over.store(true, Ordering::Relaxed);
    let mut used = Used {
        operations: 0,
        handed: 0,
        time: Duration::ZERO,
    };
    for thread in threads {
        let own = thread.join();
        let own = own.map_err(|_| anyhow!("a measuring thread panicked"))??;
        used.operations += own.operations;
        used.handed += own.handed;
        used.time += own.time;
    }
    Ok(used)
}

fn use_lock(shared: &Shared, number: u64) -> Used {
    let (mut operations, mut handed, mut draw) = (0, 0, number);
    let start = Instant::now();
    while !shared.is_over.load(Ordering::Relaxed) {
        draw = think(draw);
        let seen = take(&shared.word, number);
        handed += u64::from(seen != number << 1);
        let mut sum = seen;
        for line in &shared.lines {
            let value = line.load(Ordering::Relaxed);
            sum |= value;
            line.store(value + 1, Ordering::Relaxed);
        }
        // The next thinking depends on everything that was read.
        draw ^= std::hint::black_box(sum >> 63);
        shared.word.store(number << 1, Ordering::Release);
        operations += 1;
    }
    Used {
        operations,
        handed,
        time: start.elapsed(),
    }
}

/// Computes for some time without shared data, and returns the next random number.
fn think(draw: u64) -> u64 {
    let steps = THINK + draw % 64;
    (0..steps).fold(draw | 1, |number, _| {
        std::hint::black_box(number).wrapping_mul(6_364_136_223_846_793_005) >> 1 | 1
    })
}

/// Takes the lock for a thread; returns the previous value of its word.
fn take(word: &AtomicU64, number: u64) -> u64 {
    loop {
        let seen = word.load(Ordering::Relaxed);
        let mine = (number << 1) | HELD;
        if seen & HELD == 0
            && word
                .compare_exchange(seen, mine, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return seen;
        }
        std::hint::spin_loop();
    }
}

/// Pins the calling thread to one processor.
fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).context("choosing a processor")
}

/// Two processors that this program may use.
fn two_processors() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (Some(first), Some(second)) = (processors.next(), processors.next()) else {
        bail!("one processor hands nothing over: give --machine");
    };
    Ok([first, second])
}
