//! An allocator with which no two objects share a cache line.
//!
//! Which objects share a line by accident depends on earlier allocations, so a run would not
//! repeat. A program with virtual cores makes [`Lines`] its global allocator. It rounds sizes up so
//! that the objects of the system's allocator, which keeps eight bytes of its own before each,
//! always begin at the same offset in a line. Real programs may share lines by accident; the
//! virtual cores do not see that. The allocator reports freed memory to the machine, which drops
//! all copies of its lines.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes of a line.
const LINE: usize = 64;
/// Bytes that the system's allocator adds to an object.
const HEAD: usize = 8;

/// The system's allocator, which gets requests for whole lines only.
#[derive(Debug)]
pub struct Lines;

fn rounded(size: usize) -> usize {
    size.saturating_add(HEAD).next_multiple_of(LINE) - HEAD
}

fn whole_lines(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(rounded(layout.size()), layout.align()).ok()
}

// SAFETY: every call passes a layout to the system's allocator that is at least as large as the
// caller's; allocation, reallocation and release derive it by the same rule.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Lines {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match whole_lines(layout) {
            // SAFETY: the layout is not empty, since the caller's is not.
            Some(layout) => unsafe { System.alloc(layout) },
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match whole_lines(layout) {
            // SAFETY: as above.
            Some(layout) => unsafe { System.alloc_zeroed(layout) },
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(layout) = whole_lines(layout) {
            super::forget(pointer.addr(), layout.size());
            // SAFETY: the pointer came from `alloc` with this layout.
            unsafe { System.dealloc(pointer, layout) };
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        match whole_lines(layout) {
            // SAFETY: the pointer came from `alloc` with this layout; the new size is not zero and
            // does not overflow when rounded, or the system refuses it.
            Some(layout) => unsafe { System.realloc(pointer, layout, rounded(new_size)) },
            None => std::ptr::null_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn objects_and_their_heads_are_whole_lines() {
        for (size, expected) in [(1, 56), (56, 56), (57, 120), (64, 120), (4096, 4152)] {
            assert_eq!(rounded(size), expected);
        }
    }
}
