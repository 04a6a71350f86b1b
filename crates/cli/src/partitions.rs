//! Recognises a disk with partitions where an ext4 file system was expected, so that the error can
//! say how to reach one of them, and other formats ([`other_formats`]).

use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, bail};
use pext4_block::{Device, FileDevice, open_unlocked, partition_table};
use pext4_ondisk::superblock::{self, Superblock};

use crate::{other_formats, size};

/// The most partitions that an error names.
const MOST_NAMED: usize = 8;

/// Fails if a device has no ext4 superblock, but partitions or another known format.
///
/// # Errors
///
/// The device is such a disk or has such a format. One that cannot be read is no error here.
pub fn refuse_disk(device: &FileDevice, image: &Path) -> Result<()> {
    let read = |offset, into: &mut [u8]| device.read_at(offset, into);
    refuse(image, read, || device.partitions())
}

/// As [`refuse_disk`], with the size of the device, and its bytes from `read`, which fills a buffer
/// from an offset.
///
/// # Errors
///
/// As [`refuse_disk`].
pub fn refuse_disk_of(
    image: &Path,
    size: u64,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> Result<()> {
    refuse(image, &read, || partition_table::partitions(size, &read))
}

/// As [`refuse_disk`], for what begins at a byte of a file, without a lock. A file that cannot be
/// opened is no error here.
///
/// # Errors
///
/// As [`refuse_disk`].
pub fn refuse_disk_at(image: &Path, start: u64) -> Result<()> {
    let opened = open_unlocked(image);
    let sized = opened.and_then(|mut file| Ok((file.seek(SeekFrom::End(0))?, file)));
    let Ok((size, file)) = sized else {
        return Ok(());
    };
    refuse_disk_of(image, size.saturating_sub(start), |at, into| {
        file.read_exact_at(into, start.saturating_add(at))
    })
}

/// Whether there is an ext4 superblock, as far as can be read.
fn has_ext4(read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> bool {
    let mut bytes = [0; superblock::SIZE];
    read(superblock::OFFSET, &mut bytes).is_ok()
        && Superblock::magic_of(&bytes) == superblock::MAGIC
}

fn refuse(
    image: &Path,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    partitions: impl FnOnce() -> io::Result<Vec<Range<u64>>>,
) -> Result<()> {
    if has_ext4(&read) {
        return Ok(());
    }
    if let Some(begin) = describe(&partitions().unwrap_or_default()) {
        bail!(
            "{}: it is a disk with partitions, not an ext4 file system; {begin}: mount one with \
             `-o offset=BYTES`, and give other commands `--offset BYTES` (`cp --from` \
             `--from-offset BYTES`)",
            image.display()
        );
    }
    if let Some(description) = other_formats::describe(read) {
        bail!(
            "{}: it is no ext4 image, but {description}",
            image.display()
        );
    }
    Ok(())
}

/// Where the partitions of a disk begin, in words; `None` if it has none.
fn describe(partitions: &[Range<u64>]) -> Option<String> {
    let (first, others) = partitions.split_first()?;
    let show =
        |part: &Range<u64>| format!("{} ({})", part.start, size::show(part.end - part.start));
    let mut text = format!("they begin at byte {}", show(first));
    for part in others.iter().take(MOST_NAMED - 1) {
        text.push_str(", ");
        text.push_str(&show(part));
    }
    if others.len() >= MOST_NAMED {
        text.push_str(", ...");
    }
    Some(text)
}
