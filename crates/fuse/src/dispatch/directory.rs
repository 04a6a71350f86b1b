//! Directory listings, with and without the attributes of each entry.
//!
//! The transport takes entries until its reply is full. Without attributes, names are gathered
//! under the directory's lock, and their inodes are read after it is released. With attributes,
//! each entry's inode is read under that lock, while the name is known to refer to it. The node of
//! every entry with attributes is held once, as after a lookup, except those of `.` and `..`.

use pext4_fs::{
    Attributes, DirectoryEntry, Error, FileType, GetAttributes, InodeNumber, Refusal, Volume,
};
use pext4_ondisk::directory::is_valid_name;

use super::data::is_access;
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
    /// Lists a directory from `cookie` on (0: its start) until `take` returns false. `flags` are
    /// those with which it was opened.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn list(
        &self,
        node: u64,
        cookie: u64,
        flags: i32,
        take: &mut dyn FnMut(&Listed, FileType) -> bool,
    ) -> Answer<()> {
        let directory = Self::inode(node)?;
        let gathered = self.gather(directory, cookie)?;
        self.note_listing(directory, flags);
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

    /// As [`Self::list`], with attributes; their inode, and not that of the entry, is the one that
    /// is held. A name that was removed meanwhile is left out; a name whose inode cannot be read
    /// has no attributes.
    ///
    /// `take` runs under the directory's lock. `give_back` gets the node of an entry that was held
    /// and not taken: its hold is the caller's to release, with what the caller keeps of the node.
    ///
    /// # Errors
    ///
    /// The volume's.
    pub fn list_with_attributes(
        &self,
        node: u64,
        cookie: u64,
        flags: i32,
        take: &mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
        give_back: impl FnOnce(u64),
    ) -> Answer<()> {
        let directory = Self::inode(node)?;
        let mut reply = PlusReply::new(&self.volume, take);
        let read =
            self.volume
                .read_directory_with(directory, cookie, &mut |entry, get_attributes| {
                    reply.add(&entry, get_attributes)
                });
        let PlusReply {
            has_taken,
            refused,
            errors,
            ..
        } = reply;
        if let Some(refused) = refused {
            give_back(node_of(refused));
        }
        for error in errors {
            // Such an entry has no attributes; the reason is logged here.
            let _ = self.answer::<()>(Err(error));
        }
        self.end_reply(directory, has_taken, self.answer(read))?;
        self.note_listing(directory, flags);
        Ok(())
    }

    fn note_listing(&self, directory: InodeNumber, flags: i32) {
        if is_access(flags) {
            self.note_access(directory, self.access_times.directories);
        }
    }

    fn gather(&self, directory: InodeNumber, cookie: u64) -> Answer<Gathered> {
        let mut gathered = Gathered::new(GATHERED_BYTES);
        let read = self
            .volume
            .read_directory(directory, cookie, &mut |entry| gathered.take(&entry));
        let has_entries = !gathered.entries.is_empty();
        self.end_reply(directory, has_entries, self.answer(read))?;
        Ok(gathered)
    }

    /// The result of a reply to a listing. If it has entries, they are returned and the error of
    /// `read` waits for the end of the directory, which a reply without entries tells.
    fn end_reply(&self, directory: InodeNumber, has_entries: bool, read: Answer<()>) -> Answer<()> {
        let node = node_of(directory);
        if !has_entries {
            let pending = self.listing_errors.take(node);
            read.and(pending.map_or(Ok(()), Err))?;
        } else if let Err(error) = read {
            self.listing_errors.add(node, error);
        }
        Ok(())
    }
}

/// A reply with attributes that is being assembled.
struct PlusReply<'a> {
    volume: &'a Volume,
    take: &'a mut dyn FnMut(&Listed, Option<&Attributes>) -> bool,
    has_taken: bool,
    /// The inode that was held for the entry which did not fit into the reply.
    refused: Option<InodeNumber>,
    /// The errors of entries whose inodes cannot be read.
    errors: Vec<Error>,
}

impl<'a> PlusReply<'a> {
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

    /// Adds an entry; false if the reply is full.
    fn add(&mut self, entry: &DirectoryEntry<'_>, get_attributes: &mut GetAttributes<'_>) -> bool {
        // Encrypted names may contain any byte, and the kernel fails a listing with a name that no
        // path can contain.
        if !is_valid_name(entry.name) {
            return true;
        }
        let listed = Listed::of(entry);
        let (held, attributes) = match get_attributes() {
            Ok(attributes) => {
                let held = (!listed.is_dot()).then_some(attributes.inode);
                (held, Some(attributes))
            }
            Err(error) if error.is(Refusal::NotFound) => return true,
            Err(error) => {
                self.errors.push(error);
                (self.hold_unreadable(&listed), None)
            }
        };
        let taken = (self.take)(&listed, attributes.as_ref());
        self.has_taken |= taken;
        if !taken {
            self.refused = held;
        }
        taken
    }

    /// Holds the node of an entry whose inode cannot be read, and returns its inode: the kernel
    /// creates a node for it and forgets it later, unless the number stands for no inode.
    fn hold_unreadable(&self, listed: &Listed) -> Option<InodeNumber> {
        let has_node = !listed.is_dot() && is_own_node(listed.inode);
        has_node.then(|| {
            self.volume.hold(listed.inode);
            listed.inode
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_fs::{Attributes, CreateAttributes};

    use super::{DirectoryEntry, FileType, Gathered, InodeNumber, Listed};
    use crate::dispatch::Errno;
    use crate::testing;

    /// In an indexed directory, a name may be removed and created again for another inode while the
    /// directory is listed. The hold is on that inode.
    #[test]
    fn a_full_reply_gives_back_the_hold_of_the_inode_that_was_read() {
        let volume = Arc::new(testing::volume());
        let root = InodeNumber::ROOT;
        let create = |name: &[u8]| {
            let made = volume.create(root, name, &CreateAttributes::default());
            made.expect("room").inode
        };
        for number in 0..200 {
            volume.forget(create(format!("file-{number}").as_bytes()), 1);
        }
        let other = create(b"other");
        volume.forget(other, 1);
        let mut names = Vec::new();
        volume
            .read_directory(root, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .expect("it is sound");
        // After `.` and `..`; names of one leaf are gathered before the first of them is listed.
        let first = &names[2];
        let name = names[3..].iter().find(|name| name.starts_with(b"file"));
        let name = name.expect("there are 200");
        let old = volume.lookup(root, name).expect("it is there").inode;
        let dispatch = testing::dispatch(&volume);
        let mut read = None;
        let mut take = |listed: &Listed, attributes: Option<&Attributes>| {
            if listed.name == *first {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        volume.unlink(root, name).expect("only its leaf is locked");
                        let _ = volume.link(other, root, name).expect("there is room");
                        volume.forget(other, 1);
                    });
                });
            }
            let is_it = listed.name == *name;
            if is_it {
                read = attributes.map(|attributes| attributes.inode);
            } else if !listed.is_dot() {
                volume.forget(listed.inode, 1);
            }
            !is_it
        };
        dispatch
            .list_with_attributes(1, 0, 0, &mut take, |node| {
                dispatch.forget(node, 1);
            })
            .expect("it is sound");
        assert_eq!(read, Some(other));
        assert_eq!(volume.held(), [old]);
    }

    fn entry(name: &[u8], next_cookie: u64) -> DirectoryEntry<'_> {
        let mut entry = DirectoryEntry::new(InodeNumber(12), name, 0);
        (entry.file_type, entry.next_cookie) = (Some(FileType::Regular), next_cookie);
        entry
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

    #[test]
    fn each_of_two_listings_of_a_damaged_directory_gets_its_error() {
        let volume = Arc::new(testing::volume());
        let dispatch = testing::dispatch(&volume);
        let reply = |has_entries, read| dispatch.end_reply(InodeNumber::ROOT, has_entries, read);
        for _ in 0..2 {
            // The entries around the damage.
            assert_eq!(reply(true, Err(Errno::IO)), Ok(()));
        }
        for _ in 0..2 {
            assert_eq!(reply(false, Ok(())), Err(Errno::IO));
        }
        assert_eq!(reply(false, Ok(())), Ok(()));
    }
}
