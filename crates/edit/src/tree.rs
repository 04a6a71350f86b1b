//! Trees of an image as a source: for copies within and between images, and out of them.
//!
//! An image may be made by an enemy: its directories may form circles, or be reached by many ways.
//! A directory is entered once; a second way to it is reported as corruption. Names that no host
//! and no tar could hold are refused where they are listed.

use std::cell::RefCell;
use std::collections::HashSet;

use pext4_fs::{Attributes, FileType, InodeNumber, Refusal, Volume};
use pext4_ondisk::Corrupt;

use crate::error::{At, Result};
use crate::source::{Facts, Sink, Source};
use crate::unreadable::Unreadable;

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// A volume as a source.
pub(crate) struct Image<'v> {
    volume: &'v Volume,
    /// Directories that were entered.
    entered: RefCell<HashSet<InodeNumber>>,
}

/// A file of an image; `path` is for errors.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) inode: InodeNumber,
    pub(crate) path: Vec<u8>,
}

impl<'v> Image<'v> {
    pub(crate) fn new(volume: &'v Volume) -> Self {
        Self {
            volume,
            entered: RefCell::new(HashSet::new()),
        }
    }

    pub(crate) fn attributes(&self, place: &Place) -> Result<Attributes> {
        self.volume.attributes(place.inode).at(&place.path)
    }

    /// The names of a directory, sorted: those that can be read, if the others may be left out.
    pub(crate) fn children_left(
        &self,
        place: &Place,
        unreadable: &mut Unreadable<'_, '_>,
    ) -> Result<Vec<(Vec<u8>, Place)>> {
        let mut names = Vec::new();
        let entered = self.enter(place);
        if unreadable.or_leave(entered)?.is_some() {
            let listed = list_into(self.volume, place.inode, &mut names).at(&place.path);
            unreadable.or_leave(listed)?;
        }
        names.sort_unstable();
        let mut children = Vec::with_capacity(names.len());
        for (name, inode) in names {
            children.extend(unreadable.or_leave(child(place, name, inode))?);
        }
        Ok(children)
    }

    fn enter(&self, place: &Place) -> Result<()> {
        if self.entered.borrow_mut().insert(place.inode) {
            return Ok(());
        }
        let problem = "is reached by two ways";
        let corrupt = Corrupt::new("directory", problem).in_inode(place.inode);
        Err(pext4_fs::Error::from(corrupt)).at(&place.path)
    }
}

impl Source for Image<'_> {
    type Node = Place;

    fn facts(&self, place: &Place) -> Result<Facts> {
        let found = self.attributes(place)?;
        let target = match found.file_type {
            FileType::Symlink => self.volume.read_link(place.inode).at(&place.path)?,
            _ => Vec::new(),
        };
        let many = found.links > 1 && found.file_type != FileType::Directory;
        Ok(Facts {
            kind: found.file_type,
            permissions: found.mode & 0o7777,
            uid: found.uid,
            gid: found.gid,
            accessed: found.accessed,
            modified: found.modified,
            size: found.size,
            device: found.device,
            target,
            xattrs: xattrs(self.volume, place)?,
            identity: many.then(|| (0, u64::from(found.inode.get()))),
        })
    }

    fn children(&self, place: &Place) -> Result<Vec<(Vec<u8>, Place)>> {
        self.children_left(place, &mut Unreadable::new(None))
    }

    fn content(&self, place: &Place, _: &Facts, sink: Sink<'_>) -> Result<()> {
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while let Some((start, end)) = next_data(self.volume, place, at)? {
            at = start;
            while at < end {
                let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
                let read = self.volume.read(place.inode, at, &mut piece[..length]);
                let read = read.at(&place.path)?;
                if read == 0 {
                    return Ok(());
                }
                sink(at, &piece[..read])?;
                at += read as u64;
            }
        }
        Ok(())
    }
}

/// The next run of data of a file at or after `at`.
pub(crate) fn next_data(volume: &Volume, place: &Place, at: u64) -> Result<Option<(u64, u64)>> {
    let start = match volume.seek_data(place.inode, at) {
        Ok(start) => start,
        Err(error) if error.is(Refusal::NoSuchOffset) => return Ok(None),
        Err(error) => return Err(error).at(&place.path),
    };
    let end = volume.seek_hole(place.inode, start).at(&place.path)?;
    Ok(Some((start, end)))
}

/// The names in a directory but `.` and `..`.
pub(crate) fn list(
    volume: &Volume,
    directory: InodeNumber,
) -> pext4_fs::Result<Vec<(Vec<u8>, InodeNumber)>> {
    let mut names = Vec::new();
    list_into(volume, directory, &mut names).map(|()| names)
}

/// The same; those that can be read are there also after an error.
fn list_into(
    volume: &Volume,
    directory: InodeNumber,
    names: &mut Vec<(Vec<u8>, InodeNumber)>,
) -> pext4_fs::Result<()> {
    volume.read_directory(directory, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.inode));
        }
        true
    })
}

fn child(directory: &Place, name: Vec<u8>, inode: InodeNumber) -> Result<(Vec<u8>, Place)> {
    let path = join(&directory.path, &name);
    check_name(&name, directory.inode).at(&path)?;
    Ok((name, Place { inode, path }))
}

fn xattrs(volume: &Volume, place: &Place) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = volume.xattr_names(place.inode).at(&place.path)?;
    names.sort_unstable();
    let value = |name: Vec<u8>| {
        let value = volume.xattr(place.inode, &name).at(&place.path)?;
        Ok((name, value))
    };
    names.into_iter().map(value).collect()
}

/// Refuses a name that would lead somewhere else.
fn check_name(name: &[u8], directory: InodeNumber) -> pext4_fs::Result<()> {
    let harmless = !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if harmless {
        return Ok(());
    }
    let problem = "holds a name that no file can have";
    Err(Corrupt::new("directory", problem)
        .in_inode(directory)
        .into())
}

/// The path of a name in a directory.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
