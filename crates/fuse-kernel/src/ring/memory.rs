//! The memory of a ring's entries, and who may touch it.
//!
//! An entry's memory belongs at any time to one of two: to the kernel, from the submission of a
//! command until its completion; or to the process, from then until the next submission. While it
//! is the process's, there is one [`Slot`] of the entry, made by the ring's thread when it takes
//! the completion and given up when it submits the next command. Safe code cannot copy a slot, and
//! reads through a shared reference to it and writes through an exclusive one: so the compiler
//! proves that no reply is written while a request is borrowed from the same memory.

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::answer::Shared;
use crate::wire::OutHeader;

/// The part of an entry that has a fixed size.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Head {
    /// The header of a request, or of its reply.
    pub(super) message: [u8; 128],
    /// The structure of the request's operation.
    pub(super) operation: [u8; 128],
    flags: u64,
    /// What the kernel knows the request by.
    pub(super) commit: u64,
    /// Bytes of the payload.
    pub(super) length: u32,
    padding: u32,
    reserved: u64,
}

/// The memory of an entry: a head, and room for names and bytes.
#[derive(Debug)]
pub(super) struct Memory {
    head: NonNull<Head>,
    payload: NonNull<[u8]>,
}

// SAFETY: it owns what it points to, as a box does.
unsafe impl Send for Memory {}
// SAFETY: nothing is accessible through a shared reference but addresses; what they point to is
// accessed only through the one slot of the entry.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroes, of which the system gives out pages when they are first used.
    pub(super) fn new(room: usize) -> io::Result<Self> {
        Ok(Self {
            payload: zeroes(room)?,
            head: NonNull::from(Box::leak(Box::new(Head::new_zeroed()))),
        })
    }

    /// Address and length of both parts, as the kernel's `struct iovec` has them.
    pub(super) fn vectors(&self) -> [[usize; 2]; 2] {
        let head = self.head.as_ptr().expose_provenance();
        let payload = self.payload.cast::<u8>().as_ptr().expose_provenance();
        [[head, size_of::<Head>()], [payload, self.payload.len()]]
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: one comes from a box that `new` has leaked, the other was allocated as a box of
        // so many bytes would be, and nothing else frees them. Neither the kernel nor a slot uses
        // them any more: the ring's thread does not end while the kernel has an entry (it ends the
        // process instead), and it and every slot hold the `Shared` that this is a part of.
        unsafe {
            drop(Box::from_raw(self.head.as_ptr()));
            drop(Box::from_raw(self.payload.as_ptr()));
        }
    }
}

/// So many bytes, at least one. Many of these are wanted at once, so an error is no surprise.
fn zeroes(room: usize) -> io::Result<NonNull<[u8]>> {
    let layout = Layout::array::<u8>(room.max(1)).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: the layout has at least one byte.
    let bytes = unsafe { alloc_zeroed(layout) };
    let bytes = NonNull::new(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok(NonNull::slice_from_raw_parts(bytes, layout.size()))
}

/// The right to an entry's memory, while the kernel does not have it.
#[derive(Debug)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
    index: usize,
}

impl Slot {
    /// # Safety
    ///
    /// The kernel has given the entry back and has not got it since, and there is no other slot
    /// of it.
    pub(super) unsafe fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self { shared, index }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    fn memory(&self) -> &Memory {
        &self.shared.entries[self.index].memory
    }

    pub(super) fn head(&self) -> &Head {
        // SAFETY: this is the only slot of the entry, so nobody writes while it is borrowed. The
        // memory lives as long as `shared`, and began as a valid `Head`, for which all bytes are.
        unsafe { self.memory().head.as_ref() }
    }

    /// The bytes that came with the request.
    pub(super) fn payload(&self) -> &[u8] {
        let length = self.head().length as usize;
        // SAFETY: as in `head`.
        let payload = unsafe { self.memory().payload.as_ref() };
        &payload[..length.min(payload.len())]
    }

    /// Writes a reply over the request.
    pub(super) fn write(&mut self, unique: u64, error: i32, parts: [&[u8]; 2]) {
        let (mut head, mut payload) = (self.memory().head, self.memory().payload);
        // SAFETY: this is the only slot of the entry and it is borrowed exclusively, so there are
        // no other references; else as in `head`. The two parts do not overlap.
        let (head, payload) = unsafe { (head.as_mut(), payload.as_mut()) };
        let length = parts[0].len() + parts[1].len();
        let (error, parts) = match length <= payload.len() {
            true => (error, parts),
            // It is longer than the kernel has room for.
            false => (-libc::EIO, [&[][..]; 2]),
        };
        let mut end = 0;
        for part in parts {
            payload[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        // The room is below 4 GiB, as the kernel's limits of a request are.
        head.length = end as u32;
        let header = OutHeader {
            length: size_of::<OutHeader>() as u32 + head.length,
            error,
            unique,
        };
        head.message[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::answer::Shared;
    use super::{Head, Slot};

    #[test]
    fn the_head_has_the_size_that_the_kernel_expects() {
        assert_eq!(size_of::<Head>(), 288);
        assert_eq!(std::mem::offset_of!(Head, commit), 264);
    }

    #[test]
    fn a_reply_takes_the_place_of_the_request() {
        let shared = Shared::new(&[3], 1, 8).expect("it needs little");
        // SAFETY: no kernel has the entry, and it has no other slot.
        let mut slot = unsafe { Slot::new(Arc::new(shared), 0) };
        assert!(slot.payload().is_empty());
        slot.write(77, 0, [b"abc", b"de"]);
        assert_eq!(slot.payload(), b"abcde");
        assert_eq!(slot.head().message[..4], 21u32.to_ne_bytes());
        slot.write(77, 0, [b"too long", b"!"]);
        assert!(slot.payload().is_empty());
        assert_eq!(slot.head().message[4..8], (-5i32).to_ne_bytes());
    }
}
