//! Listings of directories by path.

use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::ops::Deref;

use pext4_ondisk::InodeNumber;

use super::{AsVolumePath, HeldInode, Paths};
use crate::error::Result;
use crate::types::{DirectoryEntry, FileType};
use crate::volume::Volume;

/// The number of entries that are fetched at once, with their own copies of the names. Those whose
/// names have the same hash are not divided, so it may be a few more.
const BATCH: usize = 1024;

/// One entry of a listing, with its own copy of the name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// The inode to which it refers.
    pub inode: InodeNumber,
    /// The kind of file, if the directory stores it (feature `filetype`).
    pub file_type: Option<FileType>,
}

impl DirEntry {
    /// A copy of an entry, unless it is `.` or `..`.
    pub(super) fn of(entry: &DirectoryEntry<'_>) -> Option<Self> {
        (entry.name != b"." && entry.name != b"..").then(|| Self {
            name: entry.name.to_vec(),
            inode: entry.inode,
            file_type: entry.file_type,
        })
    }
}

/// The entries of a directory, except `.` and `..`, from [`Paths::read_dir`]. Entries that exist as
/// long as the iterator does are returned exactly once. An error stands for names that cannot be
/// read; others may follow.
#[derive(Debug)]
#[must_use = "a listing is read when it is iterated over"]
pub struct ReadDir<V: Deref<Target = Volume>> {
    directory: HeldInode<V>,
    fetched: VecDeque<Result<DirEntry>>,
    /// The cookie of the first entry that is not fetched yet; `None` if all are.
    next: Option<u64>,
}

impl<V: Deref<Target = Volume>> ReadDir<V> {
    /// Fetches the entries from a cookie on. If something is damaged, the error comes after them.
    fn fetch(&mut self, from: u64) {
        let (fetched, next) = (&mut self.fetched, &mut self.next);
        *next = None;
        let mut last = None;
        let directory = &self.directory;
        let listed = directory
            .volume
            .read_directory(directory.inode, from, &mut |entry| {
                if fetched.len() >= BATCH && last != Some(entry.cookie) {
                    *next = Some(entry.cookie);
                    return false;
                }
                last = Some(entry.cookie);
                fetched.extend(DirEntry::of(&entry).map(Ok));
                true
            });
        self.fetched.extend(listed.err().map(Err));
    }
}

impl<V: Deref<Target = Volume>> Iterator for ReadDir<V> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.fetched.is_empty()
            && let Some(next) = self.next
        {
            self.fetch(next);
        }
        self.fetched.pop_front()
    }
}

impl<V: Deref<Target = Volume>> FusedIterator for ReadDir<V> {}

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// The names of a directory except `.` and `..`, a batch at a time:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let volume = pext4_fs::Volume::open_image("disk.img", Default::default())?;
    /// let names: Result<Vec<_>, _> = volume.paths().read_dir("/etc")?.collect();
    /// println!("{} names, none of them damaged", names?.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Volume::read_directory`], if not even one name can be read; else the iterator returns
    /// the error after the names of a batch.
    pub fn read_dir(&self, path: impl AsVolumePath) -> Result<ReadDir<V>> {
        let mut listing = ReadDir {
            directory: self.resolve(path)?,
            fetched: VecDeque::new(),
            next: None,
        };
        listing.fetch(0);
        match listing.fetched.pop_front() {
            Some(Err(error)) => return Err(error),
            Some(first) => listing.fetched.push_front(first),
            None => {}
        }
        Ok(listing)
    }
}
