//! The removal of a directory with everything in it.

use std::collections::HashSet;
use std::ops::Deref;
use std::rc::Rc;

use pext4_ondisk::InodeNumber;

use super::{AsVolumePath, DirEntry, HeldInode, Paths};
use crate::error::{Refusal, Result};
use crate::types::FileType;
use crate::volume::Volume;

/// A directory that [`Paths::remove_dir_all`] has yet to remove.
struct PendingRemoval<V: Deref<Target = Volume>> {
    /// Held as long as a directory in it is pending, and no longer: a directory that is removed
    /// while it is held stays in memory and is an orphan.
    parent: Rc<HeldInode<V>>,
    name: Vec<u8>,
    /// The directory, once its entries have been listed.
    entered: Option<InodeNumber>,
}

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// Removes a directory and everything in it. Symbolic links are removed, not followed, also one
    /// at the end of the path.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_directory`], [`Volume::unlink`] and [`Volume::remove_directory`];
    /// `Refused(NotEmpty)` for a directory that contains itself, or lists no names though it is not
    /// empty, as in a corrupt image. What was removed before an error stays removed.
    pub fn remove_dir_all(&self, path: impl AsVolumePath) -> Result<()> {
        let path = path.as_volume_path();
        let (parent, name) = self.parent(path)?;
        let is_link = self.walk(path, false)?.file_type() == FileType::Symlink;
        if is_link {
            return self.volume.unlink(parent.inode, name);
        }
        let mut pending = vec![PendingRemoval {
            parent: Rc::new(parent),
            name: name.to_vec(),
            entered: None,
        }];
        let mut entered = HashSet::new();
        while let Some(next) = pending.last_mut() {
            match self.volume.remove_directory(next.parent.inode, &next.name) {
                Err(error) if error.is(Refusal::NotEmpty) => {}
                removed => {
                    removed?;
                    if let Some(inode) = pending.pop().and_then(|done| done.entered) {
                        entered.remove(&inode);
                    }
                    continue;
                }
            }
            let found = self.volume.lookup(next.parent.inode, &next.name)?;
            let directory = Rc::new(self.hold(found.inode));
            let is_first = next.entered != Some(directory.inode);
            if is_first {
                if !entered.insert(directory.inode) {
                    return Err(Refusal::NotEmpty.into());
                }
                // Another thread may have put a new directory in the place of the first one.
                if let Some(before) = next.entered.replace(directory.inode) {
                    entered.remove(&before);
                }
            }
            let entries = self.entries_of(directory.inode)?;
            // A corrupt directory may hide the names that keep it from being empty.
            if entries.is_empty() && !is_first {
                return Err(Refusal::NotEmpty.into());
            }
            for entry in entries {
                match self.volume.unlink(directory.inode, &entry.name) {
                    Err(error) if error.is(Refusal::IsADirectory) => pending.push(PendingRemoval {
                        parent: Rc::clone(&directory),
                        name: entry.name,
                        entered: None,
                    }),
                    unlinked => unlinked?,
                }
            }
        }
        Ok(())
    }

    fn entries_of(&self, directory: InodeNumber) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.volume.read_directory(directory, 0, &mut |entry| {
            entries.extend(DirEntry::of(&entry));
            true
        })?;
        Ok(entries)
    }
}
