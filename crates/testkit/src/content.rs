//! The bytes of files: patterns made from a seed, and sparse content.
//!
//! Content is stored in chunks behind `Arc`s, so that cloning a whole model at each operation, as
//! the crash rig does, is cheap. A chunk of zeroes is never stored, so that equal bytes are equal
//! values however they were written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::random::mix;

/// Bytes in a chunk of [`Content`].
pub const CHUNK: u64 = 4096;

/// The `length` bytes of the pattern of `seed`; seed 0 gives zeroes.
#[must_use]
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    if seed == 0 {
        return vec![0; length];
    }
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = 0_u64;
    while bytes.len() < length {
        bytes
            .extend_from_slice(&mix(seed ^ word.wrapping_mul(0xD6E8_FEB8_6659_FD93)).to_le_bytes());
        word += 1;
    }
    bytes.truncate(length);
    bytes
}

/// The content of a file: a size and the chunks that are not zero.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Content {
    size: u64,
    chunks: BTreeMap<u64, Arc<[u8]>>,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Content({} bytes, {} chunks)",
            self.size,
            self.chunks.len()
        )
    }
}

/// Calls `each(chunk, offset in it, length, offset in the range)` for the pieces of a range.
fn pieces(offset: u64, length: u64, mut each: impl FnMut(u64, usize, usize, usize)) {
    let mut done = 0;
    while done < length {
        let at = offset + done;
        let within = at % CHUNK;
        let take = (CHUNK - within).min(length - done);
        each(at / CHUNK, within as usize, take as usize, done as usize);
        done += take;
    }
}

impl Content {
    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from `offset`: `length` bytes, or fewer at the end of the file.
    #[must_use]
    pub fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let length = length.min(self.size.saturating_sub(offset));
        let mut bytes = vec![0; length as usize];
        pieces(offset, length, |chunk, within, take, done| {
            if let Some(kept) = self.chunks.get(&chunk) {
                bytes[done..done + take].copy_from_slice(&kept[within..within + take]);
            }
        });
        bytes
    }

    /// Writes `bytes` at `offset`; the file grows if needed.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
        pieces(offset, bytes.len() as u64, |chunk, within, take, done| {
            self.patch(chunk, within, &bytes[done..done + take]);
        });
    }

    fn patch(&mut self, chunk: u64, within: usize, bytes: &[u8]) {
        let mut whole = match self.chunks.get(&chunk) {
            Some(kept) => kept.to_vec(),
            None => vec![0; CHUNK as usize],
        };
        whole[within..within + bytes.len()].copy_from_slice(bytes);
        if whole.iter().all(|&byte| byte == 0) {
            self.chunks.remove(&chunk);
        } else {
            self.chunks.insert(chunk, whole.into());
        }
    }

    /// Makes a range read as zeroes; the size stays.
    pub fn zero(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length);
        let touched: Vec<u64> = self
            .chunks
            .range(offset / CHUNK..end.div_ceil(CHUNK))
            .map(|(&chunk, _)| chunk)
            .collect();
        for chunk in touched {
            let start = offset.max(chunk * CHUNK) - chunk * CHUNK;
            let stop = end.min((chunk + 1) * CHUNK) - chunk * CHUNK;
            self.patch(chunk, start as usize, &vec![0; (stop - start) as usize]);
        }
    }

    /// Truncates the content, or extends it with zeroes.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size - size);
        }
        self.size = size;
    }

    /// Whether a range reads as zeroes; bytes past the end do.
    #[must_use]
    pub fn is_zero(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        self.chunks
            .range(offset / CHUNK..end.div_ceil(CHUNK))
            .all(|(&chunk, kept)| {
                let start = offset.max(chunk * CHUNK) - chunk * CHUNK;
                let stop = end.min((chunk + 1) * CHUNK) - chunk * CHUNK;
                kept[start as usize..stop as usize]
                    .iter()
                    .all(|&byte| byte == 0)
            })
    }

    /// Starts of the chunks that contain anything but zeroes.
    pub fn occupied(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.keys().map(|chunk| chunk * CHUNK)
    }

    /// Describes the first difference of two contents; `None` if they are equal.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        if self.size != other.size {
            return Some(format!("size {} against {}", self.size, other.size));
        }
        let chunks: std::collections::BTreeSet<u64> =
            self.occupied().chain(other.occupied()).collect();
        for start in chunks {
            let (mine, theirs) = (self.read(start, CHUNK), other.read(start, CHUNK));
            if let Some(at) = mine.iter().zip(&theirs).position(|(one, two)| one != two) {
                let from = at & !7;
                let until = (from + 8).min(mine.len());
                return Some(format!(
                    "bytes at {}: {:02x?} against {:02x?}",
                    start + from as u64,
                    &mine[from..until],
                    &theirs[from..until]
                ));
            }
        }
        None
    }
}

/// A set of ranges of numbers, used for allocated blocks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Ranges {
    /// start -> end, neither touching nor overlapping.
    runs: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds `start..end`.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let touching: Vec<(u64, u64)> = self
            .runs
            .range(..=end)
            .rev()
            .take_while(|&(_, &stop)| stop >= start)
            .map(|(&from, &stop)| (from, stop))
            .collect();
        let mut joined = (start, end);
        for (from, stop) in touching {
            self.runs.remove(&from);
            joined = (joined.0.min(from), joined.1.max(stop));
        }
        self.runs.insert(joined.0, joined.1);
    }

    /// Adds all ranges of another set.
    pub fn join(&mut self, other: &Self) {
        other
            .runs
            .iter()
            .for_each(|(&start, &end)| self.add(start, end));
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let overlapping: Vec<(u64, u64)> = self
            .runs
            .range(..end)
            .rev()
            .take_while(|&(_, &stop)| stop > start)
            .map(|(&from, &stop)| (from, stop))
            .collect();
        for (from, stop) in overlapping {
            self.runs.remove(&from);
            if from < start {
                self.runs.insert(from, start);
            }
            if stop > end {
                self.runs.insert(end, stop);
            }
        }
    }

    /// Divides `whole` into cells of `size` numbers and counts those that contain a number of the
    /// set.
    #[must_use]
    pub fn cells(&self, whole: &Range<u64>, size: u64) -> u64 {
        let (mut cells, mut next) = (0, 0);
        for (&start, &end) in &self.runs {
            let (start, end) = (start.max(whole.start), end.min(whole.end));
            if start < end {
                let first = ((start - whole.start) / size).max(next);
                next = (end - whole.start).div_ceil(size);
                cells += next.saturating_sub(first);
            }
        }
        cells
    }

    /// How many numbers are in the set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn cells_that_a_set_meets_are_counted_once() {
        let mut set = Ranges::default();
        for (start, end) in [(0, 3), (9, 14), (15, 16), (35, 60)] {
            set.add(start, end);
        }
        // Cells of 4 from 2 on: 2, 6 and 10, 14, then 34 and 38, which the end cuts off.
        assert_eq!(set.cells(&(2..40), 4), 6);
        assert_eq!(set.cells(&(16..35), 4), 0);
        assert_eq!(set.cells(&(0..100), 100), 1);
    }

    #[test]
    fn content_is_what_a_plain_vector_holds() {
        let mut random = Random::new(3);
        let mut content = Content::default();
        let mut plain: Vec<u8> = Vec::new();
        for _ in 0..400 {
            let offset = random.below(20_000);
            let length = random.below(9_000);
            match random.below(3) {
                0 => {
                    let bytes = pattern(random.below(3), length as usize);
                    content.write(offset, &bytes);
                    let end = offset as usize + bytes.len();
                    if plain.len() < end && !bytes.is_empty() {
                        plain.resize(end, 0);
                    }
                    if !bytes.is_empty() {
                        plain[offset as usize..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    content.resize(offset);
                    plain.resize(offset as usize, 0);
                }
                _ => {
                    content.zero(offset, length);
                    let start = (offset as usize).min(plain.len());
                    let end = (start + length as usize).min(plain.len());
                    plain[start..end].fill(0);
                }
            }
            assert_eq!(content.size(), plain.len() as u64);
            assert_eq!(content.read(0, 40_000), plain);
        }
    }

    #[test]
    fn zero_chunks_leave_no_trace() {
        let mut content = Content::default();
        content.write(0, &pattern(5, 8192));
        content.zero(0, 8192);
        let mut empty = Content::default();
        empty.resize(8192);
        assert_eq!(content, empty);
        assert!(content.is_zero(0, 1 << 40));
    }

    #[test]
    fn ranges_are_what_a_set_holds() {
        let mut random = Random::new(4);
        let mut ranges = Ranges::default();
        let mut set = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let start = random.below(100);
            let end = start + random.below(20);
            if random.chance(1, 2) {
                ranges.add(start, end);
                set.extend(start..end);
            } else {
                ranges.remove(start, end);
                set.retain(|number| !(start..end).contains(number));
            }
            assert_eq!(ranges.count(), set.len() as u64);
        }
    }
}
