//! Machines to imitate, what a line costs on each, and who says so.
//!
//! Published figures are medians of the time for a line to go one way between two cores that
//! exchange it by compare-and-swap, as `core-to-core-latency` measures them
//! (<https://github.com/nviennot/core-to-core-latency>, its README unless said otherwise).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crossbeam_utils::CachePadded;
use pext4_sync::virtual_cores::Model;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A machine by name.
pub struct Named {
    /// What it is called.
    pub name: String,
    /// Where its figures are from.
    pub source: String,
    /// Where the figure of lines that are asked for together is from.
    pub further_source: &'static str,
    /// The figures.
    pub model: Model,
}

/// Picoseconds in a nanosecond.
const NANOSECOND: u64 = 1000;

/// A name, and nanoseconds within a cluster, across the socket, and to another one.
struct Preset {
    name: &'static str,
    source: &'static str,
    cluster: usize,
    socket: usize,
    near: u64,
    across: u64,
    far: u64,
}

const PRESETS: [Preset; 4] = [
    Preset {
        name: "one-socket",
        source: "as many cores as asked for, each as far from each as on one Xeon Platinum 8375C: 51 ns",
        cluster: usize::MAX,
        socket: usize::MAX,
        near: 51,
        across: 51,
        far: 51,
    },
    Preset {
        name: "two-sockets",
        source: "the cores in two halves, as two Xeon Platinum 8375C: 51 ns in one, 108 ns between them",
        cluster: 0,
        socket: 0,
        near: 51,
        across: 51,
        far: 108,
    },
    Preset {
        name: "kunpeng-920",
        source: "sockets of 64 cores as the Kunpeng 920-6426: 72 ns; between sockets nothing is \
                 published, so 202 ns, 2.8 times as much, as on two Xeon Gold 6242",
        cluster: 64,
        socket: 64,
        near: 72,
        across: 72,
        far: 202,
    },
    Preset {
        name: "epyc-9654",
        source: "sockets of 96 cores in clusters of 8, with the figures of two EPYC 9274F of the \
                 same generation (issue 132 there): 22 ns, 100 ns, 196 ns",
        cluster: 8,
        socket: 96,
        near: 22,
        across: 100,
        far: 196,
    },
];

/// The machine called `name` with so many processors; `here` is this one's cost with as many
/// processors as asked for, a number is that many nanoseconds for every transfer.
///
/// # Errors
/// There is none of that name; the text lists what there is.
pub fn find(name: &str, processors: usize) -> Result<Named> {
    let wake = measured_wake();
    let further = measured_further().ok();
    let further_source = match further {
        Some(_) => "measured on this machine",
        None => "a whole transfer: one processor says nothing about it",
    };
    if let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) {
        let half = |size: usize| {
            if size == 0 {
                processors.div_ceil(2)
            } else {
                size
            }
        };
        return Ok(Named {
            name: name.to_owned(),
            source: preset
                .source
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" "),
            further_source,
            model: Model {
                processors,
                cluster: half(preset.cluster),
                socket: half(preset.socket),
                near: preset.near * NANOSECOND,
                across: preset.across * NANOSECOND,
                far: preset.far * NANOSECOND,
                further: further.unwrap_or(preset.near * NANOSECOND),
                wake,
            },
        });
    }
    let (transfer, source) = if name == "here" {
        let transfer = measured_transfer()?;
        (
            transfer,
            format!(
                "measured on this machine: {:.0} ns",
                transfer as f64 / 1000.0
            ),
        )
    } else if let Ok(nanoseconds) = name.parse::<u64>() {
        (
            nanoseconds * NANOSECOND,
            format!("as given: {nanoseconds} ns"),
        )
    } else {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        bail!(
            "there is no machine `{name}`; there are here, {}, and any number of nanoseconds",
            names.join(", ")
        );
    };
    Ok(Named {
        name: name.to_owned(),
        source,
        further_source,
        model: Model {
            wake,
            further: further.unwrap_or(transfer),
            ..Model::uniform(processors, transfer)
        },
    })
}

/// Puts the calling thread on one processor.
fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).context("choosing a processor")
}

/// Picoseconds for a line to go from one processor of this machine to another and be written
/// there.
///
/// # Errors
/// There is one processor.
pub fn measured_transfer() -> Result<u64> {
    exchange(0)
}

/// Picoseconds for each line more of several that one processor of this machine asks another for,
/// knowing all their addresses: how well a core's misses overlap. The published figures are of one
/// line at a time, so this is used for all machines.
///
/// # Errors
/// There is one processor.
pub fn measured_further() -> Result<u64> {
    const MANY: usize = 16;
    let (one, many) = (exchange(1)?, exchange(MANY)?);
    Ok(many.saturating_sub(one) / (MANY as u64 - 1))
}

/// What two threads hand to and fro: whose turn it is, and what both write in their turn.
struct Exchanged {
    turn: CachePadded<AtomicU64>,
    lines: Vec<CachePadded<AtomicU64>>,
    is_over: AtomicBool,
}

impl Exchanged {
    /// Changes every line, as plain memory is changed.
    fn write(&self) {
        for line in &self.lines {
            line.store(line.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

/// Picoseconds of one way between two processors of the word that says whose turn it is, with so
/// many lines that change hands with it: half of what a round trip takes, the best of many batches.
fn exchange(lines: usize) -> Result<u64> {
    const TRIPS: u64 = 2000;
    const BATCHES: usize = 200;
    let [first, second] = two_processors()?;
    let exchanged = Arc::new(Exchanged {
        turn: CachePadded::new(AtomicU64::new(0)),
        lines: (0..lines).map(|_| CachePadded::default()).collect(),
        is_over: AtomicBool::new(false),
    });
    let other = Arc::clone(&exchanged);
    let partner = std::thread::spawn(move || {
        let _ = pin(second);
        while !other.is_over.load(Ordering::Relaxed) {
            let seen = other.turn.load(Ordering::Acquire);
            if seen % 2 == 1 {
                other.write();
                let _ = other.turn.compare_exchange(
                    seen,
                    seen + 1,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
    });
    let player = std::thread::spawn(move || {
        let _ = pin(first);
        let mut times: Vec<Duration> = (0..BATCHES)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..TRIPS {
                    exchanged.write();
                    let seen = exchanged.turn.fetch_add(1, Ordering::AcqRel) + 1;
                    while exchanged.turn.load(Ordering::Acquire) == seen {
                        std::hint::spin_loop();
                    }
                }
                start.elapsed()
            })
            .collect();
        exchanged.is_over.store(true, Ordering::Relaxed);
        times.sort();
        // Whoever else is on this machine makes some batches long, none short.
        times[BATCHES / 10]
    });
    let time = player.join().ok().context("measuring a transfer")?;
    partner.join().ok().context("measuring a transfer")?;
    let picoseconds = time.as_nanos() as u64 * NANOSECOND;
    Ok(picoseconds / (2 * TRIPS))
}

/// Two processors that this program may run on.
fn two_processors() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let (Some(first), Some(second)) = (processors.next(), processors.next()) else {
        bail!("one processor exchanges lines with nobody: give --machine");
    };
    Ok([first, second])
}

/// Picoseconds from waking a sleeping thread until it runs, on this machine; the lower quartile of
/// many.
#[must_use]
pub fn measured_wake() -> u64 {
    const TIMES: usize = 200;
    let pair = Arc::new((
        std::sync::Mutex::new(None::<Instant>),
        std::sync::Condvar::new(),
    ));
    let sleeper = {
        let pair = Arc::clone(&pair);
        std::thread::spawn(move || {
            let mut delays: Vec<Duration> = Vec::new();
            while delays.len() < TIMES {
                let Ok(state) = pair.0.lock() else { break };
                let Ok(mut state) = pair.1.wait_while(state, |state| state.is_none()) else {
                    break;
                };
                delays.extend(state.take().map(|since| since.elapsed()));
            }
            delays.sort();
            delays.get(delays.len() / 4).copied().unwrap_or_default()
        })
    };
    while !sleeper.is_finished() {
        std::thread::sleep(Duration::from_micros(100));
        if let Ok(mut state) = pair.0.lock() {
            state.get_or_insert_with(Instant::now);
        }
        pair.1.notify_one();
    }
    let delay = sleeper.join().unwrap_or_default();
    delay.as_nanos() as u64 * NANOSECOND
}
