//! Whether a file or device holds anything that an image would destroy.

use std::io::{self, Read, Seek, SeekFrom};

/// The number of bytes at the start and at the end that must be zeroes.
const LOOKED_AT: u64 = 128 << 10;

/// Whether the start and the end of a file or device are all zeroes, 128 KiB each. Most formats
/// have their magic number at the start; partition tables have a copy at the end, and members of
/// some arrays have a magic number only there.
///
/// # Errors
///
/// Those of the file.
pub fn is_as_good_as_empty(file: &mut (impl Read + Seek)) -> io::Result<bool> {
    file.rewind()?;
    if !next_is_zero(file)? {
        return Ok(false);
    }
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size.saturating_sub(LOOKED_AT)))?;
    next_is_zero(file)
}

/// Whether the next bytes, up to the length that is looked at, are all zeroes.
fn next_is_zero(file: &mut impl Read) -> io::Result<bool> {
    let mut bytes = Vec::new();
    file.take(LOOKED_AT).read_to_end(&mut bytes)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::is_as_good_as_empty;

    #[test]
    fn a_mark_at_either_end_is_found() {
        let mut bytes = vec![0; 1 << 20];
        let is_empty = |bytes: &[u8]| is_as_good_as_empty(&mut Cursor::new(bytes)).unwrap();
        assert!(is_empty(&bytes) && is_empty(b"") && !is_empty(b"x"));
        for at in [0, (128 << 10) - 1, (1 << 20) - (128 << 10), (1 << 20) - 1] {
            bytes[at] = 1;
            assert!(!is_empty(&bytes), "{at}");
            bytes[at] = 0;
        }
        bytes[512 << 10] = 1;
        assert!(is_empty(&bytes), "what is between is not read");
    }
}
