//! Tar archives, in and out: POSIX pax with GNU's sparse files.

pub(crate) mod apply;
pub(crate) mod read;
pub(crate) mod write;

use pext4_ondisk::acl;

/// Bytes of a header, and what everything is padded to.
pub(crate) const BLOCK: usize = 512;

/// Pax records with access control lists in text, and the attribute that each one is.
pub(crate) const LISTS: [(&[u8], &[u8]); 2] = [
    (b"SCHILY.acl.access", acl::ACCESS),
    (b"SCHILY.acl.default", acl::DEFAULT),
];

/// The sum of a header, its own field taken for spaces.
pub(crate) fn checksum(header: &[u8; BLOCK]) -> u32 {
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    let own: u32 = header[148..156].iter().map(|&byte| u32::from(byte)).sum();
    sum - own + 8 * u32::from(b' ')
}
