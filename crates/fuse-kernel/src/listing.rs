//! The reply to a listing: entries of a directory, as many as the kernel has room for.

use zerocopy::IntoBytes;

use crate::reply::Entry;
use crate::wire::DirectoryEntry;

/// Every entry begins at a multiple of so many bytes.
const ALIGNMENT: usize = 8;

/// Entries of a directory.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    /// An empty listing of at most `room` bytes.
    #[must_use]
    pub fn new(room: u32) -> Self {
        Self {
            bytes: Vec::new(),
            room: room as usize,
        }
    }

    /// Adds a name; false, and nothing is added, if there is no room. `kind` is the type of file as
    /// `st_mode` has it; behind `cookie` the listing continues.
    pub fn add(&mut self, inode: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        self.push(&[], inode, cookie, kind, name)
    }

    /// Adds a name with the attributes of its node; false as for [`Listing::add`].
    pub fn add_entry(&mut self, entry: &Entry, cookie: u64, name: &[u8]) -> bool {
        let (inode, kind) = (entry.attributes.inode, entry.attributes.mode);
        self.push(entry.encode().as_bytes(), inode, cookie, kind, name)
    }

    /// The encoded entries.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push(&mut self, before: &[u8], inode: u64, cookie: u64, mode: u32, name: &[u8]) -> bool {
        const TYPE_SHIFT: u32 = 12;
        let length = before.len() + size_of::<DirectoryEntry>() + name.len();
        let end = (self.bytes.len() + length).next_multiple_of(ALIGNMENT);
        let Ok(name_length) = u32::try_from(name.len()) else {
            return false;
        };
        if end > self.room {
            return false;
        }
        let entry = DirectoryEntry {
            inode,
            cookie,
            name_length,
            kind: mode >> TYPE_SHIFT & 0xf,
        };
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Listing;

    #[test]
    fn entries_are_aligned_and_end_with_the_room() {
        let mut listing = Listing::new(64);
        assert!(listing.add(11, 1, 0o100_644, b"nine char"));
        assert_eq!(listing.bytes().len(), 40);
        assert_eq!(listing.bytes()[20], 8, "a regular file");
        assert!(listing.bytes()[33..].iter().all(|&byte| byte == 0));
        assert!(!listing.add(12, 2, 0o040_755, b"x"), "24 + 1 bytes");
        assert_eq!(listing.bytes().len(), 40, "nothing was added");
        assert!(listing.add(12, 2, 0o040_755, b""), "24 bytes fit");
    }
}
