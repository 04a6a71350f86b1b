//! What a critical section reads and writes behind a pointer, where that depends on the data.
//!
//! Virtual cores see locks, atomics and the memory of a lock itself. Of what a lock guards behind
//! pointers they know a number of lines for each class of locks (`virtual_cores/lines.rs`). Where a
//! number says too little, as for a search through a block, the engine tells the memory here. In a
//! build without virtual cores nothing of this is compiled.

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
