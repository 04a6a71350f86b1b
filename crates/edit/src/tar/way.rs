//! The way of a path through the image, name by name.

use std::collections::HashSet;

use pext4_fs::path::MAX_SYMLINKS;
use pext4_fs::{FileType, InodeNumber};

use crate::change::last_name;
use crate::error::{FsContext, Result};
use crate::session::EditSession;
use crate::tree_writer::find;

/// A name, with the inode of its directory.
pub(super) type Name = (InodeNumber, Vec<u8>);

/// Something on the way that is no directory.
pub(super) struct Obstacle {
    pub(super) name: Name,
    /// Whether it is a symbolic link.
    is_link: bool,
    /// Whether it is behind what comes before the entry's own path.
    pub(super) is_of_entry: bool,
}

/// The way of a path. Symbolic links are followed inside the image.
pub(super) struct Way {
    /// The directories so far, from the root.
    pub(super) directories: Vec<Name>,
    /// The last of them.
    here: InodeNumber,
    /// Names below, of directories that do not exist.
    missing: usize,
    links: u32,
    /// The names to follow, the last one first, and whether they are of the entry's path.
    rest: Vec<(Vec<u8>, bool)>,
}

impl Way {
    /// The way of a directory's path. What is within its first bytes, so many, comes before the
    /// entry's own path.
    pub(super) fn new(directory: &[u8], before: usize) -> Self {
        let (first, rest) = directory.split_at(before.min(directory.len()));
        let mut way = Self {
            directories: Vec::new(),
            here: InodeNumber::ROOT,
            missing: 0,
            links: 0,
            rest: Vec::new(),
        };
        way.prepend(rest, true);
        way.prepend(first, false);
        way
    }

    fn prepend(&mut self, path: &[u8], is_of_entry: bool) {
        let names = path.split(|&byte| byte == b'/').rev();
        let names = names.filter(|name| !matches!(*name, b"" | b"."));
        let names = names.map(|name| (name.to_vec(), is_of_entry));
        self.rest.extend(names);
    }

    /// Goes on to the next name that is no directory, and behind it if it is a symbolic link;
    /// `None` at the end. `path` is for errors.
    pub(super) fn follow(
        &mut self,
        session: &EditSession,
        path: &[u8],
    ) -> Result<Option<Obstacle>> {
        let volume = session.volume();
        while let Some((name, is_of_entry)) = self.rest.pop() {
            if name == b".." {
                self.leave();
                continue;
            }
            let found = match self.missing {
                0 => find(volume, self.here, &name, path)?,
                _ => None,
            };
            let Some(found) = found else {
                self.missing += 1;
                continue;
            };
            let name = (self.here, name);
            if found.kind() == FileType::Directory {
                self.here = found.inode();
                self.directories.push(name);
                continue;
            }
            let is_link = found.kind() == FileType::Symlink;
            if is_link && self.links < MAX_SYMLINKS {
                self.links += 1;
                let target = volume.read_link(found.inode()).with_path(path)?;
                if target.starts_with(b"/") {
                    self.directories.clear();
                    self.here = InodeNumber::ROOT;
                }
                self.prepend(&target, is_of_entry);
            } else {
                self.rest.clear();
            }
            return Ok(Some(Obstacle {
                name,
                is_link,
                is_of_entry,
            }));
        }
        Ok(None)
    }

    /// Whether a file is in the way of a directory's path.
    pub(super) fn is_blocked(session: &EditSession, directory: &[u8]) -> Result<bool> {
        let mut way = Self::new(directory, 0);
        let mut is_link = true;
        while let Some(obstacle) = way.follow(session, directory)? {
            is_link = obstacle.is_link;
        }
        Ok(!is_link)
    }

    /// The symbolic link at a path, if one is there.
    pub(super) fn link_at(session: &EditSession, path: &[u8]) -> Result<Option<Name>> {
        let name = last_name(path);
        let mut way = Self::new(&path[..path.len() - name.len()], 0);
        while way.follow(session, path)?.is_some() {}
        if way.missing > 0 {
            return Ok(None);
        }
        let found = find(session.volume(), way.here, name, path)?;
        let is_link = found.is_some_and(|found| found.kind() == FileType::Symlink);
        Ok(is_link.then(|| (way.here, name.to_vec())))
    }

    /// Whether a directory's path leads through one of these symbolic links.
    pub(super) fn leads_through(
        session: &EditSession,
        directory: &[u8],
        links: &HashSet<Name>,
    ) -> Result<bool> {
        let mut way = Self::new(directory, 0);
        while let Some(obstacle) = way.follow(session, directory)? {
            if links.contains(&obstacle.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The path of a directory that is there, without symbolic links and with a slash at its end.
    pub(super) fn plain_path(session: &EditSession, directory: &[u8]) -> Result<Vec<u8>> {
        let mut way = Self::new(directory, 0);
        while way.follow(session, directory)?.is_some() {}
        let mut path = vec![b'/'];
        for (_, name) in &way.directories {
            path.extend_from_slice(name);
            path.push(b'/');
        }
        Ok(path)
    }

    /// Goes to the directory above.
    fn leave(&mut self) {
        if self.missing > 0 {
            self.missing -= 1;
        } else if let Some((above, _)) = self.directories.pop() {
            self.here = above;
        }
    }
}
