//! The trait of block devices, and arithmetic on their ranges.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

/// A device of bytes. It guarantees:
///
/// - A read or a write is done completely or fails; after an error any part of the range may have
///   been written.
/// - A write is seen by every read that starts after it returned. It is durable once a `flush` that
///   started after it returned has succeeded. Before that any subset of the unflushed writes may
///   survive a crash, and a write may be torn at a sector boundary.
/// - All calls may be made concurrently. Of concurrent overlapping writes, each block gets the
///   bytes of one of them.
/// - After a failed flush it is unknown which writes are durable. Neither concurrent nor later
///   flushes guarantee anything, even if they succeed: callers that need to know use
///   [`FailStopDevice`](crate::FailStopDevice).
///
/// A device may be stacked on another one. If it has the same bytes, it names that one as
/// [`below`](Device::below), and so also what it does not act on itself reaches it. A device that
/// counts what is read:
///
/// ```
/// use std::io;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use pext4_block::{Device, RamDevice};
///
/// struct Counted {
///     below: RamDevice,
///     bytes_read: AtomicU64,
/// }
///
/// impl Device for Counted {
///     fn size(&self) -> u64 {
///         self.below.size()
///     }
///
///     fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
///         self.bytes_read.fetch_add(into.len() as u64, Ordering::Relaxed);
///         self.below.read_at(offset, into)
///     }
///
///     fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
///         self.below.write_at(offset, from)
///     }
///
///     fn flush(&self) -> io::Result<()> {
///         self.below.flush()
///     }
///
///     fn below(&self) -> Option<&dyn Device> {
///         Some(&self.below)
///     }
/// }
///
/// let device = Counted { below: RamDevice::new(1 << 20), bytes_read: AtomicU64::new(0) };
/// device.read_at(4096, &mut [0; 512])?;
/// assert_eq!(device.bytes_read.load(Ordering::Relaxed), 512);
/// assert!(device.discard(0, 4096)?, "memory that is discarded reads as zeroes");
/// # Ok::<(), io::Error>(())
/// ```
pub trait Device: Send + Sync + 'static {
    /// Its size in bytes. It stays the same as long as somebody uses the device: a volume, a
    /// check or a resize asks for it once.
    fn size(&self) -> u64;

    /// Reads exactly `into.len()` bytes at `offset`.
    ///
    /// # Errors
    ///
    /// The range does not lie within the device, or the device failed.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `from` at `offset`.
    ///
    /// # Errors
    ///
    /// The range does not lie within the device, or the device failed or refuses writes.
    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Writes all pieces, one after the other, at `offset`. Unless a device does it in one call,
    /// each is a call of [`Device::write_at`], also if there is a device [below](Device::below).
    ///
    /// # Errors
    ///
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
    ///
    /// The device failed; see the last guarantee above.
    fn flush(&self) -> io::Result<()>;

    /// The device below this one, if this one has its bytes, all at the same offsets, and keeps
    /// none back. `discard`, `next_data`, `forget` and `is_read_only` of that one are then those of
    /// this one, as far as it has none of its own; a device that must see or refuse every change
    /// needs its own `discard`. A device whose bytes differ, such as one that encrypts, that begins
    /// at another offset, or that keeps writes in memory, has none below in this sense.
    fn below(&self) -> Option<&dyn Device> {
        None
    }

    /// Discards bytes that are not needed any more. Returns whether they read as zeroes from now
    /// on; if not, their content is undefined. A device that cannot discard does nothing.
    ///
    /// # Errors
    ///
    /// The range does not lie within the device, or the device failed.
    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        if let Some(below) = self.below() {
            return below.discard(offset, length);
        }
        check_range(self.size(), offset, length)?;
        Ok(false)
    }

    /// The next run at or after `at` that may hold anything but zeroes, cut at `end`; `None` if
    /// only zeroes follow. A device that does not know where it has holes has data everywhere.
    ///
    /// # Errors
    ///
    /// The device failed.
    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
        match self.below() {
            Some(below) => below.next_data(at, end),
            None => Ok((at < end).then_some(at..end)),
        }
    }

    /// Forgets what this machine has cached of a range, so that a read which starts after this
    /// returned sees what other machines have written to a shared device before. A hint: a device
    /// without such a cache ignores it, and so does one whose cache has what is not durable yet.
    fn forget(&self, range: Range<u64>) {
        if let Some(below) = self.below() {
            below.forget(range);
        }
    }

    /// Whether writes are refused. A device that refuses them must say so here: a mount that would
    /// write finds it read-only then, instead of failing at the first write.
    fn is_read_only(&self) -> bool {
        self.below().is_some_and(Device::is_read_only)
    }
}

/// Makes a pointer to a device a device.
macro_rules! forward {
    ($pointer:ident) => {
        impl<D: Device + ?Sized> Device for $pointer<D> {
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

            fn below(&self) -> Option<&dyn Device> {
                (**self).below()
            }

            fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
                (**self).discard(offset, length)
            }

            fn next_data(&self, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
                (**self).next_data(at, end)
            }

            fn forget(&self, range: Range<u64>) {
                (**self).forget(range);
            }

            fn is_read_only(&self) -> bool {
                (**self).is_read_only()
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// Fails if a range is not within a device of `size` bytes.
pub(crate) fn check_range(size: u64, offset: u64, length: u64) -> io::Result<()> {
    if offset.checked_add(length).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{length} bytes at {offset} do not lie within the {size} bytes of the device"),
    ))
}

/// The sum of the pieces' lengths in bytes.
pub(crate) fn total_length(pieces: &[IoSlice<'_>]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// A part of a range that is within one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The chunk's number.
    pub(crate) chunk: u64,
    /// Offset of the part in the chunk.
    pub(crate) within: usize,
    /// Offset of the part in the range.
    pub(crate) at: usize,
    /// Its length in bytes.
    pub(crate) length: usize,
}

/// Splits `length` bytes at `offset` at the boundaries of chunks of `chunk_size` bytes.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::ops::Range;
    use std::sync::Arc;

    use pext4_sync::{Class, Mutex};

    use super::{Device, Part, check_range, parts};
    use crate::counting::CountingDevice;
    use crate::fail_stop::FailStopDevice;
    use crate::fault::FaultDevice;
    use crate::fenced::FencedDevice;
    use crate::overlay::OverlayDevice;
    use crate::record::RecordDevice;
    use crate::slow::{Latency, SlowDevice};

    /// A device that notes what it is asked for, and has its own answers.
    struct Asked(Mutex<Vec<String>>);

    impl Device for Asked {
        fn size(&self) -> u64 {
            1 << 20
        }

        fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
            into.fill(0);
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }

        fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
            self.0.lock().push(format!("discard {length} at {offset}"));
            Ok(true)
        }

        fn next_data(&self, at: u64, _: u64) -> io::Result<Option<Range<u64>>> {
            Ok(Some(at + 1..at + 2))
        }

        fn forget(&self, range: Range<u64>) {
            self.0.lock().push(format!("forget {range:?}"));
        }

        fn is_read_only(&self) -> bool {
            true
        }
    }

    /// A device as users write one: it has only what a device must have.
    struct Plain<D> {
        inner: D,
        is_transparent: bool,
    }

    impl<D: Device> Device for Plain<D> {
        fn size(&self) -> u64 {
            self.inner.size()
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            self.inner.read_at(offset, into)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
            self.inner.write_at(offset, from)
        }

        fn flush(&self) -> io::Result<()> {
            self.inner.flush()
        }

        fn below(&self) -> Option<&dyn Device> {
            self.is_transparent.then_some(&self.inner as &dyn Device)
        }
    }

    /// Puts a device on another one.
    type Stack = fn(Arc<Asked>) -> Box<dyn Device>;

    fn asked() -> Arc<Asked> {
        Arc::new(Asked(Mutex::new(Class::Leaf, Vec::new())))
    }

    #[test]
    fn what_a_stacked_device_has_not_itself_is_that_of_the_one_below() {
        let stacked: [Stack; 9] = [
            |asked| Box::new(asked),
            |asked| Box::new(Box::new(asked) as Box<dyn Device>),
            |inner| {
                let is_transparent = true;
                Box::new(Plain {
                    inner,
                    is_transparent,
                })
            },
            |asked| Box::new(SlowDevice::new(asked, Latency::default())),
            |asked| Box::new(FaultDevice::new(asked)),
            |asked| Box::new(RecordDevice::new(asked)),
            |asked| Box::new(FencedDevice::new(asked)),
            |asked| Box::new(FailStopDevice::new(asked)),
            |asked| Box::new(CountingDevice::new(asked)),
        ];
        for (number, stack) in stacked.iter().enumerate() {
            let asked = asked();
            let device = stack(Arc::clone(&asked));
            assert!(device.is_read_only(), "{number}");
            assert!(device.discard(3, 5).expect("it can"), "{number}");
            device.forget(7..9);
            let data = device.next_data(100, 200).expect("it knows");
            assert_eq!(data, Some(101..102), "{number}");
            let expected = ["discard 5 at 3", "forget 7..9"];
            assert_eq!(*asked.0.lock(), expected, "{number}");
        }
    }

    #[test]
    fn a_device_with_other_bytes_asks_nobody() {
        let (first, second) = (asked(), asked());
        let devices: [Box<dyn Device>; 2] = [
            Box::new(OverlayDevice::new(Arc::clone(&first) as Arc<dyn Device>)),
            Box::new(Plain {
                inner: Arc::clone(&second),
                is_transparent: false,
            }),
        ];
        for device in devices {
            assert!(!device.is_read_only());
            assert!(!device.discard(3, 5).expect("it does nothing"));
            device.forget(7..9);
            let data = device.next_data(100, 200).expect("it does not know");
            assert_eq!(data, Some(100..200));
        }
        assert!(first.0.lock().is_empty() && second.0.lock().is_empty());
    }

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
