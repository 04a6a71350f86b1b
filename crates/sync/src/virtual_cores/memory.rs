//! An allocator with which no two objects share a cache line.
//!
//! Which objects share a line by accident depends on earlier allocations, so a run would not
//! repeat. A program with virtual cores makes [`Lines`] its global allocator. It begins each object
//! at a line and ends it with one. Real programs may share lines by accident; the virtual cores do
//! not see that. The allocator reports freed memory to the machine, which drops all copies of its
//! lines.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::fresh_memory::whole_lines;

/// The system's allocator, which gets requests for whole lines only.
#[derive(Debug)]
pub struct Lines;

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
        let new = Layout::from_size_align(new_size, layout.align()).ok();
        let (Some(layout), Some(new)) = (whole_lines(layout), new.and_then(whole_lines)) else {
            return std::ptr::null_mut();
        };
        // SAFETY: the pointer came from `alloc` with this layout; the new size is not zero, and the
        // system refuses one that is too large.
        let moved = unsafe { System.realloc(pointer, layout, new.size()) };
        if !moved.is_null() && moved != pointer {
            super::forget(pointer.addr(), layout.size());
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc, Layout};

    use super::Lines;
    use crate::memory::LINE;

    #[test]
    #[allow(unsafe_code)]
    fn objects_are_whole_lines() {
        for (size, next_size) in [(1, 64), (56, 57), (64, 65), (4096, 100)] {
            let layout = Layout::from_size_align(size, 8).expect("a small size");
            // SAFETY: the layout is not empty; the objects are released below, with the layouts
            // that they have then.
            let mut objects = [(); 16].map(|()| unsafe { Lines.alloc(layout) });
            for object in &mut objects {
                assert!(!object.is_null());
                assert_eq!(object.addr() % LINE, 0, "an object of {size} bytes");
                // SAFETY: it was allocated with this layout, and the new size is not zero.
                *object = unsafe { Lines.realloc(*object, layout, next_size) };
                assert_eq!(object.addr() % LINE, 0, "an object of {next_size} bytes");
            }
            let mut lines: Vec<_> = objects.iter().map(|object| object.addr() / LINE).collect();
            lines.sort_unstable();
            let apart = lines
                .windows(2)
                .all(|pair| pair[1] - pair[0] >= next_size.div_ceil(LINE));
            assert!(apart, "objects of {next_size} bytes share lines: {lines:?}");
            let layout = Layout::from_size_align(next_size, 8).expect("a small size");
            for object in objects {
                // SAFETY: it was allocated above, and has this size now.
                unsafe { Lines.dealloc(object, layout) };
            }
        }
    }
}
