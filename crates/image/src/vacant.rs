//! Whether a file or block device holds anything that an image would destroy.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use pext4_block::next_data;

/// The number of bytes at the start and at the end that are looked at first.
const LOOKED_AT: u64 = 128 << 10;
/// The most bytes of the rest that are read at once.
const PIECE: usize = 1 << 20;

/// Whether a regular file is all zeroes, or a block device at its start and its end, 128 KiB each:
/// most formats have their magic number at the start; partition tables have a copy at the end, and
/// members of some arrays have a magic number only there. The rest of a device is not read: it has
/// no holes to leave out, so that would take as long as reading all of it.
///
/// # Errors
///
/// Those of the file.
pub fn is_vacant(file: &mut File) -> io::Result<bool> {
    let is_regular = file.metadata()?.is_file();
    Ok(are_ends_zeroes(file)? && (!is_regular || is_all_zeroes(file)?))
}

fn are_ends_zeroes(file: &mut (impl Read + Seek)) -> io::Result<bool> {
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

/// Whether all that a file holds between its holes is zeroes.
fn is_all_zeroes(file: &File) -> io::Result<bool> {
    let size = file.metadata()?.len();
    let mut bytes = vec![0; PIECE];
    let mut at = 0;
    while let Some(data) = next_data(file, at, size)? {
        at = data.start;
        while at < data.end {
            // At most a piece, so it fits any address space.
            let length = (data.end - at).min(PIECE as u64) as usize;
            let read = match file.read_at(&mut bytes[..length], at) {
                // Another program has just shortened it.
                Ok(0) => return Ok(true),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if bytes[..read].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += read as u64;
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::os::unix::fs::FileExt;

    use super::{PIECE, are_ends_zeroes, is_vacant};

    #[test]
    fn a_mark_at_either_end_is_found() {
        let mut bytes = vec![0; 1 << 20];
        let is_empty = |bytes: &[u8]| are_ends_zeroes(&mut Cursor::new(bytes)).unwrap();
        assert!(is_empty(&bytes) && is_empty(b"") && !is_empty(b"x"));
        for at in [0, (128 << 10) - 1, (1 << 20) - (128 << 10), (1 << 20) - 1] {
            bytes[at] = 1;
            assert!(!is_empty(&bytes), "{at}");
            bytes[at] = 0;
        }
        bytes[512 << 10] = 1;
        assert!(is_empty(&bytes), "what is between is not read");
    }

    #[test]
    fn a_byte_anywhere_in_a_file_is_content() {
        let mut file = tempfile::tempfile().unwrap();
        assert!(is_vacant(&mut file).unwrap());
        let piece = PIECE as u64;
        file.set_len(8 * piece).unwrap();
        // Data without holes of more than a piece, then a hole, then data again.
        let zeroes = vec![0; 2 * PIECE + 4096];
        file.write_all_at(&zeroes, piece).unwrap();
        file.write_all_at(&zeroes[..4096], 6 * piece).unwrap();
        assert!(is_vacant(&mut file).unwrap());
        for at in [piece, 2 * piece, 3 * piece + 4095, 5 * piece, 6 * piece + 1] {
            file.write_all_at(b"x", at).unwrap();
            assert!(!is_vacant(&mut file).unwrap(), "{at}");
            file.write_all_at(b"\0", at).unwrap();
        }
        assert!(is_vacant(&mut file).unwrap());
    }
}
