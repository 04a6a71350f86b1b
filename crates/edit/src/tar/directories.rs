//! The directories of an archive, whose attributes are set when all its entries are made.
//!
//! They are remembered by their inodes, since a path may lead elsewhere by then: a later entry may
//! replace the directory or a link on the path. A number that another file has been given in the
//! meantime is recognised by its generation.
//!
//! An archive may name one directory any number of times, and a header for all entries may give all
//! of them the same attributes. So each is kept once, and equal sets of extended attributes share
//! their memory: what is kept has about the size of what the archive spells out.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use pext4_fs::{FileType, InodeNumber, Refusal, Volume};

use crate::error::{FsContext, Result};
use crate::source::FileMetadata;

/// Names and values of extended attributes.
type Xattrs = Rc<Vec<(Vec<u8>, Vec<u8>)>>;

struct Directory {
    /// How many entries with directories came before its last one.
    position: u64,
    /// For errors.
    path: Vec<u8>,
    /// Without the extended attributes.
    metadata: FileMetadata,
    xattrs: Xattrs,
}

/// The directories so far.
#[derive(Default)]
pub(super) struct Directories {
    /// By inode number and generation.
    kept: HashMap<(InodeNumber, u32), Directory>,
    /// All sets of extended attributes.
    xattrs: HashSet<Xattrs>,
    entries: u64,
}

impl Directories {
    /// Adds a directory that is there, by its inode number and generation. If it is added several
    /// times, under any names, the last one counts.
    pub(super) fn push(
        &mut self,
        there: (InodeNumber, u32),
        path: &[u8],
        mut metadata: FileMetadata,
    ) {
        let xattrs = self.shared(std::mem::take(&mut metadata.xattrs));
        let directory = Directory {
            position: self.entries,
            path: path.to_vec(),
            metadata,
            xattrs,
        };
        self.kept.insert(there, directory);
        self.entries += 1;
    }

    fn shared(&mut self, xattrs: Vec<(Vec<u8>, Vec<u8>)>) -> Xattrs {
        if let Some(found) = self.xattrs.get(&xattrs) {
            return Rc::clone(found);
        }
        let new = Rc::new(xattrs);
        self.xattrs.insert(Rc::clone(&new));
        new
    }

    /// Passes on each directory that is still there, children before their parents.
    pub(super) fn for_each(
        self,
        volume: &Volume,
        mut set: impl FnMut(InodeNumber, FileMetadata, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut kept: Vec<_> = self.kept.into_iter().collect();
        kept.sort_unstable_by_key(|(_, directory)| std::cmp::Reverse(directory.position));
        for ((inode, generation), directory) in kept {
            let path = &directory.path;
            let there = match volume.lookup_number(inode) {
                Err(error) if error.is(Refusal::Stale) => continue,
                there => there.with_path(path)?,
            };
            let attributes = there.attributes;
            let _held = volume.paths().adopt(there);
            if attributes.generation == generation && attributes.file_type == FileType::Directory {
                let metadata = FileMetadata {
                    xattrs: directory.xattrs.to_vec(),
                    ..directory.metadata
                };
                set(inode, metadata, path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pext4_fs::{DeviceNumber, FileType, InodeNumber, Time};

    use super::{Directories, FileMetadata};

    #[test]
    fn a_directory_is_kept_once_and_equal_attributes_too() {
        let metadata = |permissions, value: &[u8]| FileMetadata {
            kind: FileType::Directory,
            permissions,
            uid: 0,
            gid: 0,
            accessed: Time::default(),
            modified: Time::default(),
            size: 0,
            device: DeviceNumber::default(),
            target: Vec::new(),
            xattrs: vec![(b"user.a".to_vec(), value.to_vec())],
            flags: None,
            identity: None,
        };
        let mut directories = Directories::default();
        for permissions in 0..1000 {
            let first = (InodeNumber(20), 1);
            directories.push(first, b"/first", metadata(permissions, b"same"));
        }
        for (inode, value) in [(21, b"same"), (22, b"else")] {
            directories.push((InodeNumber(inode), 1), b"/next", metadata(0, value));
        }
        assert_eq!((directories.kept.len(), directories.xattrs.len()), (3, 2));
        let last = &directories.kept[&(InodeNumber(20), 1)];
        assert_eq!((last.metadata.permissions, last.position), (999, 999));
        assert!(last.metadata.xattrs.is_empty());
    }
}
