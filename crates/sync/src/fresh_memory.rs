//! An allocator that gives no memory of an object to another object, for tests that compare traces
//! of different moments: two objects that had one address, one after the other, share nothing.

use std::alloc::{GlobalAlloc, Layout, System};

/// Largest object, in bytes, whose memory is kept. What has locks or atomics is smaller; what is
/// larger, mostly blocks, would take too much.
const MOST: usize = 1024;

/// The system's allocator without the release of small objects.
#[derive(Debug)]
pub struct FreshMemory;

// SAFETY: every call is passed on to the system's allocator as it is, or not made at all: memory
// that is not released may stay as it is.
unsafe impl GlobalAlloc for FreshMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if layout.size() > MOST {
            // SAFETY: as above; the memory came from the same allocator.
            unsafe { System.dealloc(pointer, layout) };
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // What grows is a list, which has no atomics.
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
