//! Where the records of a leaf start: a bit for every 4 bytes of it. So a record's place among the
//! others is found without a look at them, and a record that comes or goes changes one word.

/// Bytes to which the offsets and the lengths of records are multiples.
pub(super) const UNIT: usize = 4;

/// The offsets at which records start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Starts(Box<[u64]>);

impl Starts {
    /// None, in a leaf of `length` bytes.
    pub(super) fn none(length: usize) -> Self {
        Self(vec![0; length.div_ceil(UNIT).div_ceil(64)].into())
    }

    /// Adds the start of a record; ignored if it is behind the leaf.
    pub(super) fn insert(&mut self, offset: usize) {
        let (word, bit) = place(offset);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    /// Removes the start of a record.
    pub(super) fn remove(&mut self, offset: usize) {
        let (word, bit) = place(offset);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    pub(super) fn contains(&self, offset: usize) -> bool {
        let (word, bit) = place(offset);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// The number of records that start before `offset`.
    pub(super) fn count_before(&self, offset: usize) -> usize {
        let (word, bit) = place(offset);
        let word = word.min(self.0.len());
        let whole = self.0[..word].iter().map(|word| word.count_ones());
        let part = self
            .0
            .get(word)
            .map_or(0, |word| (word & (bit - 1)).count_ones());
        (whole.sum::<u32>() + part) as usize
    }

    /// The offset of the last record that starts before `offset`.
    pub(super) fn before(&self, offset: usize) -> Option<usize> {
        let (number, bit) = place(offset);
        let part = self.0.get(number).map_or(0, |word| word & (bit - 1));
        let (number, word) = if part == 0 {
            let whole = &self.0[..number.min(self.0.len())];
            let number = whole.iter().rposition(|word| *word != 0)?;
            (number, whole[number])
        } else {
            (number, part)
        };
        Some((number * 64 + word.ilog2() as usize) * UNIT)
    }

    /// The offset of the record with this index; `None` if there are not so many.
    pub(super) fn nth(&self, index: usize) -> Option<usize> {
        let mut left = u32::try_from(index).ok()?;
        let (number, word) = self.0.iter().enumerate().find(|(_, word)| {
            let count = word.count_ones();
            let is_within = left < count;
            if !is_within {
                left -= count;
            }
            is_within
        })?;
        let word = (0..left).fold(*word, |word, _| word & (word - 1));
        Some((number * 64 + word.trailing_zeros() as usize) * UNIT)
    }

    /// All words.
    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }

    /// The word of an offset, or nothing if that is behind the leaf.
    pub(super) fn word_of(&self, offset: usize) -> &[u64] {
        let word = place(offset).0;
        self.0.get(word..=word).unwrap_or_default()
    }
}

/// The index of a word, and the bit in it.
fn place(offset: usize) -> (usize, u64) {
    let number = offset / UNIT;
    (number / 64, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::Starts;

    #[test]
    fn starts_are_counted_and_found() {
        let offsets = [0, 12, 24, 252, 256, 260, 1000, 4080];
        let mut starts = Starts::none(4084);
        for offset in offsets {
            starts.insert(offset);
        }
        starts.insert(1 << 20);
        for (index, offset) in offsets.into_iter().enumerate() {
            assert_eq!(starts.nth(index), Some(offset));
            assert_eq!(starts.count_before(offset), index);
            assert_eq!(starts.count_before(offset + 4), index + 1);
            assert!(starts.contains(offset) && !starts.contains(offset + 4 * 9));
            let before = index.checked_sub(1).map(|before| offsets[before]);
            assert_eq!(starts.before(offset), before);
            assert_eq!(starts.before(offset + 1), before);
            assert_eq!(starts.before(offset + 4), Some(offset));
        }
        assert_eq!(starts.nth(offsets.len()), None);
        assert_eq!(starts.count_before(1 << 20), offsets.len());
        assert_eq!(starts.before(1 << 20), Some(4080));
        starts.remove(252);
        assert_eq!(starts.nth(3), Some(256));
        assert!(!starts.contains(252) && !starts.contains(1 << 20));
    }
}
