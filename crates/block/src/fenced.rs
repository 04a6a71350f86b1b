//! A device that refuses every write from a moment on, for a user who must not touch it any more.
//! Reads go on.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::{Arc, OnceLock};

use crate::device::Device;

/// A device that refuses every write once it is [fenced](FencedDevice::fence).
pub struct FencedDevice {
    below: Arc<dyn Device>,
    /// Why it refuses writes, if it does.
    reason: OnceLock<String>,
}

impl fmt::Debug for FencedDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FencedDevice")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl FencedDevice {
    /// A device on top of `below`, which can be written.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self {
            below,
            reason: OnceLock::new(),
        }
    }

    /// Refuses all writes that begin from now on, for this reason. Only the first call has an
    /// effect.
    pub fn fence(&self, reason: &str) {
        // A second reason is left out.
        let _ = self.reason.set(reason.to_owned());
    }

    /// Why writes are refused, if they are.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    fn check(&self) -> io::Result<()> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(io::Error::new(io::ErrorKind::ResourceBusy, reason)),
        }
    }
}

impl Device for FencedDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check()?;
        self.below.write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        self.check()?;
        self.below.write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()?;
        self.below.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.check()?;
        self.below.discard(offset, length)
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.below)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::{ErrorKind, IoSlice};

    use super::{Arc, Device, FencedDevice};
    use crate::ram::RamDevice;

    #[test]
    fn a_fenced_device_is_read_and_not_written() {
        let device = FencedDevice::new(Arc::new(RamDevice::new(4096)));
        device.write_at(0, &[7; 100]).expect("it is open");
        device.flush().expect("it is open");
        device.fence("first");
        device.fence("second");
        let pieces = [IoSlice::new(&[1; 10])];
        let refusals = [
            device.write_at(0, &[1]).expect_err("fenced"),
            device.write_vectored_at(0, &pieces).expect_err("fenced"),
            device.flush().expect_err("fenced"),
            device.discard(0, 4096).expect_err("fenced"),
        ];
        for refusal in refusals {
            assert_eq!(refusal.kind(), ErrorKind::ResourceBusy);
            assert_eq!(refusal.to_string(), "first");
        }
        let mut bytes = [0; 100];
        device.read_at(0, &mut bytes).expect("reads go on");
        assert_eq!(bytes, [7; 100]);
    }
}
