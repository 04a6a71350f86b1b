//! Measures the costs of waiting for a lock on this machine: spinning, sleeping and being woken.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pext4_sync::virtual_cores::Waiting;

/// Picoseconds in a nanosecond.
const NANOSECOND: u64 = 1000;
/// Number of measured sleeps.
const SLEEPS: usize = 500;
/// How long the measured thread sleeps, about: after longer sleeps waking takes longer.
const BETWEEN_WAKES: Duration = Duration::from_micros(100);

/// Measures the costs of waiting. Other load on this machine makes some measurements longer and
/// none shorter, so a low quantile of many counts, except of sleeps.
#[must_use]
pub fn measured_waiting() -> Waiting {
    let (call, wake) = measured_sleep();
    Waiting {
        pause: repeated(std::hint::spin_loop),
        yield_time: repeated(std::thread::yield_now),
        call,
        wake,
        start: measured_start(),
    }
}

/// Picoseconds that `action` takes, repeated in a loop.
fn repeated(action: impl Fn()) -> u64 {
    const TIMES: u32 = 1000;
    let batch = || {
        let start = Instant::now();
        (0..TIMES).for_each(|_| action());
        start.elapsed()
    };
    let time = low((0..100).map(|_| batch()).collect());
    time / u64::from(TIMES)
}

/// The lower quartile, in picoseconds.
fn low(mut times: Vec<Duration>) -> u64 {
    times.sort();
    let time = times.get(times.len() / 4).copied().unwrap_or_default();
    u64::try_from(time.as_nanos())
        .unwrap_or(u64::MAX)
        .saturating_mul(NANOSECOND)
}

/// Picoseconds that creating a thread takes its creator.
fn measured_start() -> u64 {
    let times = (0..SLEEPS).map(|_| {
        let start = Instant::now();
        let thread = std::thread::spawn(|| {});
        let time = start.elapsed();
        // The thread does nothing that could fail.
        let _ = thread.join();
        time
    });
    low(times.collect())
}

/// Picoseconds of the call that wakes a sleeping thread, and from its beginning until that thread
/// runs, wherever the scheduler places it: often on the processor of its waker, which sleeps then
/// (3 us on a virtual machine where it takes 20 us on another, idle one). So it is the mean that
/// adds up to what many wake-ups take.
fn measured_sleep() -> (u64, u64) {
    let pair = Arc::new((Mutex::new(None::<Instant>), Condvar::new()));
    let sleeper = {
        let pair = Arc::clone(&pair);
        std::thread::spawn(move || {
            let mut delays: Vec<Duration> = Vec::new();
            while delays.len() < SLEEPS {
                let Ok(state) = pair.0.lock() else { break };
                let Ok(mut state) = pair.1.wait_while(state, |state| state.is_none()) else {
                    break;
                };
                delays.extend(state.take().map(|since| since.elapsed()));
            }
            mean(delays)
        })
    };
    let mut calls = Vec::new();
    while !sleeper.is_finished() {
        std::thread::sleep(BETWEEN_WAKES);
        if let Ok(mut state) = pair.0.lock() {
            state.get_or_insert_with(Instant::now);
        }
        let start = Instant::now();
        pair.1.notify_one();
        calls.push(start.elapsed());
    }
    (mean(calls), sleeper.join().unwrap_or_default())
}

/// The mean of the shortest nine tenths, in picoseconds: other load on this machine makes some much
/// longer.
fn mean(mut times: Vec<Duration>) -> u64 {
    times.sort();
    times.truncate((times.len() * 9).div_ceil(10));
    let sum: Duration = times.iter().sum();
    let count = u128::try_from(times.len().max(1)).unwrap_or(1);
    u64::try_from(sum.as_nanos() / count)
        .unwrap_or(u64::MAX)
        .saturating_mul(NANOSECOND)
}
