//! Block devices that stack, and the buffer cache.

#![forbid(unsafe_code)]

use std::io;

/// A device of bytes.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Reads exactly `into.len()` bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all of `from`.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;
    /// Makes everything written before durable.
    fn flush(&self) -> io::Result<()>;
}
