//! Pseudo-random numbers that repeat for a seed (splitmix64): cheap enough to draw in a step.

/// A sequence of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed and a number within it, such as a task's.
    #[must_use]
    pub fn new(seed: u64, number: u32) -> Self {
        let mut row = Self(seed ^ u64::from(number).wrapping_mul(0xA24B_AED4_963E_E407));
        // Sequences of neighbouring seeds differ only after one step.
        row.draw();
        row
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// The next number below `end`, which is not zero.
    pub fn below(&mut self, end: u32) -> u32 {
        let product = (self.draw() >> 32) * u64::from(end);
        u32::try_from(product >> 32).expect("a product with less than 2^32, less 32 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn rows_repeat_and_differ() {
        let row = |seed, number| {
            let mut random = Random::new(seed, number);
            (0..8).map(move |_| random.below(100)).collect::<Vec<_>>()
        };
        assert_eq!(row(1, 0), row(1, 0));
        assert_ne!(row(1, 0), row(1, 1));
        assert_ne!(row(1, 0), row(2, 0));
        assert!(row(3, 3).iter().all(|&number| number < 100));
    }
}
