//! Where a file of the host has data: the runs between its holes (`SEEK_DATA`, `SEEK_HOLE`).

use std::fs::File;
use std::io;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The next run of data at or after `at`, as the offsets of its start and end in bytes, below
/// `size`. The file may change meanwhile; what it has from `size` on is left out.
///
/// # Errors
///
/// The host's.
pub(crate) fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A host without SEEK_DATA has data everywhere.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    Ok((start < size).then_some((start, end.min(size))))
}
