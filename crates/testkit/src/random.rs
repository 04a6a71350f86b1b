//! A small random generator that gives the same numbers for the same seed on all machines and in
//! all versions: a seed printed by a failing test must mean the same run next year.

/// xoshiro256**, seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// One step of splitmix64; also usable as a hash of single words.
#[must_use]
pub fn mix(word: u64) -> u64 {
    let mut mixed = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Random {
    /// A generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let step = 0x9E37_79B9_7F4A_7C15_u64;
        let state = [0, 1, 2, 3].map(|word: u64| mix(seed.wrapping_add(step.wrapping_mul(word))));
        Self { state }
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number below `end` (zero if `end` is zero).
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.word() % end }
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True with probability `times / of`.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// One of the items, at random.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "nothing to pick from");
        &items[self.index(items.len())]
    }

    /// A random index; `weights` are the relative probabilities.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut rest = self.below(weights.iter().sum());
        for (index, &weight) in weights.iter().enumerate() {
            if rest < weight {
                return index;
            }
            rest -= weight;
        }
        0
    }

    /// An independent generator for a part of the run, so that a change in one part does not affect
    /// the others.
    pub fn fork(&mut self) -> Self {
        Self::new(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut random = Random::new(1);
        let first: Vec<u64> = (0..3).map(|_| random.word() % 1000).collect();
        let mut again = Random::new(1);
        assert_eq!(
            first,
            (0..3).map(|_| again.word() % 1000).collect::<Vec<_>>()
        );
        assert_eq!(
            mix(0),
            0xE220_A839_7B1D_CDAF,
            "splitmix64's published first output"
        );
    }

    #[test]
    fn weights_are_obeyed() {
        let mut random = Random::new(7);
        let mut seen = [0; 3];
        for _ in 0..1000 {
            seen[random.weighted(&[1, 0, 9])] += 1;
        }
        assert_eq!(seen[1], 0);
        assert!(seen[2] > 5 * seen[0]);
    }
}
