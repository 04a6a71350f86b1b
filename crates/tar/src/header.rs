//! Decodes the fields of a tar header.

use std::ops::Range;

use super::{BLOCK, Kind};

pub(crate) const MODE: Range<usize> = 100..108;
pub(crate) const UID: Range<usize> = 108..116;
pub(crate) const GID: Range<usize> = 116..124;
pub(crate) const SIZE: Range<usize> = 124..136;
pub(crate) const TIME: Range<usize> = 136..148;
const SUM: Range<usize> = 148..156;
pub(crate) const FLAG: usize = 156;
pub(crate) const LINK: Range<usize> = 157..257;
pub(crate) const MAGIC: Range<usize> = 257..263;
const MAGIC_AND_VERSION: Range<usize> = 257..265;
pub(crate) const MAJOR: Range<usize> = 329..337;
pub(crate) const MINOR: Range<usize> = 337..345;
const NAME: Range<usize> = 0..100;
const PREFIX: Range<usize> = 345..500;

/// The sum of a header's bytes, with blanks in the checksum's own field.
#[must_use]
pub fn checksum(header: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    sum(header) - sum(&header[SUM]) + 8 * u32::from(b' ')
}

/// Whether a block is a header, by its checksum. Some old archivers added the bytes as signed
/// numbers.
pub(crate) fn has_sum(block: &[u8; BLOCK]) -> bool {
    let wide = block.iter().enumerate();
    let wide = wide.filter(|(at, byte)| !SUM.contains(at) && **byte >= 0x80);
    let unsigned = i64::from(checksum(block));
    let signed = unsigned - 256 * i64::try_from(wide.count()).unwrap_or(0);
    signed_number(&block[SUM]).is_some_and(|stated| stated == unsigned || stated == signed)
}

/// The kind of an entry with this type flag. In old archives the name of a directory ends with a
/// slash.
pub(crate) fn kind(flag: u8, name: &[u8]) -> Option<Kind> {
    Some(match flag {
        0 | b'0' if name.ends_with(b"/") => Kind::Directory,
        0 | b'0' | b'7' | b'S' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' => Kind::CharacterDevice,
        b'4' => Kind::BlockDevice,
        b'5' | b'D' => Kind::Directory,
        b'6' => Kind::Fifo,
        _ => return None,
    })
}

/// What follows the header of an entry whose content is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Following {
    /// The next header, whatever size is stated.
    Header,
    /// A content of the stated size.
    Content,
    /// One of both; the next block shows which.
    Either,
}

/// What follows a header with this type flag. For hard links many archivers state the size of the
/// file, and no content follows. But in the POSIX format the file's content may follow (pax(1), `-o
/// linkdata`), which the header does not show. Neither does it for a directory that is marked only
/// by the slash after its name.
pub(crate) fn following(flag: u8, is_posix: bool) -> Following {
    match flag {
        b'1' if is_posix => Following::Either,
        b'1'..=b'6' => Following::Header,
        // A dumped directory lists its names.
        b'D' => Following::Content,
        _ => Following::Either,
    }
}

/// The name in a header.
pub(crate) fn name(header: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (text(&header[NAME]), text(&header[PREFIX]));
    // Only POSIX headers have a prefix there; what follows the word in their magic differs between
    // archivers. GNU has other fields there.
    let magic = &header[MAGIC_AND_VERSION];
    let is_posix = magic.starts_with(b"ustar") && magic != b"ustar  \0";
    if prefix.is_empty() || !is_posix {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

/// A field that ends at its first zero.
pub(crate) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// A number in octal, or in GNU's base 256; an empty field is 0. `None` if it is malformed,
/// negative or too large.
pub(crate) fn number(field: &[u8]) -> Option<u64> {
    u64::try_from(signed_number(field)?).ok()
}

/// The same; in base 256 it may be negative.
pub(crate) fn signed_number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        let digits = field
            .iter()
            .copied()
            .skip_while(|byte| *byte == b' ')
            .take_while(|byte| !matches!(byte, 0 | b' '));
        return digits.into_iter().try_fold(0i64, |value, digit| {
            let digit = i64::from(digit).checked_sub(i64::from(b'0'));
            let digit = digit.filter(|digit| (0..8).contains(digit))?;
            value.checked_mul(8)?.checked_add(digit)
        });
    }
    // Two's complement; the bit that marks base 256 is part of the sign.
    let negative = first == 0xFF;
    let start = if negative {
        -1
    } else {
        i64::from(first & 0x7F)
    };
    field[1..].iter().try_fold(start, |value, &byte| {
        value.checked_mul(256)?.checked_add(i64::from(byte))
    })
}

#[cfg(test)]
mod tests {
    use super::{
        BLOCK, MAGIC_AND_VERSION, PREFIX, SUM, checksum, has_sum, name, number, signed_number,
    };

    #[test]
    fn a_prefix_is_part_of_the_name_unless_the_header_is_gnus() {
        let named = |magic: &[u8; 8]| {
            let mut header = [0; BLOCK];
            header[..4].copy_from_slice(b"name");
            header[MAGIC_AND_VERSION].copy_from_slice(magic);
            header[PREFIX][..6].copy_from_slice(b"prefix");
            name(&header)
        };
        for magic in [
            b"ustar\x0000",
            b"ustar 00",
            b"ustar00\0",
            b"ustar   ",
            b"ustar\0\0\0",
        ] {
            assert_eq!(named(magic), b"prefix/name", "{magic:?}");
        }
        for magic in [b"ustar  \0", &[0; 8], b"tar\0\0\0\0\0"] {
            assert_eq!(named(magic), b"name", "{magic:?}");
        }
    }

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"0008\0"), None);
        assert_eq!(number(&[0x80, 0, 0, 1, 0]), Some(256));
        assert_eq!(signed_number(&[0xFF, 0xFF, 0xFF, 0xFE]), Some(-2));
        assert_eq!(number(&[0xFF; 12]), None);
        let beyond = [0x80, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF];
        assert_eq!(number(&beyond), None);
    }

    #[test]
    fn checksums_may_be_of_signed_bytes() {
        let mut block = [0; BLOCK];
        block[..3].copy_from_slice(b"n\xC3\xA4");
        let sum = checksum(&block);
        for stated in [sum, sum - 512] {
            block[SUM].copy_from_slice(format!("{stated:06o}\0 ").as_bytes());
            assert!(has_sum(&block));
        }
        block[0] = b'm';
        assert!(!has_sum(&block));
    }
}
