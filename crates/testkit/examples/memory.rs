//! Measures the memory that a mount takes while many files are created:
//!
//! ```text
//! cargo run --release -p pext4-testkit --example memory -- IMAGE [FILES [CACHE-MIB]]
//! ```
//!
//! IMAGE is a file with a fresh file system of enough inodes (`pext4 mkfs IMAGE --size 64G -N
//! 11000000`). The files are empty, 1000 to a directory.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pext4_block::{Access, FileDevice};
use pext4_fs::{CreateAttributes, InodeNumber, MountOptions, Volume};

const PER_DIRECTORY: u64 = 1000;
const REPORTS: u64 = 10;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let image = arguments
        .next()
        .context("usage: memory IMAGE [FILES [CACHE-MIB]]")?;
    let files: u64 = arguments
        .next()
        .map_or(Ok(10_000_000), |text| text.parse())
        .context("FILES")?;
    let cache: u64 = arguments
        .next()
        .map_or(Ok(256), |text| text.parse())
        .context("CACHE-MIB")?;
    println!("before the mount {:>6} MiB", resident()?);
    let device = FileDevice::open(&image, Access::ReadWrite, Duration::ZERO)?;
    let options = MountOptions {
        cache_size: cache << 20,
        ..MountOptions::default()
    };
    let volume = Volume::open(Arc::new(device), options)?;
    println!("mounted          {:>6} MiB", resident()?);
    let new = CreateAttributes {
        permissions: 0o644,
        ..CreateAttributes::default()
    };
    let directories = files.div_ceil(PER_DIRECTORY);
    for directory in 0..directories {
        let name = format!("d{directory}");
        let entry = volume.make_directory(InodeNumber::ROOT, name.as_bytes(), &new)?;
        for file in 0..PER_DIRECTORY {
            let made = volume.create(entry.inode, format!("f{file}").as_bytes(), &new)?;
            volume.forget(made.inode, 1);
        }
        volume.forget(entry.inode, 1);
        if (directory + 1) % directories.div_ceil(REPORTS) == 0 {
            println!(
                "{:>10} files {:>6} MiB",
                (directory + 1) * PER_DIRECTORY,
                resident()?
            );
        }
    }
    volume.close()?;
    println!("most at any time {:>6} MiB", status("VmHWM:")?);
    Ok(())
}

fn resident() -> Result<u64> {
    status("VmRSS:")
}

/// A size in the process's own status, in MiB.
fn status(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .context("no such line")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024)
}
