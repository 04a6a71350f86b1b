//! Listings of directories, with and without what each name leads to.
//!
//! The transport takes entries until its reply is full. Without attributes names are gathered first, as what the
//! directory does not tell of them is asked when its lock is given back. With them each name is looked at as it
//! comes, under that lock, while it leads where it says. Such an entry holds its node once, like a lookup; `.` and
//! `..` do not.

use pext4_fs::{Attributes, DirectoryEntry, Error, FileType, InodeNumber, Lead, Refusal, Volume};
use pext4_ondisk::directory::is_sound_name;

use super::{Answer, Dispatch};
use crate::node::{is_own_node, node_of};

/// Bytes that are gathered at once: what fits into the buffer with which the C library asks.
const GATHERED: usize = 32 << 10;
/// Bytes of an entry before its name, without attributes.
const PLAIN_HEADER: usize = 24;

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
        // Encrypted names may hold anything, and the kernel gives up a listing with one that no path can hold.
        if !is_sound_name(entry.name) {
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

    /// The same with attributes. A name that went away meanwhile is left out; one that leads to
    /// what cannot be read comes without.
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
            // What cannot be read comes without; here is told why.
            let _ = self.answer::<()>(Err(error));
        }
        let told = self.answer(read);
        // What can be read comes first. Who asks for what lies behind it is told why there is no more.
        if !has_taken {
            told?;
        }
        self.note_access(directory, self.noting.directories);
        Ok(())
    }

    fn gather(&self, directory: InodeNumber, cookie: u64) -> Answer<Gathered> {
        let mut gathered = Gathered::new(GATHERED);
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

/// A reply with attributes that is being made.
struct Plus<'a> {
    volume: &'a Volume,
    take: &'a mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    has_taken: bool,
    /// What was held for the entry that the reply had no room for.
    refused: Option<InodeNumber>,
    /// Why some things cannot be looked at.
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
        // Encrypted names may hold anything, and the kernel gives up a listing with one that no path can hold.
        if !is_sound_name(entry.name) {
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

    /// The kernel takes a node for a name of what cannot be looked at too, and gives it back later; one that stands
    /// for nothing is not held.
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
