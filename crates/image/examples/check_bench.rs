//! How long the checker takes, pass by pass, and how much memory, beside `e2fsck -fn`:
//!
//! ```text
//! cargo run --release -p pext4-image --example check_bench -- IMAGE [THREADS...]
//! ```
//!
//! IMAGE is checked once to warm the caches, then with each number of threads (1 and all
//! processors, unless given). Machines are noisy: the ratios count, not the times.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pext4_block::{Access, FileDevice};
use pext4_image::check::{self, Options, Report};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let image = arguments
        .next()
        .ok_or("usage: check_bench IMAGE [THREADS...]")?;
    let mut threads = arguments
        .map(|text| text.parse())
        .collect::<std::result::Result<Vec<usize>, _>>()?;
    if threads.is_empty() {
        threads = vec![1, std::thread::available_parallelism()?.get()];
    }
    let image = Path::new(&image);
    // What is read first is read from the disk.
    let _ = run(image, threads[0])?;
    for threads in threads {
        let (report, time) = run(image, threads)?;
        println!("{threads} threads: {:.3} s", time.as_secs_f64());
        for (pass, time) in &report.times {
            println!("  {:<28} {:>8.3} s", pass.name(), time.as_secs_f64());
        }
        if !report.is_clean() {
            println!("  {:?}", report.counts);
        }
    }
    println!("most memory: {} KiB", most_memory()?);
    let start = Instant::now();
    match Command::new("e2fsck").arg("-fn").arg(image).output() {
        Ok(output) => {
            let time = start.elapsed().as_secs_f64();
            println!("e2fsck -fn: {time:.3} s, {}", output.status);
        }
        Err(error) => println!("e2fsck -fn: {error}"),
    }
    Ok(())
}

fn run(image: &Path, threads: usize) -> Result<(Report, Duration)> {
    let start = Instant::now();
    let device = FileDevice::open(image, Access::ReadOnly, Duration::ZERO)?;
    let options = Options {
        threads,
        ..Options::default()
    };
    let report = check::check(Arc::new(device), &options)?;
    Ok((report, start.elapsed()))
}

/// The most memory this process had at any time, in KiB.
fn most_memory() -> Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .ok_or("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").to_owned())
}
