//! The bytes of one block, with copy on write.
//!
//! Cloning a page takes a reference. Changing a page that has other references copies it first, so
//! a clone is a version that never changes. That is how a transaction captures a block.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use pext4_sync::memory;

/// Shared bytes with copy on write; the default is empty.
#[derive(Clone, Default)]
pub struct Page(Arc<[u8]>);

impl Page {
    /// `length` zeroes.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Self(std::iter::repeat_n(0, length).collect())
    }

    /// The bytes for changing; copied first if the page has other references.
    pub fn make_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0)
    }

    /// Requests what [`Page::make_mut`] will write besides the bytes, for a caller that is about to
    /// change them.
    pub fn fetch_for_writing(&self) {
        memory::fetch_counts_for_writing(&self.0);
    }

    /// Whether both are the same version, and not just equal in their bytes.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Page {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&[u8]> for Page {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Page({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::Page;

    #[test]
    fn a_clone_keeps_its_version() {
        let mut page = Page::from(vec![1, 2, 3]);
        let version = page.clone();
        assert!(page.same(&version));
        page.make_mut()[0] = 9;
        assert!(!page.same(&version));
        assert_eq!(*version, [1, 2, 3]);
        assert_eq!(*page, [9, 2, 3]);
    }

    #[test]
    fn a_page_held_once_is_changed_in_place() {
        let mut page = Page::zeroed(4096);
        let before = page.as_ptr();
        page.make_mut().fill(7);
        assert_eq!(page.as_ptr(), before);
        assert!(page.iter().all(|byte| *byte == 7));
    }
}
