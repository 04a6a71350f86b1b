//! Where a file of the host has data: the runs between its holes (`SEEK_DATA`, `SEEK_HOLE`).

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The next run of data at or after `at`, in bytes, cut at `end`; `None` if only holes follow. The
/// file may change meanwhile.
///
/// # Errors
///
/// The host's.
pub fn next_data(file: &File, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
    if at >= end {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A host without SEEK_DATA has data everywhere.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(at..end)),
        Err(errno) => return Err(errno.into()),
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    Ok((start < end).then_some(start..hole.min(end)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::next_data;

    #[test]
    fn runs_end_at_holes_and_at_the_end_that_is_asked_for() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(8 * MIB).expect("a sparse file");
        file.write_all_at(&[1; 4096], 2 * MIB).expect("room");
        file.write_all_at(&[1; 8192], 4 * MIB).expect("room");
        if next_data(&file, 0, MIB).expect("a file") == Some(0..MIB) {
            return eprintln!("SKIPPED: no holes here");
        }
        let next = |at, end| next_data(&file, at, end).expect("a file");
        assert_eq!(next(0, 8 * MIB), Some(2 * MIB..2 * MIB + 4096));
        assert_eq!(next(2 * MIB + 4096, 8 * MIB), Some(4 * MIB..4 * MIB + 8192));
        assert_eq!(next(3 * MIB, 4 * MIB + 1), Some(4 * MIB..4 * MIB + 1));
        assert_eq!(next(3 * MIB, 4 * MIB), None);
        assert_eq!(next(5 * MIB, 8 * MIB), None);
        assert_eq!(next(9 * MIB, 8 * MIB), None);
    }

    #[test]
    fn where_holes_are_unknown_all_is_data() {
        let Ok(file) = File::open("/proc/self/status") else {
            return eprintln!("SKIPPED: no /proc here");
        };
        let next = next_data(&file, 3, 10).expect("it is no error");
        assert_eq!(next, Some(3..10));
    }
}
