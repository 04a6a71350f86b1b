//! From a path to an inode: names, slashes and symbolic links.

use std::ops::Deref;

use pext4_ondisk::InodeNumber;
use pext4_sync::ShardRef;

use super::{AsVolumePath, HeldInode, Paths};
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::FileType;
use crate::volume::Volume;

/// Maximum number of symbolic links followed in one path, as in Linux.
pub const MAX_SYMLINKS: u32 = 40;

impl<V: Deref<Target = Volume> + Clone> Paths<V> {
    /// The inode at a path. Symbolic links are followed.
    ///
    /// # Errors
    ///
    /// `Refused(NotFound | NotADirectory | TooManySymlinks | NameTooLong | Invalid)`, `Corrupt`,
    /// `Io`.
    pub fn resolve(&self, path: impl AsVolumePath) -> Result<HeldInode<V>> {
        self.walk_and_hold(path.as_volume_path(), true)
    }

    /// The inode at a path. A symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// As [`Paths::resolve`].
    pub fn resolve_link(&self, path: impl AsVolumePath) -> Result<HeldInode<V>> {
        self.walk_and_hold(path.as_volume_path(), false)
    }

    /// Takes over a hold on an inode.
    pub(super) fn hold(&self, inode: InodeNumber) -> HeldInode<V> {
        HeldInode {
            volume: self.volume.clone(),
            inode,
        }
    }

    pub(super) fn walk_and_hold(&self, path: &[u8], follow_last: bool) -> Result<HeldInode<V>> {
        let found = self.walk(path, follow_last)?;
        // The root is never removed, and every path passes it: a hold would be a shared write.
        if found.number() != InodeNumber::ROOT {
            self.volume.hold_found(&found)?;
        }
        Ok(self.hold(found.number()))
    }

    /// The inode at a path, not held.
    pub(super) fn walk(&self, path: &[u8], follow_last: bool) -> Result<ShardRef<Inode>> {
        let mut rest = components(path);
        rest.reverse();
        let mut wants_directory = path.ends_with(b"/");
        let follow_last = follow_last || wants_directory;
        let mut here = self.volume.root_inode()?;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == b"." && here.is_directory() {
                continue;
            }
            let next = self.volume.step(&here, &name)?;
            let is_symlink = next.file_type() == FileType::Symlink;
            let is_last = rest.is_empty();
            if !is_symlink || (is_last && !follow_last) {
                here = next;
                continue;
            }
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(Refusal::TooManySymlinks.into());
            }
            let target = self.volume.target_of(&next)?;
            wants_directory |= is_last && target.ends_with(b"/");
            rest.extend(components(&target).into_iter().rev());
            if target.first() == Some(&b'/') {
                here = self.volume.root_inode()?;
            }
        }
        if wants_directory && !here.is_directory() {
            return Err(Refusal::NotADirectory.into());
        }
        Ok(here)
    }

    /// As [`Paths::parent`], for a name that is not to be a directory's: a path that ends in a
    /// slash is refused with `otherwise`.
    pub(super) fn parent_of_file<'p>(
        &self,
        path: &'p [u8],
        otherwise: Refusal,
    ) -> Result<(HeldInode<V>, &'p [u8])> {
        let found = self.parent(path)?;
        match path.ends_with(b"/") {
            true => Err(otherwise.into()),
            false => Ok(found),
        }
    }

    /// As [`Paths::parent`], for what is about to be made: where the path has no name of its own,
    /// there is a directory already.
    pub(super) fn parent_of_new<'p>(&self, path: &'p [u8]) -> Result<(HeldInode<V>, &'p [u8])> {
        if path.is_empty() || is_name(split(path).1) {
            return self.parent(path);
        }
        self.walk(path, true)?;
        Err(Refusal::Exists.into())
    }

    /// The parent directory of a path, and the last name.
    pub(super) fn parent<'p>(&self, path: &'p [u8]) -> Result<(HeldInode<V>, &'p [u8])> {
        let (above, name) = split(path);
        if !is_name(name) {
            return Err(Refusal::Invalid.into());
        }
        Ok((self.walk_and_hold(above, true)?, name))
    }
}

/// A path without the slashes at its end.
pub(super) fn without_slashes(path: &[u8]) -> &[u8] {
    let last = path.iter().rposition(|&byte| byte != b'/');
    &path[..last.map_or(0, |last| last + 1)]
}

/// The path of the parent, with a slash at its end or empty, and the last name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let path = without_slashes(path);
    let last = path.iter().rposition(|&byte| byte == b'/');
    path.split_at(last.map_or(0, |slash| slash + 1))
}

/// Whether the last part of a path can be given to a file.
pub(super) fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
}

pub(super) fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}
