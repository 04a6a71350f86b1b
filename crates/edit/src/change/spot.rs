//! Where paths lead: to what is there, or to a place where something can be made.

use pext4_fs::{DeviceNumber, FileType, InodeNumber, Refusal, Time};

use super::last_name;
use crate::error::{At, EditError, Result, check_path, refuse};
use crate::plant::{Holding, Overrides, find};
use crate::session::EditSession;
use crate::source::Facts;
use crate::tree::join;

/// Symbolic links that are followed at the end of one path.
const MAX_LINKS: u32 = 40;

/// A directory, held, and a name in it that may not be there.
pub(super) struct Spot<'v> {
    pub(super) directory: Holding<'v>,
    pub(super) name: Vec<u8>,
    /// The path, for errors.
    pub(super) path: Vec<u8>,
}

impl EditSession {
    /// What a path leads to, links followed.
    pub(super) fn at(&self, path: &[u8]) -> Result<Holding<'_>> {
        check_path(path)?;
        let held = self.volume().paths().resolve(path).at(path)?;
        self.hold(held.inode(), path)
    }

    /// What a path leads to, a link at its end not followed.
    pub(super) fn link_at(&self, path: &[u8]) -> Result<Holding<'_>> {
        check_path(path)?;
        let held = self.volume().paths().resolve_link(path).at(path)?;
        self.hold(held.inode(), path)
    }

    pub(super) fn hold(&self, inode: InodeNumber, path: &[u8]) -> Result<Holding<'_>> {
        let attributes = self.volume().attributes(inode).at(path)?;
        Ok(Holding::named(inode, attributes))
    }

    /// The directory a path lies in, and its last name.
    pub(super) fn spot(&self, path: &[u8]) -> Result<Spot<'_>> {
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
        let directory = self.at(if above.is_empty() { b"/" } else { above })?;
        if directory.kind() != FileType::Directory {
            return Err(pext4_fs::Error::from(Refusal::NotADirectory)).at(path);
        }
        Ok(Spot {
            directory,
            name: name.to_vec(),
            path: path.to_vec(),
        })
    }

    /// The same for what is no directory, whose path does not end in a slash.
    pub(super) fn spot_of_file(&self, path: &[u8]) -> Result<Spot<'_>> {
        if path.ends_with(b"/") {
            return Err(pext4_fs::Error::from(Refusal::NotADirectory)).at(path);
        }
        self.spot(path)
    }

    /// The path at the end of the symbolic links that a path leads to, whose last one may lead to what
    /// is not there.
    pub(super) fn end_of_links(&self, path: &[u8]) -> Result<Vec<u8>> {
        let mut end = path.to_vec();
        for _ in 0..=MAX_LINKS {
            let spot = self.spot(&end)?;
            let there = find(self.volume(), spot.directory.inode(), &spot.name, &end)?;
            let Some(link) = there.filter(|there| there.kind() == FileType::Symlink) else {
                return Ok(end);
            };
            let target = self.volume().read_link(link.inode()).at(&end)?;
            let directory = end.iter().rposition(|&byte| byte == b'/');
            let directory = &end[..directory.map_or(0, |slash| slash + 1)];
            end = if target.starts_with(b"/") {
                target
            } else {
                [directory, &target].concat()
            };
        }
        Err(pext4_fs::Error::from(Refusal::TooManySymlinks)).at(path)
    }

    /// Where something goes: into a directory that is there, or to the path itself.
    pub(super) fn destination(
        &self,
        path: &[u8],
        exactly: bool,
        name: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Spot<'_>> {
        let asks_for_directory = path.ends_with(b"/");
        let is_root = last_name(path).is_empty();
        if exactly && !is_root {
            return self.spot(path);
        }
        let there = match self.at(path) {
            Ok(there) => there,
            Err(EditError::Inside { source, .. })
                if source.is(Refusal::NotFound) && !asks_for_directory =>
            {
                return self.spot(path);
            }
            Err(error) => return Err(error),
        };
        if there.kind() != FileType::Directory {
            if asks_for_directory {
                return Err(pext4_fs::Error::from(Refusal::NotADirectory)).at(path);
            }
            return self.spot(path);
        }
        let name = if exactly { b".".to_vec() } else { name()? };
        if name.is_empty() || (!exactly && (name == b"." || name == b"..")) {
            return refuse(path, "what goes here has no name of its own");
        }
        Ok(Spot {
            path: join(path, &name),
            directory: there,
            name,
        })
    }

    /// A new file of root's, stamped with the present.
    pub(super) fn plain(&self, kind: FileType, overrides: Overrides) -> Facts {
        let now = pext4_sync::time::since_epoch();
        let time = Time {
            seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: now.subsec_nanos(),
        };
        let unsaid = match kind {
            FileType::Directory => 0o755,
            _ => 0o644,
        };
        Facts {
            kind,
            permissions: overrides.permissions.unwrap_or(unsaid),
            uid: overrides.uid.unwrap_or(0),
            gid: overrides.gid.unwrap_or(0),
            accessed: time,
            modified: time,
            size: 0,
            device: DeviceNumber::default(),
            target: Vec::new(),
            xattrs: Vec::new(),
            identity: None,
        }
    }
}
