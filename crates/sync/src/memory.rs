//! What a critical section reads and writes behind a pointer, where that depends on the data.
//!
//! Virtual cores see locks, atomics and the memory of a lock itself. Of what a lock guards behind
//! pointers they know a number of lines for each class of locks (`virtual_cores/lines.rs`). Where a
//! number says too little, as for a search through a block, the engine tells the memory here. In a
//! build without virtual cores nothing of this is compiled.

use std::ops::Range;

/// The memory that a piece of code has used.
#[derive(Clone, Copy, Debug)]
pub struct Used {
    #[cfg(all(feature = "virtual", not(loom)))]
    site: crate::watch::Site,
}

/// Tells what the caller has used, in a lock that it holds. `tell` runs on virtual cores alone.
#[inline]
#[track_caller]
pub fn used(tell: impl FnOnce(Used)) {
    #[cfg(all(feature = "virtual", not(loom)))]
    if crate::virtual_cores::is_inside() {
        tell(Used {
            site: std::panic::Location::caller(),
        });
    }
    #[cfg(not(all(feature = "virtual", not(loom))))]
    let _ = tell;
}

impl Used {
    /// These bytes were read in turn: where to read next was in what was read before. Each line
    /// that another core has changed costs a transfer of its own.
    pub fn searched<T>(self, memory: &[T]) {
        self.touch(memory, false, false);
    }

    /// These bytes were read, all requested together.
    pub fn read<T>(self, memory: &[T]) {
        self.touch(memory, false, true);
    }

    /// These bytes were written, all requested together.
    pub fn written<T>(self, memory: &[T]) {
        self.touch(memory, true, true);
    }

    fn touch<T>(self, memory: &[T], write: bool, together: bool) {
        let Range { start, end } = memory.as_ptr_range();
        #[cfg(all(feature = "virtual", not(loom)))]
        crate::virtual_cores::touch(start.addr()..end.addr(), write, together, self.site);
        #[cfg(not(all(feature = "virtual", not(loom))))]
        let _ = (start, end, write, together);
    }
}
