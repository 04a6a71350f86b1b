//! Whether a file or block device holds anything that a new file system would destroy.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use pext4_block::{next_data, open_unlocked};
use pext4_image::is_as_good_as_empty;

/// The most bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Whether a regular file is all zeroes, or a block device at its start and its end. The rest of a
/// device is not read: it has no holes to leave out, so that would take as long as reading all of
/// it, and most formats mark the start or the end.
///
/// # Errors
///
/// It cannot be read.
pub fn is_empty(image: &Path) -> Result<bool> {
    let mut file = open_unlocked(image)?;
    holds_nothing(&mut file).with_context(|| image.display().to_string())
}

fn holds_nothing(file: &mut File) -> io::Result<bool> {
    let is_regular = file.metadata()?.is_file();
    Ok(is_as_good_as_empty(file)? && (!is_regular || is_all_zeroes(file)?))
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
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::{PIECE, is_empty};

    #[test]
    fn a_file_of_zeroes_is_empty_and_another_is_not() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        assert!(is_empty(file.path()).unwrap());
        file.as_file().set_len(1 << 20).unwrap();
        assert!(is_empty(file.path()).unwrap());
        // Where nothing but the end tells: a mark of an array, or the copy of a partition table.
        file.as_file()
            .write_all_at(b"EFI PART", (1 << 20) - 512)
            .unwrap();
        assert!(!is_empty(file.path()).unwrap());
        file.as_file().set_len(1 << 19).unwrap();
        assert!(is_empty(file.path()).unwrap());
        file.write_all(b"\0\0\0x").unwrap();
        assert!(!is_empty(file.path()).unwrap());
    }

    #[test]
    fn a_byte_anywhere_in_a_file_is_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let piece = PIECE as u64;
        file.as_file().set_len(8 * piece).unwrap();
        // Data without holes of more than a piece, then a hole, then data again.
        let zeroes = vec![0; 2 * PIECE + 4096];
        file.as_file().write_all_at(&zeroes, piece).unwrap();
        file.as_file()
            .write_all_at(&zeroes[..4096], 6 * piece)
            .unwrap();
        assert!(is_empty(file.path()).unwrap());
        for at in [piece, 2 * piece, 3 * piece + 4095, 5 * piece, 6 * piece + 1] {
            file.as_file().write_all_at(b"x", at).unwrap();
            assert!(!is_empty(file.path()).unwrap(), "{at}");
            file.as_file().write_all_at(b"\0", at).unwrap();
        }
        assert!(is_empty(file.path()).unwrap());
    }
}
