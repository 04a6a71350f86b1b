//! Makes a block device read as zeroes before a file system is made on it.
//!
//! A new file system leaves most of what it needs unwritten, and relies on zeroes there. A device
//! that can discard its blocks so that they read as zeroes is cleared at once; another one is
//! written over, as slowly as it writes.

use std::io;

use pext4_block::Device;
use pext4_sync::atomic::{AtomicU64, Ordering};

/// The bytes of one write.
const CHUNK: usize = 4 << 20;

/// Clears the whole device, adding up in `cleared` what it has written. Returns whether it came to
/// the end; it stops early if `is_stopped`.
///
/// # Errors
///
/// Errors of the device.
pub fn clear(
    device: &dyn Device,
    cleared: &AtomicU64,
    is_stopped: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let size = device.size();
    if device.discard(0, size)? {
        return Ok(true);
    }
    let zeroes = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        if is_stopped() {
            return Ok(false);
        }
        let length = (size - at).min(CHUNK as u64);
        // At most a chunk, so it fits any address space.
        device.write_at(at, &zeroes[..length as usize])?;
        at += length;
        cleared.store(at, Ordering::Relaxed);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use pext4_block::{Device, RamDevice};
    use pext4_sync::atomic::{AtomicU64, Ordering};

    use super::{CHUNK, clear};

    const SIZE: u64 = 2 * CHUNK as u64 + 512;

    /// A device that cannot discard.
    struct Plain(RamDevice);

    impl Device for Plain {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, into)
        }

        fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
            self.0.write_at(offset, from)
        }

        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
    }

    fn full_of_ones() -> RamDevice {
        let device = RamDevice::new(SIZE);
        device.write_at(0, &vec![1; SIZE as usize]).expect("memory");
        device
    }

    /// The number of bytes that are not zero.
    fn left(device: &dyn Device) -> usize {
        let mut bytes = vec![1; SIZE as usize];
        device.read_at(0, &mut bytes).expect("memory");
        bytes.iter().filter(|&&byte| byte != 0).count()
    }

    #[test]
    fn a_device_is_discarded_or_else_written_over() {
        let (discarding, plain) = (full_of_ones(), Plain(full_of_ones()));
        for (device, written) in [(&discarding as &dyn Device, 0), (&plain, SIZE)] {
            let cleared = AtomicU64::new(0);
            assert!(clear(device, &cleared, &|| false).expect("memory"));
            assert_eq!(cleared.load(Ordering::Relaxed), written);
            assert_eq!(left(device), 0);
        }
    }

    #[test]
    fn an_interruption_ends_the_writing() {
        let device = Plain(full_of_ones());
        let asked = Cell::new(0);
        let is_stopped = || asked.replace(asked.get() + 1) == 1;
        assert!(!clear(&device, &AtomicU64::new(0), &is_stopped).expect("memory"));
        assert_eq!(left(&device) as u64, SIZE - CHUNK as u64);
    }
}
