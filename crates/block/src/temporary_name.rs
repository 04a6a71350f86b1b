//! Names for temporary files that replace another file once they are complete.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use pext4_ondisk::checksum::crc32c;

/// Maximal length of a name: file systems allow 255 bytes, and some callers append a few of their
/// own.
const MAX_NAME_BYTES: usize = 240;

/// `.NAME`, followed by `mark`, for a file in the same directory as `name`. A long name is cut and
/// gets a checksum of the whole name, so that it differs from other names that begin alike.
#[must_use]
pub fn temporary_name(name: &OsStr, mark: &str) -> OsString {
    let name = name.as_bytes();
    let room = MAX_NAME_BYTES.saturating_sub(1 + mark.len());
    if name.len() <= room {
        return OsString::from_vec([b".", name, mark.as_bytes()].concat());
    }
    let sum = format!("~{:08x}", crc32c(!0, name));
    let mut cut = room.saturating_sub(sum.len());
    // Not within a character: some file systems accept only valid UTF-8.
    while cut > 0 && name[cut] & 0xC0 == 0x80 {
        cut -= 1;
    }
    OsString::from_vec([b".", &name[..cut], sum.as_bytes(), mark.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{MAX_NAME_BYTES, temporary_name};

    #[test]
    fn long_names_are_cut_and_told_apart() {
        let temporary = |name: &str| temporary_name(OsStr::new(name), ".mark");
        assert_eq!(temporary("disk.img"), ".disk.img.mark");
        let (one, other) = ("n".repeat(254) + "1", "n".repeat(254) + "2");
        assert_eq!(temporary(&one).len(), MAX_NAME_BYTES);
        assert_ne!(temporary(&one), temporary(&other));
        let wide = temporary(&"\u{00E9}".repeat(127));
        assert!(wide.len() <= MAX_NAME_BYTES && wide.to_str().is_some());
    }
}
