//! The pieces of data of a file with holes, as an archive has them.
//!
//! Readers accept a limited number of pieces, and each takes memory here and there. Where a file
//! has more, its shortest holes become data, as few as needed: they are written as zeroes. A file
//! of a hostile image can have a piece for each of its blocks, so no more than twice the limit are
//! in memory at a time.

/// The data of a file, which is added in order.
pub(super) struct Pieces {
    /// Start and end of each, in bytes.
    pieces: Vec<(u64, u64)>,
    most: usize,
    /// Bytes of the holes that became data.
    filled: u64,
}

impl Pieces {
    /// No data yet; in the end `most` pieces of it at most, which is one or more.
    pub(super) fn new(most: usize) -> Self {
        Self {
            pieces: Vec::new(),
            most,
            filled: 0,
        }
    }

    /// Adds data behind all before.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        if self.pieces.len() == 2 * self.most {
            self.fill_holes();
        }
        self.pieces.push((start, end));
    }

    /// The pieces, and the bytes of holes that are data now.
    pub(super) fn finish(mut self) -> (Vec<(u64, u64)>, u64) {
        self.fill_holes();
        (self.pieces, self.filled)
    }

    /// Fills the shortest holes, of equal ones the first, until there are no more pieces than
    /// wanted. A hole that is filled before all pieces are known is not among the longest of the
    /// first ones, so it is not among the longest of all.
    fn fill_holes(&mut self) {
        let Some(excess) = self.pieces.len().checked_sub(self.most + 1) else {
            return;
        };
        let holes = self.pieces.windows(2).zip(1..);
        let holes = holes.map(|(pair, behind): (_, usize)| (pair[1].0 - pair[0].1, behind));
        let mut holes: Vec<(u64, usize)> = holes.collect();
        let (_, &mut longest, _) = holes.select_nth_unstable(excess);
        drop(holes);
        let mut kept: Vec<(u64, u64)> = Vec::with_capacity(2 * self.most);
        for (at, (start, end)) in std::mem::take(&mut self.pieces).into_iter().enumerate() {
            match kept.last_mut() {
                Some(before) if (start - before.1, at) <= longest => {
                    self.filled += start - before.1;
                    before.1 = end;
                }
                _ => kept.push((start, end)),
            }
        }
        self.pieces = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::Pieces;

    /// Pieces of ten bytes with holes of these lengths between them.
    fn of_holes(most: usize, holes: &[u64]) -> (Vec<(u64, u64)>, u64) {
        let mut pieces = Pieces::new(most);
        let mut at = 0;
        pieces.add(at, at + 10);
        for hole in holes {
            at += 10 + hole;
            pieces.add(at, at + 10);
            assert!(pieces.pieces.len() <= 2 * most);
        }
        pieces.finish()
    }

    #[test]
    fn few_pieces_stay_as_they_are() {
        let pieces = vec![(0, 10), (11, 21), (23, 33)];
        assert_eq!(of_holes(3, &[1, 2]), (pieces.clone(), 0));
        assert_eq!(of_holes(4, &[1, 2]), (pieces, 0));
        assert_eq!(Pieces::new(1).finish(), (Vec::new(), 0));
    }

    #[test]
    fn the_shortest_holes_become_data() {
        assert_eq!(of_holes(2, &[5, 1, 3]), (vec![(0, 10), (15, 49)], 4));
        assert_eq!(of_holes(1, &[5, 1, 3]), (vec![(0, 49)], 9));
        // Of equal ones no more than needed.
        assert_eq!(
            of_holes(3, &[7, 7, 7]),
            (vec![(0, 27), (34, 44), (51, 61)], 7)
        );
    }

    #[test]
    fn the_longest_holes_stay_wherever_they_are() {
        let holes: Vec<u64> = (0..1000).map(|at| at * 7919 % 1009 + 1).collect();
        let mut sorted = holes.clone();
        sorted.sort_unstable();
        for most in [1, 2, 10, 499, 500, 501, 1000, 1001] {
            let (pieces, filled) = of_holes(most, &holes);
            assert_eq!(pieces.len(), most);
            assert_eq!(filled, sorted[..1001 - most].iter().sum::<u64>(), "{most}");
            let data: u64 = pieces.iter().map(|(start, end)| end - start).sum();
            assert_eq!(data, 10_010 + filled);
        }
    }
}
