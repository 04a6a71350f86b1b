//! The pseudorandom numbers of the tests (splitmix64), reproducible by their seed.

#![allow(dead_code, reason = "each test file uses its share")]

/// A generator; its value is the seed.
pub struct Random(pub u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below the bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }
}
