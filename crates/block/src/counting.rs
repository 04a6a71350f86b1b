//! A device that counts the bytes written through it. Each shard counts on a cache line of its own,
//! so that threads which write at the same time share none.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use pext4_sync::Counter;

use crate::device::{Device, total_length};

/// A device that counts the bytes written through it.
pub struct CountingDevice {
    below: Arc<dyn Device>,
    written: Counter,
}

impl fmt::Debug for CountingDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("CountingDevice")
            .finish_non_exhaustive()
    }
}

impl CountingDevice {
    /// A device on top of `below`.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self {
            below,
            written: Counter::new(),
        }
    }

    /// The bytes of all writes that succeeded; exact if no thread writes meanwhile.
    #[must_use]
    pub fn written(&self) -> u64 {
        u64::try_from(self.written.sum()).unwrap_or(0)
    }

    fn note(&self, length: u64) {
        // No write has as many bytes as do not fit.
        self.written.add(i64::try_from(length).unwrap_or(0));
    }
}

impl Device for CountingDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)?;
        self.note(from.len() as u64);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_vectored_at(offset, from)?;
        self.note(total_length(from));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.below)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::IoSlice;

    use super::{Arc, CountingDevice, Device};
    use crate::ram::RamDevice;

    #[test]
    fn writes_that_succeed_are_counted() {
        let device = CountingDevice::new(Arc::new(RamDevice::new(4096)));
        device.write_at(0, &[1; 100]).expect("it fits");
        let pieces = [IoSlice::new(&[2; 20]), IoSlice::new(&[3; 3])];
        device.write_vectored_at(100, &pieces).expect("it fits");
        device.write_at(4096, &[1]).expect_err("it does not fit");
        device.read_at(0, &mut [0; 50]).expect("it is there");
        assert_eq!(device.written(), 123);
    }
}
