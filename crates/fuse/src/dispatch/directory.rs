//! Directory listings, with and without the attributes of each entry.
//!
//! The transport takes entries until its reply is full. A directory is locked while it is read, so
//! its names are gathered first and their inodes are read afterwards. Every entry with attributes
//! holds its node once, like a lookup; `.` and `..` do not.

use pext4_fs::{Attributes, DirectoryEntry, FileType, InodeNumber, Refusal};
use pext4_ondisk::directory::is_sound_name;

use super::{Answer, Dispatch};
use crate::node::{is_own_node, node_of};

/// Bytes of entries that are gathered at once: the size of the C library's buffer.
const GATHERED_BYTES: usize = 32 << 10;
/// Bytes of an entry before its name, without attributes.
const PLAIN_HEADER: usize = 24;
/// Bytes of an entry before its name, with attributes.
const PLUS_HEADER: usize = 152;

/// One name of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The inode number, shown as `d_ino`.
    pub inode: InodeNumber,
    /// The kind of file, if the directory entry has it.
    pub file_type: Option<FileType>,
    /// The name.
    pub name: Vec<u8>,
    /// The position after this entry, for the kernel's next request.
    pub cookie: u64,
}

impl Listed {
    fn of(entry: &DirectoryEntry<'_>) -> Self {
        Self {
            inode: entry.inode,
            file_type: entry.file_type,
            name: entry.name.to_vec(),
            cookie: entry.next_cookie,
        }
    }

    fn is_dot(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }
}

/// Names gathered for one reply.
struct Gathered {
    /// Bytes that are still free.
    room: usize,
    /// Bytes of an entry before its name.
    header: usize,
    entries: Vec<Listed>,
    /// Whether a name was left out because it did not fit.
    full: bool,
}

impl Gathered {
    fn new(room: usize, header: usize) -> Self {
        Self {
            room,
            header,
            entries: Vec::new(),
            full: false,
        }
    }

    fn take(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        // Encrypted names may contain any byte, and the kernel fails a listing with a name that no
        // path can contain.
        if !is_sound_name(entry.name) {
            return true;
        }
        let size = (self.header + entry.name.len()).next_multiple_of(8);
        self.full = size > self.room;
        if !self.full {
            self.room -= size;
            self.entries.push(Listed::of(entry));
        }
        !self.full
    }
}

impl Dispatch {
    /// Lists a directory from `cookie` on (0: its start) until `take` answers false.
    ///
    /// # Errors
    /// The volume's.
    pub fn list(
        &self,
        node: u64,
        cookie: u64,
        take: &mut dyn FnMut(&Listed, FileType) -> bool,
    ) -> Answer<()> {
        let gathered = self.gather(Self::inode(node)?, cookie, PLAIN_HEADER)?;
        for listed in &gathered.entries {
            let file_type = listed.file_type.or_else(|| {
                let attributes = self.volume.attributes(listed.inode);
                attributes.ok().map(|attributes| attributes.file_type)
            });
            if !take(listed, file_type.unwrap_or(FileType::Regular)) {
                break;
            }
        }
        Ok(())
    }

    /// The same with attributes. A name that was removed meanwhile is left out; a name whose inode
    /// cannot be read has none.
    ///
    /// # Errors
    /// The volume's.
    pub fn list_with_attributes(
        &self,
        node: u64,
        cookie: u64,
        take: &mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    ) -> Answer<()> {
        let directory = Self::inode(node)?;
        let mut from = cookie;
        loop {
            let gathered = self.gather(directory, from, PLUS_HEADER)?;
            let Some(last) = gathered.entries.last() else {
                return Ok(());
            };
            from = last.cookie;
            let mut taken = false;
            for listed in &gathered.entries {
                match self.show(directory, listed, take) {
                    Shown::Taken => taken = true,
                    Shown::Gone => {}
                    Shown::Refused => return Ok(()),
                }
            }
            // A reply without an entry would mean the end.
            if taken || !gathered.full {
                return Ok(());
            }
        }
    }

    fn show(
        &self,
        directory: InodeNumber,
        listed: &Listed,
        take: &mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    ) -> Shown {
        if listed.is_dot() {
            let attributes = self.answer(self.volume.attributes(listed.inode)).ok();
            return Shown::of(take(listed, attributes.as_ref()));
        }
        match self.answer_unless(
            self.volume.lookup(directory, &listed.name),
            Refusal::NotFound,
        ) {
            Ok(Some(found)) => {
                let taken = take(listed, Some(&found.attributes));
                if !taken {
                    self.forget(node_of(found.inode), 1);
                }
                Shown::of(taken)
            }
            Ok(None) => Shown::Gone,
            Err(_) => Shown::of(self.show_unreadable(listed, take)),
        }
    }

    /// Shows a name whose inode cannot be read. The kernel takes a node for it and forgets it
    /// later, so the node is held, unless its number stands for no inode.
    fn show_unreadable(
        &self,
        listed: &Listed,
        take: &mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    ) -> bool {
        let has_node = is_own_node(listed.inode);
        if has_node {
            self.volume.hold(listed.inode);
        }
        let taken = take(listed, None);
        if has_node && !taken {
            self.forget(node_of(listed.inode), 1);
        }
        taken
    }

    fn gather(&self, directory: InodeNumber, cookie: u64, header: usize) -> Answer<Gathered> {
        let mut gathered = Gathered::new(GATHERED_BYTES, header);
        let read = self
            .volume
            .read_directory(directory, cookie, &mut |entry| gathered.take(&entry));
        let result = self.answer(read);
        // The entries before an error are listed; the next request, which finds none, gets the
        // error.
        if gathered.entries.is_empty() {
            result?;
        }
        self.note_access(directory, self.access_times.directories);
        Ok(gathered)
    }
}

/// The result for one entry of a listing.
enum Shown {
    Taken,
    /// The reply is full.
    Refused,
    /// The name was removed meanwhile.
    Gone,
}

impl Shown {
    fn of(taken: bool) -> Self {
        if taken { Self::Taken } else { Self::Refused }
    }
}

#[cfg(test)]
mod tests {
    use super::{DirectoryEntry, FileType, Gathered, InodeNumber};

    fn entry(name: &[u8], next_cookie: u64) -> DirectoryEntry<'_> {
        let file_type = Some(FileType::Regular);
        DirectoryEntry {
            inode: InodeNumber::new(12),
            file_type,
            name,
            next_cookie,
        }
    }

    #[test]
    fn names_that_no_path_can_hold_are_left_out() {
        let mut gathered = Gathered::new(64, 24);
        assert!(gathered.take(&entry(b"a/b", 1)));
        assert!(gathered.take(&entry(b"c", 2)));
        assert_eq!(gathered.entries.len(), 1);
        assert_eq!(gathered.entries[0].name, b"c");
    }

    #[test]
    fn names_are_gathered_until_the_first_that_does_not_fit() {
        // 24 bytes of header and 5 of name make 32.
        let mut gathered = Gathered::new(64, 24);
        assert!(gathered.take(&entry(b"first", 1)));
        assert!(gathered.take(&entry(b"later", 2)));
        assert!(!gathered.full);
        assert!(!gathered.take(&entry(b"x", 3)));
        assert!(gathered.full);
        let names: Vec<_> = gathered
            .entries
            .iter()
            .map(|listed| listed.name.as_slice())
            .collect();
        assert_eq!(names, [b"first", b"later"]);
    }
}
