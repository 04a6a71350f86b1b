//! Ranges of bits in an array of words: the representation of a level of the buddy.
//!
//! Bit `n` is bit `n % 64` of word `n / 64`. Ranges are half open and must be inside the array.

const WORD: u32 = u64::BITS;

/// The number of words for `bits` bits.
pub fn words_for(bits: u32) -> usize {
    bits.div_ceil(WORD) as usize
}

pub fn test(words: &[u64], bit: u32) -> bool {
    words[index(bit)] >> (bit % WORD) & 1 == 1
}

pub fn set(words: &mut [u64], bit: u32) {
    words[index(bit)] |= 1 << (bit % WORD);
}

/// Sets all bits of a range.
pub fn set_range(words: &mut [u64], start: u32, end: u32) {
    for_each_mask(start, end, |word, mask| words[word] |= mask);
}

/// Clears all bits of a range; returns how many were set.
pub fn clear_range(words: &mut [u64], start: u32, end: u32) -> u32 {
    let mut cleared = 0;
    for_each_mask(start, end, |word, mask| {
        cleared += (words[word] & mask).count_ones();
        words[word] &= !mask;
    });
    cleared
}

/// How many bits of a range are set.
pub fn count(words: &[u64], start: u32, end: u32) -> u32 {
    let mut set = 0;
    for_each_mask(start, end, |word, mask| {
        set += (words[word] & mask).count_ones()
    });
    set
}

/// The first set bit in a range.
pub fn next_set(words: &[u64], start: u32, end: u32) -> Option<u32> {
    next(start, end, |word| words[word])
}

/// The first clear bit in a range.
pub fn next_clear(words: &[u64], start: u32, end: u32) -> Option<u32> {
    next(start, end, |word| !words[word])
}

/// The last clear bit in a range.
pub fn last_clear(words: &[u64], start: u32, end: u32) -> Option<u32> {
    let mut end = end;
    while start < end {
        let word = index(end - 1);
        let base = base_of(word);
        let below = if end - base == WORD {
            u64::MAX
        } else {
            (1 << (end - base)) - 1
        };
        let clear = !words[word] & below;
        if clear != 0 {
            let bit = base + WORD - 1 - clear.leading_zeros();
            return (bit >= start).then_some(bit);
        }
        end = base;
    }
    None
}

fn index(bit: u32) -> usize {
    (bit / WORD) as usize
}

fn base_of(word: usize) -> u32 {
    u32::try_from(word).expect("arrays are shorter than 2^32 bits") * WORD
}

fn next(start: u32, end: u32, word_at: impl Fn(usize) -> u64) -> Option<u32> {
    let mut start = start;
    while start < end {
        let word = index(start);
        let found = word_at(word) & (u64::MAX << (start % WORD));
        if found != 0 {
            let bit = base_of(word) + found.trailing_zeros();
            return (bit < end).then_some(bit);
        }
        start = base_of(word) + WORD;
    }
    None
}

fn for_each_mask(start: u32, end: u32, mut visit: impl FnMut(usize, u64)) {
    let mut start = start;
    while start < end {
        let word = index(start);
        let stop = end.min(base_of(word) + WORD);
        let width = stop - start;
        let ones = if width == WORD {
            u64::MAX
        } else {
            (1 << width) - 1
        };
        visit(word, ones << (start % WORD));
        start = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every range of an array of several words, compared with single bits.
    #[test]
    fn ranges_agree_with_single_bits() {
        const BITS: u32 = 200;
        let mut pattern = vec![0u64; words_for(BITS)];
        for bit in (0..BITS).filter(|bit| bit % 7 < 3 || (64..130).contains(bit)) {
            set(&mut pattern, bit);
        }
        for start in (0..BITS).step_by(3) {
            for end in start..=BITS {
                let bits = || (start..end).filter(|&bit| test(&pattern, bit));
                assert_eq!(
                    count(&pattern, start, end),
                    u32::try_from(bits().count()).expect("small")
                );
                assert_eq!(next_set(&pattern, start, end), bits().next());
                let mut clear = (start..end).filter(|&bit| !test(&pattern, bit));
                assert_eq!(next_clear(&pattern, start, end), clear.clone().next());
                assert_eq!(last_clear(&pattern, start, end), clear.next_back());
            }
        }
    }

    #[test]
    fn setting_and_clearing_stays_inside_the_range() {
        let mut words = vec![0u64; words_for(300)];
        set_range(&mut words, 60, 260);
        assert_eq!(count(&words, 0, 300), 200);
        assert_eq!(clear_range(&mut words, 0, 64), 4);
        assert_eq!(clear_range(&mut words, 128, 192), 64);
        assert_eq!(
            (next_set(&words, 0, 300), next_clear(&words, 64, 300)),
            (Some(64), Some(128))
        );
        assert_eq!(count(&words, 0, 300), 132);
    }
}
