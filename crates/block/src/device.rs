//! What a device promises.
//!
//! - A read or a write is done as a whole or is an error; after an error any part of the range may
//!   have been written.
//! - A write is seen by every read that starts after it returned. It is durable once a `flush`
//!   that started after it returned has succeeded. Before that any subset of the unflushed writes
//!   may survive a crash, and a write may be torn at a sector's edge.
//! - Every call may be made from many threads at once. Overlapping writes at the same time leave
//!   either's bytes, block by block.
//! - A failed flush says nothing about what is durable, and nor do those that ran beside it or come
//!   later, whatever they answer: the caller must not believe them ([`WaryDevice`](crate::WaryDevice)).

use std::io::{self, IoSlice};
use std::sync::Arc;

/// A device of bytes.
pub trait Device: Send + Sync + 'static {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Reads exactly `into.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// The range does not lie within the device, or the device failed.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `from` from `offset` on.
    ///
    /// # Errors
    /// The range does not lie within the device, or the device failed or refuses writes.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Writes all pieces one behind the other from `offset` on.
    ///
    /// # Errors
    /// As for [`Device::write_at`].
    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        check_range(self.size(), offset, total_length(from))?;
        let mut offset = offset;
        for piece in from {
            self.write_at(offset, piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Makes everything written before durable.
    ///
    /// # Errors
    /// The device failed; see the module's last promise.
    fn flush(&self) -> io::Result<()>;

    /// Says that nobody needs these bytes any more. Answers whether they read as zeroes from now
    /// on; else they may be anything.
    ///
    /// # Errors
    /// The range does not lie within the device, or the device failed.
    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        check_range(self.size(), offset, length)?;
        Ok(false)
    }

    /// Says that these bytes will be read soon. It waits for nothing and cannot fail.
    fn will_need(&self, _offset: u64, _length: u64) {}

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool {
        false
    }
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        (**self).write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        (**self).discard(offset, length)
    }

    fn will_need(&self, offset: u64, length: u64) {
        (**self).will_need(offset, length);
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }
}

/// Refuses a range that does not lie within a device of `size` bytes.
pub(crate) fn check_range(size: u64, offset: u64, length: u64) -> io::Result<()> {
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{length} bytes at {offset} do not lie within the {size} bytes of the device"),
    ))
}

/// The bytes in all pieces together.
pub(crate) fn total_length(pieces: &[IoSlice<'_>]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// The parts of a range that lie in one chunk each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The chunk's number.
    pub(crate) chunk: u64,
    /// Where the part begins in the chunk.
    pub(crate) within: usize,
    /// Where the part begins in the range.
    pub(crate) at: usize,
    /// Its length.
    pub(crate) length: usize,
}

/// Cuts `length` bytes from `offset` on at the edges of chunks of `chunk_size` bytes.
pub(crate) fn parts(offset: u64, length: usize, chunk_size: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == length {
            return None;
        }
        let position = offset + at as u64;
        let within = (position % chunk_size as u64) as usize;
        let part = Part {
            chunk: position / chunk_size as u64,
            within,
            at,
            length: (chunk_size - within).min(length - at),
        };
        at += part.length;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::{Part, check_range, parts};

    #[test]
    fn ranges_end_with_the_device() {
        assert!(check_range(100, 90, 10).is_ok());
        assert!(check_range(100, 100, 0).is_ok());
        assert!(check_range(100, 91, 10).is_err());
        assert!(check_range(u64::MAX, u64::MAX, 2).is_err());
    }

    #[test]
    fn parts_cover_the_range_and_cross_no_edge() {
        let cut: Vec<Part> = parts(6, 12, 8).collect();
        let part = |chunk, within, at, length| Part {
            chunk,
            within,
            at,
            length,
        };
        assert_eq!(cut, [part(0, 6, 0, 2), part(1, 0, 2, 8), part(2, 0, 10, 2)]);
        assert_eq!(parts(8, 0, 8).count(), 0);
    }
}
