//! What a critical section reads and writes behind a pointer: requested ahead, and told to virtual
//! cores.
//!
//! A core that waits for one cache line after another, each last written by another core, may wait
//! longer than it works. [`fetch_for_writing`] requests memory before it is used, so that several
//! lines are under way at a time, and requests it for writing at once: a line that is first read
//! and then written is transferred twice.
//!
//! Virtual cores see these requests, locks, atomics and the memory of a lock itself. Of what a lock
//! guards behind pointers they know a number of lines for each class of locks
//! (`virtual_cores/lines.rs`). Where a number says too little, as for a search through a block, the
//! engine tells the memory ([`used`]). In a build without virtual cores that is not compiled.

use std::ops::Range;
use std::sync::Arc;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Requests memory for writing, all of its cache lines at once, and waits for none: a hint to the
/// processor, of no effect but on time. Only for memory that the caller will write and that others
/// do not mostly read: they lose their copies.
#[inline]
#[cfg_attr(feature = "virtual", track_caller)]
pub fn fetch_for_writing<T>(memory: &[T]) {
    let memory = memory.as_ptr_range();
    fetch_addresses_for_writing(memory.start.addr()..memory.end.addr());
}

/// As [`fetch_for_writing`], for the counts of references of shared bytes, which lie before the
/// first of them.
#[inline]
#[cfg_attr(feature = "virtual", track_caller)]
pub fn fetch_counts_for_writing(shared: &Arc<[u8]>) {
    let value = Arc::as_ptr(shared).addr();
    let before = value.saturating_sub(size_of::<[usize; 2]>());
    fetch_addresses_for_writing(before..value);
}

/// As [`fetch_for_writing`], for memory that cannot be referred to before it is locked.
#[inline]
#[cfg_attr(feature = "virtual", track_caller)]
pub(crate) fn fetch_addresses_for_writing(memory: Range<usize>) {
    #[cfg(all(feature = "virtual", not(loom)))]
    if crate::virtual_cores::is_inside() {
        return crate::virtual_cores::fetch(memory, std::panic::Location::caller());
    }
    if memory.is_empty() {
        return;
    }
    let mut line = memory.start & !(LINE - 1);
    while line < memory.end {
        request_line(line);
        line += LINE;
    }
}

/// Requests the line at this address for writing. The architectures' instructions are named here,
/// since the standard library's function asks for reading only where the compiler does not know
/// that the processor has the other one; those that do not have it ignore it.
#[inline]
fn request_line(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: a hint cannot fault at any address, and changes no register, flag or memory.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(any(loom, miri))))]
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(loom, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// The memory that a piece of code has used.
#[derive(Debug)]
pub struct Used {
    #[cfg(all(feature = "virtual", not(loom)))]
    touches: crate::virtual_cores::Touches,
}

/// Tells what the caller has used, in a lock that it holds. `tell` runs on virtual cores alone.
#[inline]
#[track_caller]
pub fn used(tell: impl FnOnce(&mut Used)) {
    #[cfg(all(feature = "virtual", not(loom)))]
    if crate::virtual_cores::is_inside() {
        tell(&mut Used {
            touches: crate::virtual_cores::Touches::at(std::panic::Location::caller()),
        });
    }
    #[cfg(not(all(feature = "virtual", not(loom))))]
    let _ = tell;
}

impl Used {
    /// These bytes were read in turn: where to read next was in what was read before. Each line
    /// that another core has changed costs a transfer of its own.
    pub fn searched<T>(&mut self, memory: &[T]) {
        self.touch(memory, false, false);
    }

    /// These bytes were read, requested together with all that is told until [`Used::then`].
    pub fn read<T>(&mut self, memory: &[T]) {
        self.touch(memory, false, true);
    }

    /// These bytes were written, requested together with all that is told until [`Used::then`].
    pub fn written<T>(&mut self, memory: &[T]) {
        self.touch(memory, true, true);
    }

    /// What is told next was requested when all before had arrived.
    pub fn then(&mut self) {
        #[cfg(all(feature = "virtual", not(loom)))]
        self.touches.then();
    }

    fn touch<T>(&mut self, memory: &[T], write: bool, together: bool) {
        #[cfg(all(feature = "virtual", not(loom)))]
        {
            let memory = memory.as_ptr_range();
            let memory = memory.start.addr()..memory.end.addr();
            self.touches.touch(memory, write, together);
        }
        #[cfg(not(all(feature = "virtual", not(loom))))]
        let _ = (memory, write, together);
    }
}
