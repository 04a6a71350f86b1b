//! Paths in the image: of existing files, and of files to be created.

use pext4_fs::path::MAX_SYMLINKS;
use pext4_fs::{DeviceNumber, FileType, Refusal, Time};

use super::last_name;
use super::names::join_target;
use crate::error::{EditError, FsContext, Result, check_path, refuse};
use crate::image_tree::join;
use crate::session::EditSession;
use crate::source::FileMetadata;
use crate::tree_writer::{HeldInode, Overrides, find};

/// What is said of a file that goes into a directory, and has no name for that.
pub(super) const NAMELESS: &str = "what goes here has no name of its own";

/// A directory and a name in it, which may not exist.
pub(super) struct ParentAndName<'v> {
    pub(super) parent: HeldInode<'v>,
    pub(super) name: Vec<u8>,
    /// The path, for errors.
    pub(super) path: Vec<u8>,
}

impl EditSession {
    /// The inode that a path leads to. A link at its end is followed.
    pub(super) fn resolve(&self, path: &[u8]) -> Result<HeldInode<'_>> {
        check_path(path)?;
        let held = self.volume().paths().resolve(path);
        held.and_then(HeldInode::new).with_path(path)
    }

    /// The inode that a path leads to. A link at its end is not followed.
    pub(super) fn resolve_link(&self, path: &[u8]) -> Result<HeldInode<'_>> {
        check_path(path)?;
        let held = self.volume().paths().resolve_link(path);
        held.and_then(HeldInode::new).with_path(path)
    }

    /// The directory of a path, and its last name.
    pub(super) fn parent_and_name(&self, path: &[u8]) -> Result<ParentAndName<'_>> {
        check_path(path)?;
        let name = last_name(path);
        if name.is_empty() || name == b"." || name == b".." {
            return refuse(path, "the path must end in a name");
        }
        let end = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(0, |at| at + 1);
        let mut above = &path[..end - name.len()];
        while let [rest @ .., b'/'] = above
            && !rest.is_empty()
        {
            above = rest;
        }
        // Paths begin at the root, with a slash or without.
        let directory = self.resolve(if above.is_empty() { b"/" } else { above })?;
        if directory.kind() != FileType::Directory {
            return Err(pext4_fs::Error::from(Refusal::NotADirectory)).with_path(path);
        }
        Ok(ParentAndName {
            parent: directory,
            name: name.to_vec(),
            path: path.to_vec(),
        })
    }

    /// As [`Self::parent_and_name`], for a file that is no directory: its path must not end in a
    /// slash.
    pub(super) fn parent_and_name_of_file(&self, path: &[u8]) -> Result<ParentAndName<'_>> {
        if path.ends_with(b"/") {
            return Err(pext4_fs::Error::from(Refusal::NotADirectory)).with_path(path);
        }
        self.parent_and_name(path)
    }

    /// The path at the end of the symbolic links that a path leads to. It may lead to a missing
    /// file.
    pub(super) fn end_of_links(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut end = path.to_vec();
        for _ in 0..=MAX_SYMLINKS {
            let entry = self.parent_and_name(&end)?;
            let there = find(self.volume(), entry.parent.inode(), &entry.name, &end)?;
            let Some(link) = there.filter(|there| there.kind() == FileType::Symlink) else {
                return Ok(end);
            };
            let target = self.volume().read_link(link.inode()).with_path(&end)?;
            let directory = end.iter().rposition(|&byte| byte == b'/');
            let directory = &end[..directory.map_or(0, |slash| slash + 1)];
            end = join_target(directory, &target);
        }
        Err(pext4_fs::Error::from(Refusal::TooManySymlinks)).with_path(path)
    }

    /// The destination of a verb: `name` in an existing directory at the path, or else the path
    /// itself. With `no_target_directory` it is always the path. The names `.` and `..` stand for
    /// what is in a directory, which goes into that at the path. `is_directory` tells whether a
    /// directory goes there.
    pub(super) fn destination(
        &self,
        path: &[u8],
        no_target_directory: bool,
        name: impl FnOnce() -> Result<Vec<u8>>,
        is_directory: impl FnOnce() -> Result<bool>,
    ) -> Result<ParentAndName<'_>> {
        let asks_for_directory = path.ends_with(b"/");
        let is_root = last_name(path).is_empty();
        if no_target_directory && !is_root {
            if asks_for_directory && !is_directory()? {
                return Err(pext4_fs::Error::from(Refusal::NotADirectory)).with_path(path);
            }
            return self.parent_and_name(path);
        }
        let there = match self.resolve(path) {
            Ok(there) => there,
            Err(error) if self.is_vacant(path, &error, is_directory)? => {
                return self.parent_and_name(path);
            }
            Err(error) => return Err(error),
        };
        if there.kind() != FileType::Directory {
            if asks_for_directory {
                return Err(pext4_fs::Error::from(Refusal::NotADirectory)).with_path(path);
            }
            return self.parent_and_name(path);
        }
        let name = match no_target_directory {
            true => b".".to_vec(),
            false => name()?,
        };
        let name = match name.as_slice() {
            b"" => return refuse(path, NAMELESS),
            b".." => b".".to_vec(),
            _ => name,
        };
        Ok(ParentAndName {
            path: join(path, &name),
            parent: there,
            name,
        })
    }

    /// Whether a file can be created at a path that leads nowhere, as `error` says: its last name
    /// is missing, or a link that leads in a circle or through a file, which the new file replaces.
    /// If the path ends in a slash, it must be a directory that is created.
    fn is_vacant(
        &self,
        path: &[u8],
        error: &EditError,
        is_directory: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        let EditError::AtPath { source, .. } = error else {
            return Ok(false);
        };
        let asks_for_directory = path.ends_with(b"/");
        if source.is(Refusal::NotFound) {
            return Ok(!asks_for_directory || is_directory()?);
        }
        let leads_nowhere =
            source.is(Refusal::TooManySymlinks) || source.is(Refusal::NotADirectory);
        let is_link = || {
            let there = self.resolve_link(path);
            there.is_ok_and(|there| there.kind() == FileType::Symlink)
        };
        Ok(leads_nowhere && !asks_for_directory && is_link())
    }

    /// The metadata of a new file: owned by root, with the present time, unless overridden.
    pub(super) fn default_metadata(&self, kind: FileType, overrides: Overrides) -> FileMetadata {
        let now = pext4_sync::time::since_epoch();
        let time = Time {
            seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: now.subsec_nanos(),
        };
        let default = match kind {
            FileType::Directory => 0o755,
            _ => 0o644,
        };
        FileMetadata {
            kind,
            permissions: overrides.permissions.unwrap_or(default),
            uid: overrides.uid.unwrap_or(0),
            gid: overrides.gid.unwrap_or(0),
            accessed: time,
            modified: time,
            size: 0,
            device: DeviceNumber::default(),
            target: Vec::new(),
            xattrs: Vec::new(),
            flags: None,
            identity: None,
        }
    }
}
