//! A fast hash for keys that are numbers: blocks, inodes, groups.
//!
//! Each number is mixed in by one widening multiplication, which spreads every bit of the key over
//! the whole result. Images may be hostile, so in release builds the start value differs from
//! process to process, and an image cannot contain numbers that all fall into one bucket; in debug
//! builds it is fixed, so that a failing run can be repeated. [`NeighbourHash`] has no start value:
//! it only chooses the shard of a map, whose tables use [`NumberHash`], so prepared numbers make
//! one shard busy but no table slow.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

/// The bits of the golden ratio: odd, and without a pattern.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fibonacci hashing: maps neighbouring numbers to distant ones from `0` to `2^32 - 1`, in the same
/// way in every process. The result is well spread also modulo a power of two, or scaled.
#[must_use]
pub const fn spread(number: u64) -> u32 {
    (number.wrapping_mul(MULTIPLIER) >> 32) as u32
}

static START: LazyLock<u64> = LazyLock::new(|| {
    if cfg!(any(debug_assertions, feature = "virtual")) {
        0x243F_6A88_85A3_08D3
    } else {
        std::hash::RandomState::new().hash_one(MULTIPLIER)
    }
});

/// A map with numbers as keys, for use under one lock.
pub type NumberMap<K, V> = HashMap<K, V, NumberHash>;

/// Builds [`NumberHasher`]s.
#[derive(Clone, Copy, Debug)]
pub struct NumberHash {
    start: u64,
}

impl Default for NumberHash {
    fn default() -> Self {
        Self { start: *START }
    }
}

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    #[inline]
    fn build_hasher(&self) -> NumberHasher {
        NumberHasher { state: self.start }
    }
}

/// Hashes numbers; bytes are hashed eight at a time.
#[derive(Clone, Copy, Debug)]
pub struct NumberHasher {
    state: u64,
}

impl Hasher for NumberHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(MULTIPLIER);
        // Both halves: the upper one depends on all bits, the lower one is different for different
        // numbers.
        self.state = (product as u64) ^ ((product >> 64) as u64).rotate_left(32);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // A last multiplication, so that the top bits (the table's tags) and the bottom ones (its
        // buckets) both depend on every bit of the last number.
        let product = u128::from(self.state) * u128::from(MULTIPLIER);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

/// Builds [`NeighbourHasher`]s: numbers that differ only in their lowest `bits` bits have the same
/// hash.
///
/// Only for choosing shards, by the bits from the 32nd on: consecutive neighbourhoods, or equally
/// spaced ones, are placed in shards as far from each other as possible, and share a shard only if
/// there are about as many of them as shards. With a random hash, every other one would share a
/// shard.
#[derive(Clone, Copy, Debug)]
pub struct NeighbourHash {
    bits: u32,
}

impl NeighbourHash {
    /// Neighbourhoods of 2 to the power of `bits`, fewer than 64.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self { bits }
    }
}

impl BuildHasher for NeighbourHash {
    type Hasher = NeighbourHasher;

    #[inline]
    fn build_hasher(&self) -> NeighbourHasher {
        NeighbourHasher {
            state: 0,
            bits: self.bits,
        }
    }
}

/// Hashes one number by multiplication (Fibonacci hashing).
#[derive(Clone, Copy, Debug)]
pub struct NeighbourHasher {
    state: u64,
    bits: u32,
}

impl Hasher for NeighbourHasher {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.state = self
            .state
            .wrapping_add(number >> self.bits)
            .wrapping_mul(MULTIPLIER);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The upper bits of the product are well spread, the uppermost ones best.
        self.state.reverse_bits().rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::{NeighbourHash, NumberHash};

    /// Numbers of `count` keys fall into 64 buckets by each of the bit ranges that maps use; no
    /// bucket may get more than twice its share.
    fn assert_spread(keys: impl Iterator<Item = u64> + Clone) {
        let hash = NumberHash::default();
        let count = keys.clone().count();
        for shift in [0, 32, 58] {
            let mut buckets = [0usize; 64];
            for key in keys.clone() {
                buckets[(hash.hash_one(key) >> shift) as usize % 64] += 1;
            }
            let fullest = buckets.into_iter().max().expect("there are buckets");
            assert!(
                fullest < 2 * count / 64,
                "{fullest} of {count} share a bucket at bit {shift}"
            );
        }
    }

    #[test]
    fn keys_that_differ_little_spread() {
        assert_spread(0..64 * 256);
        assert_spread((0..64 * 256).map(|number| number << 15));
        assert_spread((0..64 * 256).map(|number| number << 45));
    }

    #[test]
    fn neighbours_have_one_hash() {
        let hash = NeighbourHash::new(4);
        assert_eq!(hash.hash_one(32u32), hash.hash_one(47u32));
        assert_ne!(hash.hash_one(31u32), hash.hash_one(32u32));
        assert_ne!(hash.hash_one(47u32), hash.hash_one(48u32));
    }

    /// How many of `count` neighbourhoods, each `apart` from the one before, meet others in 1024
    /// shards.
    fn meet(count: u32, apart: u32) -> usize {
        let hash = NeighbourHash::new(6);
        let shards = (0..count).map(|number| (hash.hash_one((number * apart) << 6) >> 32) & 1023);
        let mut taken = [0; 1024];
        shards.for_each(|shard| taken[shard as usize] += 1);
        taken.iter().filter(|&&taken| taken > 1).sum::<usize>()
    }

    #[test]
    fn neighbourhoods_in_a_row_or_equally_far_apart_hardly_meet() {
        for apart in [1, 2, 3, 8, 16, 24, 64, 128, 512, 1000] {
            assert_eq!(meet(96, apart), 0, "{apart} apart");
        }
        for apart in [1, 64, 128, 512] {
            assert_eq!(meet(400, apart), 0, "{apart} apart");
        }
        // By chance it would be every other one.
        assert!(meet(768, 1) < 100);
    }

    #[test]
    fn strings_that_differ_differ() {
        let hash = NumberHash::default();
        assert_ne!(hash.hash_one("user.a"), hash.hash_one("user.b"));
        assert_ne!(
            hash.hash_one(b"a\0".as_slice()),
            hash.hash_one(b"a".as_slice())
        );
    }
}
