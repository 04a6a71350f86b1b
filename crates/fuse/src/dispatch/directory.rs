//! Directory listings, with and without the attributes of each entry.
//!
//! The transport takes entries until its reply is full. Without attributes, names are gathered under
//! the directory's lock, and their inodes are read after it is released. With attributes, each
//! entry's inode is read under that lock, while the name is known to refer to it. Every entry with
//! attributes holds its node once, like a lookup; `.` and `..` do not.

use pext4_fs::{Attributes, DirectoryEntry, Error, FileType, InodeNumber, Lead, Refusal, Volume};
use pext4_ondisk::directory::is_valid_name;

use super::{Answer, Dispatch};
use crate::node::{is_own_node, node_of};

/// Bytes of entries that are gathered at once: the size of the C library's buffer.
const GATHERED_BYTES: usize = 32 << 10;
/// Bytes of an entry before its name, without attributes.
const PLAIN_HEADER: usize = 24;

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
    entries: Vec<Listed>,
}

impl Gathered {
    fn new(room: usize) -> Self {
        Self {
            room,
            entries: Vec::new(),
        }
    }

    fn take(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        // Encrypted names may contain any byte, and the kernel fails a listing with a name that no
        // path can contain.
        if !is_valid_name(entry.name) {
            return true;
        }
        let size = (PLAIN_HEADER + entry.name.len()).next_multiple_of(8);
        let Some(left) = self.room.checked_sub(size) else {
            return false;
        };
        self.room = left;
        self.entries.push(Listed::of(entry));
        true
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
        let gathered = self.gather(Self::inode(node)?, cookie)?;
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
    /// `take` runs under the directory's lock.
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
        let mut plus = Plus::new(&self.volume, take);
        let read = self
            .volume
            .read_directory_with(directory, cookie, &mut |entry, lead| {
                plus.show(&entry, lead)
            });
        let Plus {
            has_taken,
            refused,
            errors,
            ..
        } = plus;
        if let Some(refused) = refused {
            self.forget(node_of(refused), 1);
        }
        for error in errors {
            // Such an entry has no attributes; the log says why.
            let _ = self.answer::<()>(Err(error));
        }
        let told = self.answer(read);
        // What can be read comes first; the request that continues behind it gets the error.
        if !has_taken {
            told?;
        }
        self.note_access(directory, self.access_times.directories);
        Ok(())
    }

    fn gather(&self, directory: InodeNumber, cookie: u64) -> Answer<Gathered> {
        let mut gathered = Gathered::new(GATHERED_BYTES);
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

/// A reply with attributes that is being assembled.
struct Plus<'a> {
    volume: &'a Volume,
    take: &'a mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    has_taken: bool,
    /// The inode that was held for the entry which did not fit into the reply.
    refused: Option<InodeNumber>,
    /// Why the inodes of some entries cannot be read.
    errors: Vec<Error>,
}

impl<'a> Plus<'a> {
    fn new(
        volume: &'a Volume,
        take: &'a mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    ) -> Self {
        Self {
            volume,
            take,
            has_taken: false,
            refused: None,
            errors: Vec::new(),
        }
    }

    /// Shows an entry; false if the reply is full.
    fn show(&mut self, entry: &DirectoryEntry<'_>, lead: &mut Lead<'_>) -> bool {
        // Encrypted names may contain any bytes, and the kernel gives up a listing with a name that no path can
        // contain.
        if !is_valid_name(entry.name) {
            return true;
        }
        let listed = Listed::of(entry);
        let (is_held, attributes) = match lead() {
            Ok(attributes) => (!listed.is_dot(), Some(attributes)),
            Err(error) if error.is(Refusal::NotFound) => return true,
            Err(error) => {
                self.errors.push(error);
                (self.hold_unreadable(&listed), None)
            }
        };
        let taken = (self.take)(&listed, attributes.as_ref());
        self.has_taken |= taken;
        if !taken && is_held {
            self.refused = Some(listed.inode);
        }
        taken
    }

    /// Holds the node of an entry whose inode cannot be read: the kernel takes a node for it and
    /// forgets it later, unless its number stands for no inode.
    fn hold_unreadable(&self, listed: &Listed) -> bool {
        let has_node = !listed.is_dot() && is_own_node(listed.inode);
        if has_node {
            self.volume.hold(listed.inode);
        }
        has_node
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
        let mut gathered = Gathered::new(64);
        assert!(gathered.take(&entry(b"a/b", 1)));
        assert!(gathered.take(&entry(b"c", 2)));
        assert_eq!(gathered.entries.len(), 1);
        assert_eq!(gathered.entries[0].name, b"c");
    }

    #[test]
    fn names_are_gathered_until_the_first_that_does_not_fit() {
        // 24 bytes of header and 5 of name make 32.
        let mut gathered = Gathered::new(64);
        assert!(gathered.take(&entry(b"first", 1)));
        assert!(gathered.take(&entry(b"later", 2)));
        assert!(!gathered.take(&entry(b"x", 3)));
        let names: Vec<_> = gathered
            .entries
            .iter()
            .map(|listed| listed.name.as_slice())
            .collect();
        assert_eq!(names, [b"first", b"later"]);
    }
}
