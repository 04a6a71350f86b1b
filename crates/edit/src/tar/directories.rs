//! The directories of an archive, whose attributes are set when all its entries are made.
//!
//! They are remembered by their inodes, since a path may lead elsewhere by then: a later entry may
//! replace the directory or a link on the path. A number that another file has been given in the
//! meantime is recognised by its generation.

use std::collections::HashSet;

use pext4_fs::{Attributes, FileType, InodeNumber, Refusal, Volume};

use crate::error::{FsContext, Result};
use crate::source::FileMetadata;

struct Directory {
    inode: InodeNumber,
    generation: u32,
    /// For errors.
    path: Vec<u8>,
    metadata: FileMetadata,
}

/// The directories so far.
#[derive(Default)]
pub(super) struct Directories(Vec<Directory>);

impl Directories {
    /// Adds a directory that is there. If it is added several times, under any names, the last one
    /// counts.
    pub(super) fn push(&mut self, there: &Attributes, path: &[u8], metadata: FileMetadata) {
        self.0.push(Directory {
            inode: there.inode,
            generation: there.generation,
            path: path.to_vec(),
            metadata,
        });
    }

    /// Passes on each directory that is still there, children before their parents.
    pub(super) fn for_each(
        self,
        volume: &Volume,
        mut set: impl FnMut(InodeNumber, FileMetadata, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut done = HashSet::new();
        for directory in self.0.into_iter().rev() {
            let (inode, generation) = (directory.inode, directory.generation);
            if !done.insert((inode, generation)) {
                continue;
            }
            let path = &directory.path;
            let there = match volume.lookup_number(inode) {
                Err(error) if error.is(Refusal::Stale) => continue,
                there => there.with_path(path)?,
            };
            let attributes = there.attributes;
            let _held = volume.paths().adopt(there);
            if attributes.generation == generation && attributes.file_type == FileType::Directory {
                set(inode, directory.metadata, path)?;
            }
        }
        Ok(())
    }
}
