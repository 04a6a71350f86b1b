//! Two bytes for each record of a leaf, in the records' order: the fingerprints of their names and
//! their rooms, as two columns in one allocation. So the columns lie close together, and what
//! refers to them is small.

use std::fmt;

/// Two columns of as many bytes.
#[derive(Clone)]
pub(super) struct Columns {
    /// The first column and, from the middle on, the second.
    bytes: Box<[u8]>,
    /// Bytes of each that are used: at most half of `bytes`.
    used: u32,
}

impl Columns {
    /// Empty, with room for `records`.
    pub(super) fn with_room(records: usize) -> Self {
        Self {
            bytes: vec![0; 2 * records].into(),
            used: 0,
        }
    }

    fn used(&self) -> usize {
        self.used as usize
    }

    fn columns_mut(&mut self) -> [&mut [u8]; 2] {
        let middle = self.bytes.len() / 2;
        self.bytes.split_at_mut(middle).into()
    }

    /// The fingerprints.
    pub(super) fn tags(&self) -> &[u8] {
        &self.bytes[..self.used()]
    }

    /// The rooms.
    pub(super) fn rooms(&self) -> &[u8] {
        let middle = self.bytes.len() / 2;
        &self.bytes[middle..middle + self.used()]
    }

    /// Changes what is known of a record; ignored if there is no such record.
    pub(super) fn set(&mut self, index: usize, tag: u8, room: u8) {
        if index < self.used() {
            let [tags, rooms] = self.columns_mut();
            (tags[index], rooms[index]) = (tag, room);
        }
    }

    /// Changes the room of a record; ignored if there is no such record.
    pub(super) fn set_room(&mut self, index: usize, room: u8) {
        if index < self.used() {
            self.columns_mut()[1][index] = room;
        }
    }

    /// Adds a record before the one at `index`, or as the last.
    pub(super) fn insert(&mut self, index: usize, tag: u8, room: u8) {
        let used = self.used();
        let index = index.min(used);
        if 2 * used == self.bytes.len() {
            self.grow();
        }
        for (column, byte) in self.columns_mut().into_iter().zip([tag, room]) {
            column.copy_within(index..used, index + 1);
            column[index] = byte;
        }
        self.used += 1;
    }

    /// Removes a record; ignored if there is no such record.
    pub(super) fn remove(&mut self, index: usize) {
        let used = self.used();
        if index < used {
            for column in self.columns_mut() {
                column.copy_within(index + 1..used, index);
            }
            self.used -= 1;
        }
    }

    fn grow(&mut self) {
        let mut larger = Self::with_room((2 * self.used()).max(4));
        let old = [self.tags(), self.rooms()];
        for (column, old) in larger.columns_mut().into_iter().zip(old) {
            column[..old.len()].copy_from_slice(old);
        }
        self.bytes = larger.bytes;
    }
}

impl PartialEq for Columns {
    fn eq(&self, other: &Self) -> bool {
        self.tags() == other.tags() && self.rooms() == other.rooms()
    }
}

impl Eq for Columns {}

impl fmt::Debug for Columns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.tags().iter().zip(self.rooms());
        formatter.debug_list().entries(pairs).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Columns;

    #[test]
    fn records_come_and_go_at_their_places() {
        let mut columns = Columns::with_room(0);
        let mut expected: Vec<(u8, u8)> = Vec::new();
        for number in 0u8..200 {
            let index = usize::from(number) * 7 % (expected.len() + 1);
            let (tag, room) = (number, number.wrapping_mul(3));
            columns.insert(index, tag, room);
            expected.insert(index, (tag, room));
        }
        for number in 0usize..150 {
            let index = number * 5 % expected.len();
            columns.remove(index);
            expected.remove(index);
        }
        columns.set(3, 9, 8);
        columns.set_room(49, 7);
        expected[3] = (9, 8);
        expected[49].1 = 7;
        columns.set(50, 1, 1);
        columns.set_room(50, 1);
        columns.remove(50);
        let (tags, rooms): (Vec<_>, Vec<_>) = expected.into_iter().unzip();
        assert_eq!(columns.tags(), tags);
        assert_eq!(columns.rooms(), rooms);
    }
}
