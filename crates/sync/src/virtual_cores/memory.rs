//! Memory in which no two objects share a cache line.
//!
//! Which objects happen to lie on one line depends on what was allocated before, so a run would not
//! repeat. A program with virtual cores makes [`Lines`] its allocator: sizes are rounded up so that
//! the objects of the system's allocator, which keeps eight bytes of its own before each, begin at
//! the same place of a line, always. So two objects never share a line by accident; that real
//! programs may is a thing the virtual cores do not see. Memory that is given back is told to the
//! machine, which forgets whose its lines were.

use std::alloc::{GlobalAlloc, Layout, System};

/// Bytes of a line.
const LINE: usize = 64;
/// Bytes that the system's allocator adds to an object.
const HEAD: usize = 8;

/// The system's allocator, asked for whole lines.
pub struct Lines;

fn rounded(size: usize) -> usize {
    size.saturating_add(HEAD).next_multiple_of(LINE) - HEAD
}

fn whole_lines(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(rounded(layout.size()), layout.align()).ok()
}

// SAFETY: every call goes to the system's allocator with a layout that is at least as large, made
// from the caller's by the same rule when memory is had, changed and given back.
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
