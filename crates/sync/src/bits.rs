//! A bitmap whose bits are claimed and released by one atomic operation each.
//!
//! A bit belongs to the thread that set it until that thread clears it. A search for a clear bit is
//! only a hint: another thread may claim the bit first, and then the claim continues with the next
//! one. What happens before a bit is cleared is ordered before what its next owner does.

use std::fmt;

use crate::atomic::{AtomicU64, Ordering};

/// The number of words in a cache line.
const WORDS: usize = (Bits::LINE / Bits::WORD) as usize;

/// A bitmap of fixed length.
pub struct Bits {
    count: u32,
    /// Bits after the last one are set.
    lines: Box<[Line]>,
}

impl fmt::Debug for Bits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Bits")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// A cache line of bits.
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

/// A bit that was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The bit's number.
    pub bit: u32,
    /// How many bits other threads took first.
    pub races: u32,
}

impl Bits {
    /// The number of bits in a word.
    const WORD: u32 = u64::BITS;
    /// The number of bits in a cache line: claims in different lines write different cache lines.
    pub const LINE: u32 = 64 * u8::BITS;

    /// The first `count` bits of bytes, the lowest bit of each first. Bits beyond the bytes are
    /// set.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], count: u32) -> Self {
        let word = |index: u32| {
            let start = index as usize * 8;
            let mut padded = [0xFF; 8];
            let there = bytes.get(start..).unwrap_or_default();
            let length = there.len().min(8);
            padded[..length].copy_from_slice(&there[..length]);
            let beyond = match count.saturating_sub(index * Self::WORD) {
                left if left < Self::WORD => u64::MAX << left,
                _ => 0,
            };
            u64::from_le_bytes(padded) | beyond
        };
        let lines = (0..count.div_ceil(Self::LINE)).map(|line| {
            let first = line * (Self::LINE / Self::WORD);
            Line(std::array::from_fn(|at| {
                let at = u32::try_from(at).expect("a few words");
                AtomicU64::new(word(first + at))
            }))
        });
        let lines = lines.collect();
        Self { count, lines }
    }

    /// Writes the bits over the first bytes; other bits of the last byte stay as they are.
    pub fn write_to(&self, bytes: &mut [u8]) {
        let whole = self.count as usize / 8;
        let words = self.lines.iter().flat_map(|line| &line.0);
        for (word, bytes) in words.zip(bytes[..whole].chunks_mut(8)) {
            let value = word.load(Ordering::Acquire).to_le_bytes();
            bytes.copy_from_slice(&value[..bytes.len()]);
        }
        for bit in self.count / 8 * 8..self.count {
            let byte = &mut bytes[whole];
            let mask = 1 << (bit % 8);
            *byte = (*byte & !mask) | if self.is_set(bit) { mask } else { 0 };
        }
    }

    /// The number of bits.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The number of clear bits.
    #[must_use]
    pub fn count_clear(&self) -> u32 {
        self.lines.iter().map(Line::count_clear).sum()
    }

    /// Whether a bit is set.
    #[must_use]
    pub fn is_set(&self, bit: u32) -> bool {
        self.word_of(bit).load(Ordering::Acquire) >> (bit % Self::WORD) & 1 == 1
    }

    /// The first bit from `from` on that is clear at the moment.
    #[must_use]
    pub fn next_clear(&self, from: u32) -> Option<u32> {
        if from >= self.count {
            return None;
        }
        let mut mask = u64::MAX << (from % Self::WORD);
        for index in from / Self::WORD..self.count.div_ceil(Self::WORD) {
            let clear = !self.word(index).load(Ordering::Relaxed) & mask;
            if clear != 0 {
                return Some(index * Self::WORD + clear.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Sets a bit; true if it was clear, and so belongs to the caller now.
    pub fn set(&self, bit: u32) -> bool {
        let mask = 1 << (bit % Self::WORD);
        self.word_of(bit).fetch_or(mask, Ordering::AcqRel) & mask == 0
    }

    /// Clears a bit; returns whether it was set.
    pub fn clear(&self, bit: u32) -> bool {
        let mask = 1 << (bit % Self::WORD);
        self.word_of(bit).fetch_and(!mask, Ordering::AcqRel) & mask != 0
    }

    /// Claims a clear bit of one line of [`Bits::LINE`].
    #[must_use]
    pub fn claim_in_line(&self, line: u32) -> Option<Claim> {
        let first = line.checked_mul(Self::LINE)?;
        let mut races = 0;
        loop {
            let bit = self.next_clear(first)?;
            if bit / Self::LINE != line {
                return None;
            }
            if self.set(bit) {
                return Some(Claim { bit, races });
            }
            races += 1;
        }
    }

    /// The line with the most clear bits at the moment, and how many it has; of several, the first
    /// in the circular order from `first` on. `first` is taken modulo the number of lines.
    #[must_use]
    pub fn roomiest_line(&self, first: u32) -> Option<(u32, u32)> {
        let count = u32::try_from(self.lines.len()).expect("fewer than its bits");
        let first = first.checked_rem(count)?;
        let mut best = None;
        for line in (first..count).chain(0..first) {
            let clear = self.lines[line as usize].count_clear();
            if best.is_none_or(|(_, most)| clear > most) {
                best = Some((line, clear));
            }
            if clear == Self::LINE {
                break;
            }
        }
        best
    }

    /// How many bits of a line are clear at the moment; 0 for a line that does not exist.
    #[must_use]
    pub fn room_in_line(&self, line: u32) -> u32 {
        self.lines.get(line as usize).map_or(0, Line::count_clear)
    }

    fn word_of(&self, bit: u32) -> &AtomicU64 {
        assert!(bit < self.count, "bit {bit} of {}", self.count);
        self.word(bit / Self::WORD)
    }

    fn word(&self, index: u32) -> &AtomicU64 {
        let index = index as usize;
        &self.lines[index / WORDS].0[index % WORDS]
    }
}

impl Line {
    fn count_clear(&self) -> u32 {
        let words = self.0.iter();
        words
            .map(|word| word.load(Ordering::Relaxed).count_zeros())
            .sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Bits;
    use crate::thread;

    #[test]
    fn bytes_are_written_back_and_bits_after_the_last_one_stay() {
        for count in [1, 7, 8, 63, 64, 65, 100, 128] {
            let bytes: Vec<u8> = (0..20u8).map(|byte| byte.wrapping_mul(37)).collect();
            let bits = Bits::from_bytes(&bytes, count);
            let mut written = vec![0xA5; 20];
            bits.write_to(&mut written);
            let bit = |bytes: &[u8], bit: u32| bytes[bit as usize / 8] >> (bit % 8) & 1;
            for at in 0..160 {
                let expected = if at < count { &bytes } else { &vec![0xA5; 20] };
                assert_eq!(bit(&written, at), bit(expected, at), "{count} {at}");
            }
            let clear = (0..count).filter(|&at| bit(&bytes, at) == 0).count();
            assert_eq!(bits.count_clear() as usize, clear);
        }
    }

    #[test]
    fn of_equal_lines_the_first_in_circular_order_is_the_roomiest() {
        let bits = Bits::from_bytes(&[0; 400], 5 * 512 - 20);
        assert_eq!(bits.roomiest_line(0), Some((0, 512)));
        assert_eq!(bits.roomiest_line(5 + 2), Some((2, 512)), "five lines");
        for line in 0..4 {
            let claim = bits.claim_in_line(line).map(|claim| claim.bit);
            assert_eq!(claim, Some(line * 512));
        }
        assert!(bits.set(570));
        assert_eq!(bits.roomiest_line(1), Some((2, 511)));
        assert_eq!(bits.roomiest_line(4), Some((0, 511)), "the last has 492");
        (2049..2540).for_each(|bit| assert!(bits.set(bit)));
        assert_eq!(bits.claim_in_line(4).map(|claim| claim.bit), Some(2048));
        assert_eq!(bits.claim_in_line(4), None);
        assert_eq!(bits.claim_in_line(5), None, "there is none");
        assert_eq!(bits.claim_in_line(u32::MAX), None);
        assert_eq!(Bits::from_bytes(&[], 0).roomiest_line(3), None);
    }

    #[test]
    fn every_bit_is_claimed_once() {
        let bits = Bits::from_bytes(&[0; 100], 777);
        let claim = || (0..2).find_map(|line| bits.claim_in_line(line));
        let mut claimed = thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Vec::new();
                        let mut steps = 0;
                        while let Some(claim) = claim() {
                            mine.push(claim.bit);
                            steps += 1;
                            if steps % 5 == 0 {
                                assert!(bits.clear(mine.swap_remove(mine.len() / 2)));
                            }
                        }
                        mine
                    })
                })
                .collect();
            let mut claimed = Vec::new();
            for worker in workers {
                claimed.extend(worker.join().expect("no panic"));
            }
            claimed
        });
        while let Some(claim) = claim() {
            claimed.push(claim.bit);
        }
        claimed.sort_unstable();
        assert_eq!(claimed, (0..777).collect::<Vec<_>>());
        assert!(!bits.set(5) && bits.clear(5) && !bits.clear(5) && bits.set(5));
        assert_eq!(bits.next_clear(777), None);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use super::Bits;
    use crate::thread;

    #[test]
    fn two_claims_and_a_release_never_share_a_bit() {
        crate::model(|| {
            let bits = Arc::new(Bits::from_bytes(&[0b1111_1001], 8));
            let other = {
                let bits = Arc::clone(&bits);
                thread::spawn("other", move || {
                    let mine = bits.claim_in_line(0).map(|claim| claim.bit);
                    bits.clear(0);
                    mine
                })
            };
            let mine = bits.claim_in_line(0).map(|claim| claim.bit);
            let others = other.join().expect("no panic");
            assert!(mine.is_some() && others.is_some());
            assert_ne!(mine, others);
        });
    }
}
