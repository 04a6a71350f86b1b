//! The blocks of the log as a ring.

use pext4_ondisk::journal::JournalSuperblock;

/// The log blocks from `first` to before `end`, used as a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Ring {
    /// That of the log with this superblock.
    pub(crate) fn of(superblock: &JournalSuperblock) -> Self {
        Self {
            first: superblock.first,
            end: superblock.log_end(),
        }
    }

    pub(crate) fn blocks(self) -> u32 {
        self.end - self.first
    }

    /// The position `count` blocks after `at`; `count` is at most one lap.
    pub(crate) fn after(self, at: u32, count: u32) -> u32 {
        let room = self.end - at;
        if count < room {
            at + count
        } else {
            self.first + (count - room)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;

    #[test]
    fn a_ring_wraps() {
        let ring = Ring { first: 1, end: 11 };
        assert_eq!(ring.blocks(), 10);
        assert_eq!(ring.after(1, 9), 10);
        assert_eq!(ring.after(1, 10), 1);
        assert_eq!(ring.after(9, 5), 4);
    }
}
