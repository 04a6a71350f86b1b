//! Listings of directories, with and without what each name leads to.
//!
//! The transport takes entries until its reply is full. Names are gathered first and looked at
//! afterwards, since a directory is locked while it is read. Every entry that comes with
//! attributes holds its node once, like a lookup; `.` and `..` do not.

use pext4_fs::{Attributes, DirectoryEntry, FileType, InodeNumber, Refusal};
use pext4_ondisk::directory::is_valid_name;

use super::{Answer, Dispatch};
use crate::node::{is_own_node, node_of};

/// Bytes that are gathered at once: what fits into the buffer with which the C library asks.
const GATHERED: usize = 32 << 10;
/// Bytes of an entry before its name, without attributes.
const PLAIN_HEADER: usize = 24;
/// Bytes of an entry before its name, with attributes.
const PLUS_HEADER: usize = 152;

/// One name of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The number that `d_ino` shows.
    pub inode: InodeNumber,
    /// The kind of file, if the directory remembers it.
    pub file_type: Option<FileType>,
    /// The name.
    pub name: Vec<u8>,
    /// Where the kernel goes on behind it.
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
    room: usize,
    header: usize,
    entries: Vec<Listed>,
    /// Whether a name was left out for want of room.
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
        // Encrypted names may hold anything, and the kernel gives up a listing with one that no path can hold.
        if !is_valid_name(entry.name) {
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

    /// The same with attributes. A name that went away meanwhile is left out; one that leads to
    /// what cannot be read comes without.
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
        match self.unless(
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

    /// Shows a name of what cannot be looked at. The kernel takes a node for it, and gives it back later; one that
    /// stands for nothing is not held.
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
        let mut gathered = Gathered::new(GATHERED, header);
        let read = self
            .volume
            .read_directory(directory, cookie, &mut |entry| gathered.take(&entry));
        let told = self.answer(read);
        // What can be read comes first. Who asks for what lies behind it is told why there is no more.
        if gathered.entries.is_empty() {
            told?;
        }
        self.note_access(directory, self.noting.directories);
        Ok(gathered)
    }
}

/// What became of an entry.
enum Shown {
    Taken,
    Refused,
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
