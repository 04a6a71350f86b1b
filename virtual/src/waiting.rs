//! Measures the costs of waiting for a lock on this machine: spinning, sleeping and being woken.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use pext4_sync::virtual_cores::Waiting;

/// Picoseconds in a nanosecond.
const NANOSECOND: u64 = 1000;
/// Number of measured sleeps.
const SLEEPS: usize = 200;

/// Measures the costs of waiting. Other load on this machine makes some measurements longer and
/// none shorter, so a low quantile of many counts.
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
/// runs.
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
            low(delays)
        })
    };
    let mut calls = Vec::new();
    while !sleeper.is_finished() {
        std::thread::sleep(Duration::from_micros(100));
        if let Ok(mut state) = pair.0.lock() {
            state.get_or_insert_with(Instant::now);
        }
        let start = Instant::now();
        pair.1.notify_one();
        calls.push(start.elapsed());
    }
    (low(calls), sleeper.join().unwrap_or_default())
}
