//! Makes a device read as zeroes before a file system is made on it.
//!
//! A new file system leaves most of what it needs unwritten, and relies on zeroes there. What the
//! device knows to be zero is left alone. The rest is discarded, if that makes it read as zeroes;
//! else it is written over, as slowly as the device writes.

use std::io;
use std::ops::Range;

use pext4_block::Device;

/// The bytes of one write.
const CHUNK: u64 = 4 << 20;

/// Clears the whole device, so that it reads as zeroes. Calls `on_cleared` now and then with the
/// number of bytes from its beginning that do so far. Returns whether it came to the end; it stops
/// early if `is_stopped`.
///
/// # Errors
///
/// Errors of the device.
pub fn clear(
    device: &dyn Device,
    on_cleared: &dyn Fn(u64),
    is_stopped: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let size = device.size();
    let mut at = 0;
    while let Some(run) = device.next_data(at, size)? {
        if is_stopped() {
            return Ok(false);
        }
        at = run.end;
        let is_clear = device.discard(run.start, run.end - run.start)?;
        if !is_clear && !write_over(device, run, on_cleared, is_stopped)? {
            return Ok(false);
        }
        on_cleared(at);
    }
    on_cleared(size);
    Ok(true)
}

/// Writes zeroes over a run. Returns whether it came to the end.
fn write_over(
    device: &dyn Device,
    run: Range<u64>,
    on_cleared: &dyn Fn(u64),
    is_stopped: &dyn Fn() -> bool,
) -> io::Result<bool> {
    // At most a chunk, so it fits any address space.
    let zeroes = vec![0; (run.end - run.start).min(CHUNK) as usize];
    let mut at = run.start;
    while at < run.end {
        if is_stopped() {
            return Ok(false);
        }
        let length = (run.end - at).min(CHUNK);
        device.write_at(at, &zeroes[..length as usize])?;
        at += length;
        on_cleared(at);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use pext4_block::{Device, RamDevice};

    use super::{CHUNK, clear};

    const SIZE: u64 = 2 * CHUNK + 512;

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
        for device in [&discarding as &dyn Device, &plain] {
            let cleared = Cell::new(0);
            assert!(clear(device, &|bytes| cleared.set(bytes), &|| false).expect("memory"));
            assert_eq!(cleared.get(), SIZE);
            assert_eq!(left(device), 0);
        }
        // A part of a chunk of memory is not given back.
        assert!(discarding.used() < CHUNK);
        assert!(plain.0.used() >= SIZE);
    }

    #[test]
    fn what_is_known_to_be_zero_is_left_alone() {
        let device = RamDevice::new(1 << 40);
        device.write_at(1 << 39, &[1]).expect("memory");
        assert!(clear(&device, &|_| (), &|| false).expect("memory"));
        assert_eq!(device.used(), 0);
    }

    #[test]
    fn an_interruption_ends_the_writing() {
        let device = Plain(full_of_ones());
        let asked = Cell::new(0);
        let is_stopped = || asked.replace(asked.get() + 1) == 2;
        let cleared = Cell::new(0);
        assert!(!clear(&device, &|bytes| cleared.set(bytes), &is_stopped).expect("memory"));
        assert_eq!(cleared.get(), CHUNK);
        assert_eq!(left(&device) as u64, SIZE - CHUNK);
    }
}
