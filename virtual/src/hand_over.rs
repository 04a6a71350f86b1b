//! What it costs two processors of this machine to use one lock in turn.
//!
//! Two threads, each on a processor of its own, think, take a lock that is nearly always free, change some
//! lines that it guards, and give it back; what each thinks next depends on what it read there. What an operation
//! takes beyond what it takes when one thread does it alone, over how often the lock came from the other, is what
//! a hand-over costs. It is about half of what a line takes between two threads that wait for it, which is how
//! such times are published: there the line goes to the one that looks and then once more to the one that
//! writes. And the lines that a lock guards come with its word: a processor asks for them before it
//! knows that it has the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam_utils::CachePadded;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Lines that a lock guards, to judge them by.
const LINES: usize = 4;
/// Measurements of each, in turns.
const ROUNDS: usize = 9;
/// How long one lasts.
const WINDOW: Duration = Duration::from_millis(12);
/// Steps of thinking between two operations; some more are drawn.
const THINK: u64 = 200;
/// Bit of a lock's word that says it is held; the others say by whom it was last.
const HELD: u64 = 1;

/// Picoseconds for a line to go from one processor of this machine to another that asks for it.
///
/// # Errors
/// There is one processor.
pub fn measured_transfer() -> Result<u64> {
    Ok(picoseconds(middle_cost(0)?))
}

/// Picoseconds for each line that comes with a lock's word.
///
/// # Errors
/// There is one processor.
pub fn measured_further() -> Result<u64> {
    let (word, all) = (middle_cost(0)?, middle_cost(LINES)?);
    Ok(picoseconds((all - word) / LINES as f64))
}

fn picoseconds(nanoseconds: f64) -> u64 {
    (nanoseconds.max(0.0) * 1000.0) as u64
}

/// The median of several.
fn middle_cost(lines: usize) -> Result<f64> {
    let processors = two_processors()?;
    let costs = (0..ROUNDS).map(|_| cost(processors, lines));
    let mut costs = costs.collect::<Result<Vec<f64>>>()?;
    costs.sort_by(f64::total_cmp);
    Ok(costs[costs.len() / 2])
}

/// Nanoseconds of a hand-over of a lock with so many lines.
fn cost(processors: [usize; 2], lines: usize) -> Result<f64> {
    let alone = run(&processors[..1], lines)?;
    let both = run(&processors, lines)?;
    let share = both.handed as f64 / both.operations.max(1) as f64;
    Ok((both.nanoseconds() - alone.nanoseconds()) / share.max(0.01))
}

/// What threads did with a lock.
struct Used {
    operations: u64,
    /// Operations before which another thread had the lock.
    handed: u64,
    /// All threads' time.
    time: Duration,
}

impl Used {
    fn nanoseconds(&self) -> f64 {
        self.time.as_nanos() as f64 / self.operations.max(1) as f64
    }
}

/// A lock, what it guards, and whether to go on.
struct Shared {
    word: CachePadded<AtomicU64>,
    lines: Vec<CachePadded<AtomicU64>>,
    is_over: CachePadded<AtomicBool>,
}

/// Lets a thread on each of these processors use one lock for a while.
fn run(processors: &[usize], lines: usize) -> Result<Used> {
    let shared = Arc::new(Shared {
        word: CachePadded::default(),
        lines: (0..lines).map(|_| CachePadded::default()).collect(),
        is_over: CachePadded::default(),
    });
    let threads = (1..).zip(processors).map(|(number, &processor)| {
        let shared = Arc::clone(&shared);
        std::thread::spawn(move || {
            let _ = pin(processor);
            use_lock(&shared, number)
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
        let own = thread.join().ok().context("measuring a hand-over")?;
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
        // What follows depends on all that was read.
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

/// Spends some time on what depends on nobody, and draws the next number.
fn think(draw: u64) -> u64 {
    let steps = THINK + draw % 64;
    (0..steps).fold(draw | 1, |number, _| {
        std::hint::black_box(number).wrapping_mul(6_364_136_223_846_793_005) >> 1 | 1
    })
}

/// Takes the lock for a thread and answers its word before that.
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

/// Puts the calling thread on one processor.
fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).context("choosing a processor")
}

/// Two processors that this program may run on.
fn two_processors() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (Some(first), Some(second)) = (processors.next(), processors.next()) else {
        bail!("one processor hands nothing over: give --machine");
    };
    Ok([first, second])
}
