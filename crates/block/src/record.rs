//! A device that logs its writes in order, for tests that reconstruct the content after a crash.
//!
//! The log's lock is held during each call of the device below, so both have the same order: events
//! before a flush are durable, and any part of the events after the last flush may survive. Failed
//! calls are not logged. Record devices cannot be stacked on each other.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use pext4_sync::{Class, Mutex};

use crate::device::Device;

/// One call that changed or flushed the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// These bytes were written, in one call.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The bytes written.
        bytes: Arc<[u8]>,
    },
    /// These bytes were discarded and read as zeroes from then on.
    Discard {
        /// Offset in bytes.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Everything before was made durable.
    Flush,
}

impl Event {
    /// Repeats the call on another device.
    ///
    /// # Errors
    ///
    /// Those of the device.
    pub fn apply(&self, device: &dyn Device) -> io::Result<()> {
        match self {
            Self::Write { offset, bytes } => device.write_at(*offset, bytes),
            Self::Discard { offset, length } => write_zeroes(device, *offset, *length),
            Self::Flush => device.flush(),
        }
    }
}

/// Zeroes a range: by a discard, if that makes it read as zeroes, else by writes.
fn write_zeroes(device: &dyn Device, offset: u64, length: u64) -> io::Result<()> {
    if device.discard(offset, length)? {
        return Ok(());
    }
    let zeroes = [0; 4096];
    let mut done = 0;
    while done < length {
        let step = (length - done).min(zeroes.len() as u64);
        device.write_at(offset + done, &zeroes[..step as usize])?;
        done += step;
    }
    Ok(())
}

/// A device that logs its writes, discards and flushes.
pub struct RecordDevice {
    below: Arc<dyn Device>,
    events: Mutex<Vec<Event>>,
}

impl fmt::Debug for RecordDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RecordDevice")
            .finish_non_exhaustive()
    }
}

impl RecordDevice {
    /// A device on top of `below`, with an empty log.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self {
            below,
            events: Mutex::new(Class::DeviceQueue, Vec::new()),
        }
    }

    /// The number of events, which is a position in the log. Writes that are durable now survive
    /// every crash at or after this position.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.events.lock().len()
    }

    /// All events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.events_since(0)
    }

    /// The events from position `mark` on.
    #[must_use]
    pub fn events_since(&self, mark: usize) -> Vec<Event> {
        self.events
            .lock()
            .get(mark..)
            .map(<[Event]>::to_vec)
            .unwrap_or_default()
    }

    /// The device below.
    #[must_use]
    pub fn below(&self) -> &Arc<dyn Device> {
        &self.below
    }
}

impl Device for RecordDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        let mut events = self.events.lock();
        self.below.write_at(offset, from)?;
        events.push(Event::Write {
            offset,
            bytes: from.into(),
        });
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        let mut events = self.events.lock();
        self.below.write_vectored_at(offset, from)?;
        let bytes = from
            .iter()
            .flat_map(|piece| piece.iter().copied())
            .collect();
        events.push(Event::Write { offset, bytes });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut events = self.events.lock();
        self.below.flush()?;
        events.push(Event::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        let mut events = self.events.lock();
        let zeroed = self.below.discard(offset, length)?;
        if zeroed {
            events.push(Event::Discard { offset, length });
        }
        Ok(zeroed)
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.below)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::IoSlice;
    use std::sync::Arc;

    use pext4_sync::thread;

    use super::{Event, RecordDevice};
    use crate::device::Device;
    use crate::ram::RamDevice;

    #[test]
    fn the_log_rebuilds_the_device() {
        let base = RamDevice::new(1 << 20);
        base.write_at(0, &[5; 100]).expect("it fits");
        let device = RecordDevice::new(Arc::new(base.fork()));
        device.write_at(10, b"ten").expect("it fits");
        let mark = device.mark();
        device.flush().expect("it works");
        let pieces = [IoSlice::new(b"two "), IoSlice::new(b"pieces")];
        device.write_vectored_at(50, &pieces).expect("it fits");
        assert!(device.discard(0, 5).expect("it lies within"));
        assert!(device.write_at(1 << 20, &[0]).is_err());

        assert_eq!(device.events_since(mark)[0], Event::Flush);
        assert_eq!(device.mark(), 4, "a refused write is not logged");
        for event in device.events() {
            event.apply(&base).expect("it worked before");
        }
        let (mut original, mut rebuilt) = ([0; 100], [1; 100]);
        device.read_at(0, &mut original).expect("it lies within");
        base.read_at(0, &mut rebuilt).expect("it lies within");
        assert_eq!(original, rebuilt);
        assert_eq!(&rebuilt[48..60], b"\x05\x05two pieces");
    }

    #[test]
    fn the_log_has_the_order_of_the_device() {
        let device = RecordDevice::new(Arc::new(RamDevice::new(4096)));
        thread::scope(|scope| {
            for byte in 1..=4 {
                let device = &device;
                scope.spawn(move || {
                    for _ in 0..200 {
                        device.write_at(0, &[byte; 64]).expect("it fits");
                    }
                });
            }
        });
        let mut last = [0; 64];
        device.read_at(0, &mut last).expect("it lies within");
        let events = device.events();
        assert_eq!(events.len(), 800);
        assert_eq!(
            events[799],
            Event::Write {
                offset: 0,
                bytes: last.as_slice().into()
            }
        );
    }
}
