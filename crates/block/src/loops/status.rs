//! What the driver of loop devices says about one of them (`loop(4)`, `LOOP_GET_STATUS64`).
//!
//! It is a module of its own for its `unsafe` call, which no library has.

use std::fs::File;

use rustix::ioctl::{self, Getter, Opcode};

use super::table::Identity;

/// The request for a device's status.
const GET_STATUS: Opcode = 0x4c05;

/// The status as words of 64 bits: the device that the backing file is on, the file's inode number,
/// its own device number if it is a block device, and what is of no use here.
type Status = [u64; 29];

/// What is behind an open loop device; `None` if nothing is.
pub(super) fn backing(device: &File) -> Option<Identity> {
    // SAFETY: the driver writes one structure of 232 bytes, which `Getter` has room for, or fails;
    // all of its bytes are numbers or text, for which any value is valid.
    let status = unsafe { ioctl::ioctl(device, Getter::<GET_STATUS, Status>::new()) }.ok()?;
    let [device, inode, own_device, ..] = status;
    Some(match decode(own_device) {
        (0, 0) => {
            let (major, minor) = decode(device);
            let device = rustix::fs::makedev(major, minor);
            Identity::File { device, inode }
        }
        (major, minor) => Identity::Device(major, minor),
    })
}

/// Major and minor number of a device as the kernel writes them in 32 bits: the minor one is in the
/// lowest 8 and the highest 12 of these.
fn decode(number: u64) -> (u32, u32) {
    let major = number >> 8 & 0xfff;
    let minor = number & 0xff | number >> 12 & 0xf_ff00;
    // Neither has more bits than these.
    (major as u32, minor as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Status, decode};

    #[test]
    fn a_status_has_the_size_of_the_kernels() {
        // Five numbers of 64 bits, four of 32, two names of 64 bytes, a key of 32, two numbers.
        assert_eq!(size_of::<Status>(), 5 * 8 + 4 * 4 + 2 * 64 + 32 + 2 * 8);
    }

    #[test]
    fn both_halves_of_a_minor_number_count() {
        assert_eq!(decode(0x0000_0702), (7, 2));
        assert_eq!(decode(0x1230_fd45), (0xfd, 0x12345));
    }
}
