//! Data behind a file system, in its file.

use std::ops::Range;

use pext4_block::{Device, FileDevice};
use pext4_ondisk::BlockNumber;
use pext4_ondisk::superblock::{MAGIC, OFFSET, SIZE, Superblock};

use super::plan::Plan;
use crate::error::{Error, Result};

/// Read size in bytes.
const STEP: u64 = 1 << 20;
/// Where a superblock has the number of the group in which it lies.
const GROUP_NUMBER: Range<usize> = 0x5A..0x5C;

/// The offset of the first nonzero byte in a range of a device.
pub(super) fn first_nonzero_byte(device: &FileDevice, from: u64, to: u64) -> Result<Option<u64>> {
    find_byte(device, from, to, |_, _| true)
}

/// The offset of the first nonzero byte in a range of a device for which `is_it`, called with
/// offset and byte, is true. Holes are skipped.
fn find_byte(
    device: &FileDevice,
    from: u64,
    to: u64,
    is_it: impl Fn(u64, u8) -> bool,
) -> Result<Option<u64>> {
    let mut piece = Vec::new();
    let mut at = from;
    while at < to {
        let Some(data) = device.next_data(at, to)? else {
            return Ok(None);
        };
        at = data.start;
        let length = (data.end - at).min(STEP);
        piece.resize(usize::try_from(length).expect("at most a step"), 0);
        device.read_at(at, &mut piece)?;
        let mut found = (at..).zip(&piece).filter(|&(_, &byte)| byte != 0);
        if let Some((place, _)) = found.find(|&(place, &byte)| is_it(place, byte)) {
            return Ok(Some(place));
        }
        at += length;
    }
    Ok(None)
}

/// Refuses a growth that would overwrite data behind `old`, the end of the file system. Bytes that
/// it would write again are no data: the same growth, interrupted, has left them there.
pub(super) fn check_growth(device: &FileDevice, plan: &Plan, old: u64) -> Result<()> {
    let summary = plan.summary();
    let end = summary.bytes().min(device.size());
    let block_size = u64::from(summary.block_size);
    let changes = |at: u64, byte| {
        let block = plan.fresh.get(&BlockNumber(at / block_size));
        let within = usize::try_from(at % block_size).expect("below a block's size");
        block.is_none_or(|block| block[within] != byte)
    };
    let Some(at) = find_byte(device, old, end, changes)? else {
        return Ok(());
    };
    let kind = match device.is_block_device() {
        true => "device",
        false => "file",
    };
    let way_out = match device.range() {
        None => format!("let `truncate -s {old}` cut the file where its file system ends"),
        Some(_) => "give the file system a partition in the disk's table".to_owned(),
    };
    let begin = device.range().map_or(0, |range| range.start);
    let what = match superblock_before(device, at)?.and_then(|at| at.checked_sub(OFFSET)) {
        Some(start) => format!(
            "an ext4 file system lies in the {kind}, from byte {} on",
            begin + start
        ),
        None => format!(
            "something else lies in the {kind}, from byte {} on",
            begin + at
        ),
    };
    Err(Error::Impossible(format!(
        "behind the file system {what}, and growing would overwrite it: keep it elsewhere, then \
         {way_out} (what an interrupted growth to another size has left there need not be kept)"
    )))
}

/// Where the superblock of another file system begins whose first byte that is not zero is at `at`:
/// it begins with a number of four bytes that is not 0. Copies of a superblock do not count: they
/// lie inside their file system.
fn superblock_before(device: &FileDevice, at: u64) -> Result<Option<u64>> {
    let mut bytes = [0; SIZE];
    for start in (at.saturating_sub(3)..=at).rev() {
        let is_inside = start
            .checked_add(SIZE as u64)
            .is_some_and(|end| end <= device.size());
        if !is_inside {
            continue;
        }
        device.read_at(start, &mut bytes)?;
        if Superblock::magic_of(&bytes) == MAGIC && bytes[GROUP_NUMBER] == [0; 2] {
            return Ok(Some(start));
        }
    }
    Ok(None)
}
