//! Bitmaps of blocks and inodes: one bit a cluster or inode, lowest bit of the lowest byte first.
//!
//! A bitmap fills a block, but a group may have fewer clusters or inodes than the block has bits;
//! the bits after the last one are padding and must be 1 (`set_padding`). The checksum covers the
//! bytes that a full group needs, whatever the size of this group, and does not depend on the
//! group's number. Format: the kernel's `Documentation/filesystems/ext4/bitmaps.rst`.

use std::ops::Range;

use crate::checksum::crc32c;

const WORD_BITS: u32 = u64::BITS;

/// Whether a bit is set. Bits past the end of the bitmap count as set, since they are never free.
#[must_use]
pub fn test(bitmap: &[u8], bit: u32) -> bool {
    bitmap
        .get(byte_of(bit))
        .is_none_or(|byte| byte & mask_of(bit) != 0)
}

/// Sets a bit; returns whether it was clear.
///
/// # Panics
///
/// If `bit` is past the end of the bitmap.
pub fn set(bitmap: &mut [u8], bit: u32) -> bool {
    let byte = &mut bitmap[byte_of(bit)];
    let was_clear = *byte & mask_of(bit) == 0;
    *byte |= mask_of(bit);
    was_clear
}

/// Clears a bit; returns whether it was set.
///
/// # Panics
///
/// If `bit` is past the end of the bitmap.
pub fn clear(bitmap: &mut [u8], bit: u32) -> bool {
    let byte = &mut bitmap[byte_of(bit)];
    let was_set = *byte & mask_of(bit) != 0;
    *byte &= !mask_of(bit);
    was_set
}

/// Sets all bits of a range.
///
/// # Panics
///
/// If the range reaches past the end of the bitmap.
pub fn set_range(bitmap: &mut [u8], range: Range<u32>) {
    change_range(bitmap, range, |byte, mask| *byte |= mask);
}

/// Clears all bits of a range.
///
/// # Panics
///
/// If the range reaches past the end of the bitmap.
pub fn clear_range(bitmap: &mut [u8], range: Range<u32>) {
    change_range(bitmap, range, |byte, mask| *byte &= !mask);
}

/// Sets all bits from `valid_bits` to the end of the block, the padding.
pub fn set_padding(bitmap: &mut [u8], valid_bits: u32) {
    let end = length_in_bits(bitmap);
    set_range(bitmap, valid_bits.min(end)..end);
}

/// Whether all bits from `valid_bits` to the end of the block are set.
#[must_use]
pub fn has_padding(bitmap: &[u8], valid_bits: u32) -> bool {
    next_zero(bitmap, valid_bits, length_in_bits(bitmap)).is_none()
}

/// The first clear bit at or after `from` and before `end`.
#[must_use]
pub fn next_zero(bitmap: &[u8], from: u32, end: u32) -> Option<u32> {
    next(bitmap, from, end, u64::MAX)
}

/// The first set bit at or after `from` and before `end`.
#[must_use]
pub fn next_one(bitmap: &[u8], from: u32, end: u32) -> Option<u32> {
    next(bitmap, from, end, 0)
}

/// The number of clear bits in a range.
#[must_use]
pub fn count_zeros(bitmap: &[u8], range: Range<u32>) -> u32 {
    let range = range.start..range.end.min(length_in_bits(bitmap));
    let (mut count, mut at) = (0, range.start);
    while at < range.end {
        let (word, first, taken) = window(bitmap, at, range.end);
        count += (!word & field(first, taken)).count_ones();
        at += taken;
    }
    count
}

/// The checksum of a block bitmap: crc32c from `seed` over `clusters_per_group / 8` bytes.
#[must_use]
pub fn block_bitmap_checksum(seed: u32, bitmap: &[u8], clusters_per_group: u32) -> u32 {
    checksum(seed, bitmap, clusters_per_group)
}

/// The checksum of an inode bitmap: crc32c from `seed` over `inodes_per_group / 8` bytes.
#[must_use]
pub fn inode_bitmap_checksum(seed: u32, bitmap: &[u8], inodes_per_group: u32) -> u32 {
    checksum(seed, bitmap, inodes_per_group)
}

fn checksum(seed: u32, bitmap: &[u8], bits: u32) -> u32 {
    let covered = byte_of(bits).min(bitmap.len());
    crc32c(seed, &bitmap[..covered])
}

fn byte_of(bit: u32) -> usize {
    usize::try_from(bit / 8).expect("an address has at least 32 bits")
}

fn mask_of(bit: u32) -> u8 {
    1 << (bit % 8)
}

fn length_in_bits(bitmap: &[u8]) -> u32 {
    u32::try_from(bitmap.len()).map_or(u32::MAX, |bytes| bytes.saturating_mul(8))
}

fn change_range(bitmap: &mut [u8], range: Range<u32>, change: impl Fn(&mut u8, u8)) {
    if range.is_empty() {
        return;
    }
    let (first, last) = (byte_of(range.start), byte_of(range.end - 1));
    let head = u8::MAX << (range.start % 8);
    let tail = u8::MAX >> (7 - (range.end - 1) % 8);
    if first == last {
        return change(&mut bitmap[first], head & tail);
    }
    change(&mut bitmap[first], head);
    bitmap[first + 1..last]
        .iter_mut()
        .for_each(|byte| change(byte, u8::MAX));
    change(&mut bitmap[last], tail);
}

/// The 64-bit word that contains bit `at`, the position of `at` in it, and the number of its bits
/// from `at` on that are before `end`.
fn window(bitmap: &[u8], at: u32, end: u32) -> (u64, u32, u32) {
    let start = at / WORD_BITS * WORD_BITS;
    let rest = &bitmap[byte_of(start)..];
    let word = match rest.first_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(bytes)
        }
    };
    let first = at - start;
    (word, first, (WORD_BITS - first).min(end - at))
}

/// `count` (1 to 64) ones from bit `first` on.
fn field(first: u32, count: u32) -> u64 {
    (u64::MAX >> (WORD_BITS - count)) << first
}

fn next(bitmap: &[u8], from: u32, end: u32, flip: u64) -> Option<u32> {
    let end = end.min(length_in_bits(bitmap));
    let mut at = from;
    while at < end {
        let (word, first, taken) = window(bitmap, at, end);
        let found = (word ^ flip) & field(first, taken);
        if found != 0 {
            return Some(at - first + found.trailing_zeros());
        }
        at += taken;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{
        clear, clear_range, count_zeros, has_padding, next_one, next_zero, set, set_padding,
        set_range, test,
    };
    use proptest::prelude::*;

    #[test]
    fn single_bits_tell_what_they_were() {
        let mut bitmap = [0; 2];
        assert!(set(&mut bitmap, 9));
        assert!(!set(&mut bitmap, 9));
        assert_eq!(bitmap, [0, 2]);
        assert!(clear(&mut bitmap, 9));
        assert!(!clear(&mut bitmap, 9));
        assert!(test(&bitmap, 16), "past the end nothing is free");
    }

    #[test]
    fn padding_reaches_the_end_of_the_block() {
        let mut bitmap = [0; 4];
        set_padding(&mut bitmap, 13);
        assert_eq!(bitmap, [0, 0xE0, 0xFF, 0xFF]);
        assert!(has_padding(&bitmap, 13) && !has_padding(&bitmap, 12));
        set_padding(&mut bitmap, 99);
    }

    proptest! {
        #[test]
        fn agrees_with_the_bits_one_by_one(
            bitmap in proptest::collection::vec(any::<u8>(), 1..40),
            from in 0u32..330,
            length in 0u32..330,
        ) {
            let bits = u32::try_from(bitmap.len()).expect("short") * 8;
            let end = (from + length).min(bits);
            let naive = |value| (from..end).find(|&bit| test(&bitmap, bit) == value);
            prop_assert_eq!(next_zero(&bitmap, from, from + length), naive(false));
            prop_assert_eq!(next_one(&bitmap, from, from + length), naive(true));
            let zeros = (from..end).filter(|&bit| !test(&bitmap, bit)).count();
            prop_assert_eq!(usize::try_from(count_zeros(&bitmap, from..from + length)), Ok(zeros));
            let start = from.min(end);
            let mut filled = bitmap.clone();
            set_range(&mut filled, start..end);
            let mut emptied = bitmap.clone();
            clear_range(&mut emptied, start..end);
            for bit in 0..bits {
                let inside = (start..end).contains(&bit);
                prop_assert_eq!(test(&filled, bit), inside || test(&bitmap, bit));
                prop_assert_eq!(test(&emptied, bit), !inside && test(&bitmap, bit));
            }
        }
    }
}
