//! The commands that a ring gives to a FUSE connection.

use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, squeue};

/// Gives the kernel an entry for the first time.
const REGISTER: u32 = 1;
/// Replies to the request in an entry, and gives it back for the next one.
const COMMIT_AND_FETCH: u32 = 2;

/// A ring with commands of 128 bytes.
pub(super) type Ring = IoUring<Entry128>;

/// The connection's device, as the first registered file of a ring: so that commands need not count
/// the device's users, a number for which all processors would compete.
pub(super) const DEVICE: Fixed = Fixed(0);

/// Gives an entry with this memory to a queue.
pub(super) fn register(queue: u16, vectors: &[[usize; 2]; 2]) -> Entry128 {
    let command = UringCmd80::new(DEVICE, REGISTER)
        .cmd(area(queue, 0))
        .addr(Some(vectors.as_ptr().expose_provenance() as u64))
        .build();
    with_length(command, vectors.len() as u32)
}

/// Replies, and fetches the next request.
pub(super) fn commit_and_fetch(queue: u16, commit: u64) -> Entry128 {
    UringCmd80::new(DEVICE, COMMIT_AND_FETCH)
        .cmd(area(queue, commit))
        .build()
}

/// Fails for want of memory and of such a queue.
pub(super) fn register_nothing(device: Fd) -> Entry128 {
    UringCmd80::new(device, REGISTER)
        .cmd(area(u16::MAX, 0))
        .build()
}

/// The kernel's `struct fuse_uring_cmd_req`: flags (none), the request that is replied to, and the
/// queue.
fn area(queue: u16, commit: u64) -> [u8; 80] {
    let mut area = [0; 80];
    area[8..16].copy_from_slice(&commit.to_ne_bytes());
    area[16..18].copy_from_slice(&queue.to_ne_bytes());
    area
}

/// Sets the number of vectors at the command's address, for which the library has no method.
fn with_length(mut command: Entry128, length: u32) -> Entry128 {
    const {
        assert!(size_of::<Entry128>() == 128 && align_of::<squeue::Entry>() >= 4);
    }
    /// Of the field `len` in `struct io_uring_sqe`.
    const OFFSET: usize = 24;
    let bytes = (&raw mut command).cast::<u8>();
    // SAFETY: an `Entry128` is the kernel's structure of 128 bytes, in its layout (`repr(C)`). At
    // this offset it has an aligned 32-bit number of its own, for which every value is valid.
    unsafe { bytes.add(OFFSET).cast::<u32>().write(length) };
    command
}
