//! An allocator for tests that compare traces of different moments: no memory of an object becomes
//! another object's, so that two which had one address, one after the other, share nothing; and
//! each object begins at a cache line and ends with one, so that none shares a line by accident,
//! which would differ from run to run.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::memory::LINE;

/// Largest object, in bytes, whose memory is kept. What has locks or atomics is smaller; what is
/// larger, mostly blocks, would take too much.
const MOST: usize = 1024;

/// The system's allocator, of whole lines, without the release of small objects.
#[derive(Debug)]
pub struct FreshMemory;

/// The layout of the lines that an object of this layout is given; `None` if they are too many.
pub(crate) fn whole_lines(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_next_multiple_of(LINE)?;
    Layout::from_size_align(size, layout.align().max(LINE)).ok()
}

// SAFETY: what is allocated is at least as large and as aligned as the layout says. It is released
// with the layout that it was allocated with, which the same rule derives, or not at all.
unsafe impl GlobalAlloc for FreshMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match whole_lines(layout) {
            // SAFETY: the layout is not empty, since the caller's is not.
            Some(layout) => unsafe { System.alloc(layout) },
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(layout) = whole_lines(layout).filter(|_| layout.size() > MOST) {
            // SAFETY: the pointer came from `alloc` with this layout.
            unsafe { System.dealloc(pointer, layout) };
        }
    }
}
