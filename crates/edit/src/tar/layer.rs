//! What the marks of a layer of a container image hide ([`pext4_tar::marks`]).
//!
//! They hide files of the image only, never those of the layer itself, wherever the mark stands
//! among its entries: so the names that it made are remembered, with those of the directories that
//! lead to them and to its marks. (A link of the image on the way is not the layer's, so what leads
//! through one waits until all marks are known.) The root's `lost+found` stays, since e2fsck needs
//! it. In a directory whose names were hidden once there are only the layer's from then on, so a
//! layer may repeat a mark any number of times.

use std::collections::HashSet;

use pext4_fs::{FileType, InodeNumber, Refusal};

use crate::change::last_name;
use crate::error::{FsContext, Result};
use crate::image_tree::{ImageFile, ImageTree};
use crate::session::EditSession;
use crate::source::Source as _;

use super::way::Way;

/// A layer that is being unpacked.
#[derive(Default)]
pub(super) struct Layer {
    /// The names that it made, and those that lead to them, each with the inode of its directory.
    own: HashSet<(InodeNumber, Vec<u8>)>,
    /// The directories in which it has hidden everything.
    cleared: HashSet<InodeNumber>,
    /// The directory of the previous entry: the next one is mostly in the same.
    last_directory: Option<Vec<u8>>,
}

impl Layer {
    /// Notes the name that the layer made at a path, or the mark there.
    pub(super) fn note(&mut self, session: &EditSession, path: &[u8]) -> Result<()> {
        let name = last_name(path);
        let directory = &path[..path.len() - name.len()];
        let parent = directory_at(session, directory)?;
        self.own.insert((parent, name.to_vec()));
        if self.last_directory.as_deref() == Some(directory) {
            return Ok(());
        }
        let mut way = Way::new(directory, 0);
        while way.follow(session, path)?.is_some() {}
        self.own.extend(way.directories);
        self.last_directory = Some(directory.to_vec());
        Ok(())
    }

    /// Whether the path of an entry leads through a symbolic link of the image, or a file of the
    /// image is in its way. The first bytes of the path, so many, are not the entry's.
    pub(super) fn leads_through_image(
        &self,
        session: &EditSession,
        path: &[u8],
        before: usize,
    ) -> Result<bool> {
        let directory = &path[..path.len() - last_name(path).len()];
        if self.last_directory.as_deref() == Some(directory) {
            return Ok(false);
        }
        let mut way = Way::new(directory, before);
        while let Some(obstacle) = way.follow(session, path)? {
            if obstacle.is_of_entry && !self.own.contains(&obstacle.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes what a whiteout hides.
    pub(super) fn hide(&mut self, session: &EditSession, path: &[u8]) -> Result<()> {
        let paths = session.volume().paths();
        let held = match paths.resolve_link(path) {
            Err(error) if error.is(Refusal::NotFound) => return Ok(()),
            found => found.with_path(path)?,
        };
        let name = last_name(path);
        let parent = directory_at(session, &path[..path.len() - name.len()])?;
        let inode = held.inode();
        drop(held);
        if !self.own.contains(&(parent, name.to_vec())) {
            return match is_lost_found(parent, name) {
                true => Ok(()),
                false => session.remove_all(path),
            };
        }
        let attributes = session.volume().attributes(inode).with_path(path)?;
        match attributes.file_type {
            FileType::Directory => self.hide_below(session, path, inode),
            _ => Ok(()),
        }
    }

    /// Removes what an opaque directory hides.
    pub(super) fn hide_in(&mut self, session: &EditSession, directory: &[u8]) -> Result<()> {
        let inode = directory_at(session, directory)?;
        self.hide_below(session, directory, inode)
    }

    fn hide_below(&mut self, session: &EditSession, path: &[u8], inode: InodeNumber) -> Result<()> {
        let tree = ImageTree::new(session.volume());
        let mut rest = vec![ImageFile::top(inode, path)];
        while let Some(directory) = rest.pop() {
            if !self.cleared.insert(directory.inode) {
                continue;
            }
            for (name, child) in tree.children(&directory)? {
                if is_lost_found(directory.inode, &name) {
                    continue;
                }
                let own = (directory.inode, name);
                if !self.own.contains(&own) {
                    session.remove_all(&child.path())?;
                    continue;
                }
                if tree.attributes(&child)?.file_type == FileType::Directory {
                    rest.push(child);
                }
            }
        }
        Ok(())
    }
}

fn is_lost_found(directory: InodeNumber, name: &[u8]) -> bool {
    directory == InodeNumber::ROOT && name == b"lost+found"
}

fn directory_at(session: &EditSession, path: &[u8]) -> Result<InodeNumber> {
    let held = session.volume().paths().resolve(path);
    Ok(held.with_path(path)?.inode())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_block::RamDevice;
    use pext4_image::mkfs::{Options, mkfs};

    use super::Layer;
    use crate::change::{self, Change};
    use crate::session::{EditOptions, EditSession};

    #[test]
    fn a_directory_is_cleared_once() {
        let device = RamDevice::new(8 << 20);
        mkfs(&device, &Options::default()).expect("it fits");
        let options = EditOptions::default();
        let mut session = EditSession::from_device(Arc::new(device), &options).expect("it opens");
        let write = |session: &mut EditSession, path: &str| {
            let directory = Change::MakeDirectory(change::MakeDirectory {
                parents: true,
                ..change::MakeDirectory::new("/dir/below")
            });
            session.apply(&directory).expect("room");
            let file = Change::WriteFile(change::WriteFile::new(path, "content"));
            session.apply(&file).expect("room");
        };
        let is_there = |session: &EditSession, path: &str| {
            let found = session.volume().paths().link_attributes(path);
            found.is_ok()
        };
        let mut layer = Layer::default();
        write(&mut session, "/dir/below/own");
        layer
            .note(&session, b"/dir/below/own")
            .expect("it is there");
        for path in ["/dir/low", "/dir/below/low"] {
            write(&mut session, path);
        }
        layer.hide_in(&session, b"/dir").expect("a directory");
        assert!(is_there(&session, "/dir/below/own"));
        assert!(!is_there(&session, "/dir/low") && !is_there(&session, "/dir/below/low"));
        // What a layer itself makes is there from now on: it is not looked for again.
        for path in ["/dir/later", "/dir/below/later"] {
            write(&mut session, path);
        }
        for directory in [&b"/dir"[..], b"/dir/below"] {
            layer.hide_in(&session, directory).expect("a directory");
        }
        assert!(is_there(&session, "/dir/later") && is_there(&session, "/dir/below/later"));
    }
}
