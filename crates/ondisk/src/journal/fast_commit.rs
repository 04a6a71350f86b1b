//! Fast commits: detects whether the area at the journal's end contains any.
//!
//! A fast commit describes small changes in records of tag and length (little-endian, unlike the
//! rest of the journal) that follow the last full commit. pext4 never writes fast commits and does
//! not replay them; it must detect them, since ignoring one would lose what an fsync acknowledged.
//! The area is valid if it begins with a head record for the next transaction; otherwise it is old.

use crate::bytes::{read_u16, read_u32};
use crate::number::Tid;

const TAG_HEAD: u16 = 9;
/// Bytes of a head record's value: features and transaction, four each.
const HEAD_LENGTH: u16 = 8;
/// Bytes of tag and length of a record, two each.
const RECORD_HEADER: usize = 4;

/// Whether the area with this first block contains fast commits of the transaction `expected`.
#[must_use]
pub fn is_pending(first_block: &[u8], expected: Tid) -> bool {
    first_block.len() >= RECORD_HEADER + usize::from(HEAD_LENGTH)
        && read_u16(first_block, 0) == TAG_HEAD
        && read_u16(first_block, 2) >= HEAD_LENGTH
        && read_u32(first_block, RECORD_HEADER + 4) == expected.0
}

#[cfg(test)]
mod tests {
    use super::{Tid, is_pending};

    #[test]
    fn only_a_head_of_the_next_transaction_counts() {
        let mut block = [0; 1024];
        assert!(!is_pending(&block, Tid(0)), "zeroes are no head");
        block[..4].copy_from_slice(&[9, 0, 8, 0]);
        block[8..12].copy_from_slice(&70u32.to_le_bytes());
        assert!(is_pending(&block, Tid(70)));
        assert!(!is_pending(&block, Tid(71)), "a leftover");
        assert!(!is_pending(&block[..11], Tid(70)), "too short");
    }
}
