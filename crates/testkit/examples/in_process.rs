//! Measures one thread that uses the library on a device in memory and, for comparison in the same
//! run, one that uses a mounted path through system calls:
//!
//! ```text
//! cargo run --release -p pext4-testkit --example in_process -- [SECONDS] [MOUNTED-PATH]
//! ```
//!
//! Pass a directory of a kernel ext4 to compare with the kernel. Rounds of both sides alternate,
//! since machines are noisy: only the ratio is meaningful, not the rates.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pext4_block::RamDevice;
use pext4_fs::{AllocateMode, CreateAttributes, InodeNumber, MountOptions, SetAttributes, Volume};
use pext4_image::mkfs;

const IMAGE: u64 = 8 << 30;
const ROUNDS: u32 = 5;
const PIECE: u64 = 8 << 10;
const FILE: u64 = 1 << 20;
const FILES: u32 = 1000;

/// One side's workload: runs for the given time and returns the number of operations.
type Work<'a> = (&'static str, Box<dyn Fn(Duration) -> Result<u64> + 'a>);

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments
        .next()
        .map_or(Ok(2.0), |text| text.parse())
        .context("SECONDS")?;
    let path = arguments.next().map(PathBuf::from);
    let device = Arc::new(RamDevice::new(IMAGE));
    mkfs::mkfs(&*device, &mkfs::Options::default())?;
    let volume = Volume::open(device, MountOptions::default())?;
    let round = Duration::from_secs_f64(seconds / f64::from(ROUNDS));
    println!(
        "{:<12} {:>14} {:>14} {:>8}",
        "workload", "library ops/s", "path ops/s", "ratio"
    );
    let library = library_works(&volume);
    let system = path.as_deref().map(path_works).unwrap_or_default();
    for (index, (name, work)) in library.iter().enumerate() {
        let other = system.get(index).map(|(_, work)| &**work);
        let (ours, theirs) = alternate(work, other, round)?;
        match theirs {
            Some(theirs) => println!(
                "{name:<12} {ours:>14.0} {theirs:>14.0} {:>8.2}",
                ours / theirs
            ),
            None => println!("{name:<12} {ours:>14.0}"),
        }
    }
    drop(library);
    volume.close()?;
    Ok(())
}

/// Medians of both sides' rates, round by round.
fn alternate(
    ours: &dyn Fn(Duration) -> Result<u64>,
    theirs: Option<&dyn Fn(Duration) -> Result<u64>>,
    round: Duration,
) -> Result<(f64, Option<f64>)> {
    let mut rates = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        rates.0.push(rate(ours, round)?);
        if let Some(theirs) = theirs {
            rates.1.push(rate(theirs, round)?);
        }
    }
    Ok((median(rates.0), theirs.map(|_| median(rates.1))))
}

fn rate(work: &dyn Fn(Duration) -> Result<u64>, round: Duration) -> Result<f64> {
    let start = Instant::now();
    let count = work(round)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

const NEW: CreateAttributes = CreateAttributes {
    permissions: 0o600,
    uid: 0,
    gid: 0,
};

fn library_works(volume: &Volume) -> Vec<Work<'_>> {
    vec![
        ("fallocate2", Box::new(|round| fallocate(volume, round))),
        ("create", Box::new(|round| create(volume, round))),
        ("orphan", Box::new(|round| orphan(volume, round))),
    ]
}

fn size(size: u64) -> SetAttributes {
    SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    }
}

fn fallocate(volume: &Volume, round: Duration) -> Result<u64> {
    let file = volume.create_unnamed(InodeNumber::ROOT, &NEW)?.inode;
    let count = repeat(round, |count| {
        for piece in 0..FILE / PIECE {
            volume.allocate(file, AllocateMode::Extend, piece * PIECE, PIECE)?;
            *count += 1;
        }
        volume.set_attributes(file, &size(0))?;
        Ok(())
    })?;
    volume.forget(file, 1);
    Ok(count)
}

fn create(volume: &Volume, round: Duration) -> Result<u64> {
    let root = InodeNumber::ROOT;
    let directory = volume.make_directory(root, b"create", &NEW)?.inode;
    let count = repeat(round, |count| {
        for number in 0..FILES {
            let entry = volume.create(directory, format!("f{number}").as_bytes(), &NEW)?;
            volume.forget(entry.inode, 1);
        }
        for number in 0..FILES {
            volume.unlink(directory, format!("f{number}").as_bytes())?;
        }
        *count += u64::from(2 * FILES);
        Ok(())
    })?;
    volume.remove_directory(root, b"create")?;
    volume.forget(directory, 1);
    Ok(count)
}

fn orphan(volume: &Volume, round: Duration) -> Result<u64> {
    let file = volume.create_unnamed(InodeNumber::ROOT, &NEW)?.inode;
    let count = repeat(round, |count| {
        volume.write(file, 0, &[1; 4096])?;
        for left in (0..4096).rev() {
            volume.set_attributes(file, &size(left))?;
            *count += 1;
        }
        Ok(())
    })?;
    volume.forget(file, 1);
    Ok(count)
}

fn path_works(directory: &Path) -> Vec<Work<'_>> {
    vec![
        (
            "fallocate2",
            Box::new(|round| path_fallocate(&directory.join("fallocate2"), round)),
        ),
        (
            "create",
            Box::new(|round| path_create(&directory.join("create"), round)),
        ),
        (
            "orphan",
            Box::new(|round| path_orphan(&directory.join("orphan"), round)),
        ),
    ]
}

fn path_fallocate(path: &Path, round: Duration) -> Result<u64> {
    let file = fs::File::create(path)?;
    fs::remove_file(path)?;
    repeat(round, |count| {
        for piece in 0..FILE / PIECE {
            rustix::fs::fallocate(
                file.as_fd(),
                rustix::fs::FallocateFlags::empty(),
                piece * PIECE,
                PIECE,
            )?;
            *count += 1;
        }
        Ok(file.set_len(0)?)
    })
}

fn path_create(path: &Path, round: Duration) -> Result<u64> {
    fs::create_dir(path)?;
    let count = repeat(round, |count| {
        for number in 0..FILES {
            drop(fs::File::create_new(path.join(format!("f{number}")))?);
        }
        for number in 0..FILES {
            fs::remove_file(path.join(format!("f{number}")))?;
        }
        *count += u64::from(2 * FILES);
        Ok(())
    })?;
    fs::remove_dir(path)?;
    Ok(count)
}

fn path_orphan(path: &Path, round: Duration) -> Result<u64> {
    let file = fs::File::create(path)?;
    fs::remove_file(path)?;
    repeat(round, |count| {
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 0)?;
        for size in (0..4096).rev() {
            file.set_len(size)?;
            *count += 1;
        }
        Ok(())
    })
}

fn repeat(round: Duration, mut once: impl FnMut(&mut u64) -> Result<()>) -> Result<u64> {
    let end = Instant::now() + round;
    let mut count = 0;
    while Instant::now() < end {
        once(&mut count)?;
    }
    Ok(count)
}
