//! Little-endian words at byte offsets of a block whose length the caller has checked.
//!
//! Structures with a fixed shape are zerocopy structs; these helpers serve structures whose fields
//! have varying offsets (entries of trees and directories). All helpers panic past the end of the
//! slice, so every caller first checks the range, usually once, when it reads the count that bounds
//! it.

/// The 16-bit word at `at`.
#[inline]
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// The 32-bit word at `at`.
#[inline]
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

/// The `N` bytes at `at`, with one check of the range and not one a byte.
#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let word = bytes[at..].first_chunk();
    *word.expect("the caller has checked the range")
}

/// Stores a 16-bit word at `at`.
pub(crate) fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores a 32-bit word at `at`.
pub(crate) fn write_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
