//! A device whose calls take time, like a disk's.
//!
//! Calls do not wait for each other, as if the queue depth were unlimited.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use pext4_sync::thread;

use crate::device::{Device, total_length};

/// How long calls take in addition to the device below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Latency {
    /// Each read.
    pub read: Duration,
    /// Each write, vectored or not.
    pub write: Duration,
    /// Each flush.
    pub flush: Duration,
    /// Each MiB read or written, in proportion.
    pub mebibyte: Duration,
}

/// A device whose calls take time.
pub struct SlowDevice {
    below: Arc<dyn Device>,
    latency: Latency,
}

impl fmt::Debug for SlowDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SlowDevice")
            .field("latency", &self.latency)
            .finish_non_exhaustive()
    }
}

impl SlowDevice {
    /// `below`, slowed down.
    #[must_use]
    pub fn new(below: Arc<dyn Device>, latency: Latency) -> Self {
        Self { below, latency }
    }

    fn pause(&self, fixed: Duration, bytes: u64) {
        let time = fixed
            + self
                .latency
                .mebibyte
                .mul_f64(bytes as f64 / f64::from(1 << 20));
        if !time.is_zero() {
            thread::sleep(time);
        }
    }
}

impl Device for SlowDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.pause(self.latency.read, into.len() as u64);
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.pause(self.latency.write, from.len() as u64);
        self.below.write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        self.pause(self.latency.write, total_length(from));
        self.below.write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.pause(self.latency.flush, 0);
        self.below.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.pause(self.latency.write, 0);
        self.below.discard(offset, length)
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.below)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Latency, SlowDevice};
    use crate::device::Device;
    use crate::ram::RamDevice;

    #[test]
    fn takes_the_time_and_keeps_the_bytes() {
        let millisecond = Duration::from_millis(1);
        let latency = Latency {
            write: millisecond,
            mebibyte: 4 * millisecond,
            ..Latency::default()
        };
        let device = SlowDevice::new(Arc::new(RamDevice::new(1 << 20)), latency);
        let before = pext4_sync::time::now();
        device.write_at(0, &vec![3; 1 << 19]).expect("it fits");
        // A sleep is never shorter than asked for.
        assert!(pext4_sync::time::now() - before >= 3 * millisecond);
        let mut bytes = [0; 2];
        device
            .read_at((1 << 19) - 1, &mut bytes)
            .expect("it lies within");
        assert_eq!(bytes, [3, 0]);
    }
}
