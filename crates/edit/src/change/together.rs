//! Changes of one command that put several files into a directory.
//!
//! Their names there are those of the sources, and two may be the same. None of the files then
//! replaces the other, as with the commands of coreutils: after a move nothing would be left of the
//! first. Two directories are merged, and so on below them.

use std::cell::RefCell;
use std::collections::HashSet;

use pext4_fs::{FileType, InodeNumber, Refusal};

use super::Change;
use super::paths::ParentAndName;
use crate::error::{EditError, Result, refuse};
use crate::session::EditSession;
use crate::tree_writer::{Overrides, TreeWriter, Written, find};

/// What the changes that are being applied together have put into the image so far; `None` between
/// such changes.
#[derive(Debug, Default)]
pub(crate) struct PutTogether(RefCell<Option<SoFar>>);

#[derive(Debug, Default)]
struct SoFar {
    /// What lies in the directory.
    inodes: HashSet<InodeNumber>,
    /// What lies below it too, if trees were written.
    written: Written,
}

impl EditSession {
    /// Applies the changes of one command, each of which puts a file or a tree into `directory`,
    /// its destination. None replaces what another one of them has put there. If it fails, the
    /// session refuses to [`prepare`](Self::prepare).
    ///
    /// # Errors
    ///
    /// There is no such directory; those of [`EditSession::apply`].
    pub fn apply_together(&mut self, directory: &[u8], changes: &[Change]) -> Result<()> {
        self.change(|session| {
            session.check_directory(directory)?;
            session.put_together.0.replace(Some(SoFar::default()));
            let applied = changes.iter().try_for_each(|change| session.apply(change));
            session.put_together.0.replace(None);
            applied
        })
    }

    fn check_directory(&self, path: &[u8]) -> Result<()> {
        let is_directory = match self.resolve(path) {
            Err(EditError::AtPath { source, .. })
                if source.is(Refusal::NotFound) || source.is(Refusal::NotADirectory) =>
            {
                false
            }
            found => found?.kind() == FileType::Directory,
        };
        match is_directory {
            true => Ok(()),
            false => refuse(
                path,
                "is no directory; several files go into one that is there",
            ),
        }
    }

    /// Refuses to replace a file that a change of the same command has put there. A directory may
    /// be merged with one.
    pub(super) fn check_replaceable(
        &self,
        entry: &ParentAndName<'_>,
        by: FileType,
        from: &str,
    ) -> Result<()> {
        let put = self.put_together.0.borrow();
        let Some(put) = put.as_ref().filter(|put| !put.inodes.is_empty()) else {
            return Ok(());
        };
        let there = self.at(entry)?;
        match there {
            Some((inode, kind)) if put.inodes.contains(&inode) => {
                if kind == FileType::Directory && by == FileType::Directory {
                    return Ok(());
                }
                let problem =
                    format!("{from} has the same name as what this command has just put here");
                refuse(&entry.path, problem)
            }
            _ => Ok(()),
        }
    }

    /// Notes what is at a place now, if several changes belong together.
    pub(super) fn note_put(&self, entry: &ParentAndName<'_>) -> Result<()> {
        if self.put_together.0.borrow().is_none() {
            return Ok(());
        }
        let there = self.at(entry)?;
        if let (Some(put), Some((inode, _))) = (&mut *self.put_together.0.borrow_mut(), there) {
            put.inodes.insert(inode);
        }
        Ok(())
    }

    /// A writer of a tree, which knows the files of those before it.
    pub(super) fn writer(&self, overrides: Overrides) -> TreeWriter<'_> {
        let mut put = self.put_together.0.borrow_mut();
        let written = put.as_mut().map(|put| std::mem::take(&mut put.written));
        TreeWriter::of_tree(self, overrides, written)
    }

    /// Keeps what the writer of a tree knows for those behind it.
    pub(super) fn keep_written(&self, writer: TreeWriter<'_>) {
        if let Some(put) = &mut *self.put_together.0.borrow_mut() {
            put.written = writer.into_written();
        }
    }

    /// What is at a place.
    pub(super) fn at(&self, entry: &ParentAndName<'_>) -> Result<Option<(InodeNumber, FileType)>> {
        let there = find(
            self.volume(),
            entry.parent.inode(),
            &entry.name,
            &entry.path,
        )?;
        Ok(there.map(|there| (there.inode(), there.kind())))
    }
}
