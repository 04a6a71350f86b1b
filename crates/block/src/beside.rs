//! Names for files that lie beside others until they are complete.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use pext4_ondisk::checksum::crc32c;

/// Longest name that is made: hosts take 255 bytes, and some callers add a few of their own.
const LONGEST: usize = 240;

/// `.NAME` and a mark behind it. Of a long name a part, and a sum that tells it from others.
#[must_use]
pub fn name_beside(name: &OsStr, mark: &str) -> OsString {
    let name = name.as_bytes();
    let room = LONGEST.saturating_sub(1 + mark.len());
    if name.len() <= room {
        return OsString::from_vec([b".", name, mark.as_bytes()].concat());
    }
    let sum = format!("~{:08x}", crc32c(!0, name));
    let mut cut = room.saturating_sub(sum.len());
    // Not within a character: there are hosts that take whole ones only.
    while cut > 0 && name[cut] & 0xC0 == 0x80 {
        cut -= 1;
    }
    OsString::from_vec([b".", &name[..cut], sum.as_bytes(), mark.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{LONGEST, name_beside};

    #[test]
    fn long_names_are_cut_and_told_apart() {
        let beside = |name: &str| name_beside(OsStr::new(name), ".mark");
        assert_eq!(beside("disk.img"), ".disk.img.mark");
        let (one, other) = ("n".repeat(254) + "1", "n".repeat(254) + "2");
        assert_eq!(beside(&one).len(), LONGEST);
        assert_ne!(beside(&one), beside(&other));
        let wide = beside(&"\u{00E9}".repeat(127));
        assert!(wide.len() <= LONGEST && wide.to_str().is_some());
    }
}
