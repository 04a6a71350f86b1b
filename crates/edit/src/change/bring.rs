//! Files that come into the image: from the host, from a stream, from an image.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use pext4_fs::{FileType, InodeNumber};

use super::spot::Spot;
use super::{Change, fill, last_name};
use crate::error::{EditError, On, Result, refuse};
use crate::host::{self, Host};
use crate::plant::{Filler, Overrides, Planter, find};
use crate::reader::Reader;
use crate::session::EditSession;
use crate::source::Source;
use crate::tree::{Image, Place};

/// Bytes read from a stream at once.
const PIECE: usize = 1 << 20;

impl EditSession {
    /// Makes a file of what a stream gives, in place of what is there.
    ///
    /// # Errors
    ///
    /// The stream's, as `Host` errors of `-`; the image's.
    pub fn write_from(
        &mut self,
        path: &[u8],
        stream: &mut dyn Read,
        overrides: Overrides,
    ) -> Result<()> {
        let _stand = self.stand();
        let spot = self.spot(path)?;
        let mut facts = self.plain(FileType::Regular, overrides);
        let parent = spot.directory.inode();
        let held = self.make_anew(&mut facts, overrides, parent, &spot.name, &spot.path)?;
        let mut filler = Filler::new(self, held.inode(), &spot.path);
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            let length = fill(stream, &mut piece).on("-".as_ref(), "read it")?;
            filler.write(at, &piece[..length])?;
            at += length as u64;
            if length < PIECE {
                break;
            }
        }
        filler.finish(at)?;
        Planter::new(self, overrides).dress(&facts, held.inode(), &spot.path)
    }

    pub(super) fn bring(&self, change: &Change) -> Result<()> {
        match change {
            Change::Put {
                from,
                to,
                exactly,
                xattrs,
                overrides,
            } => {
                let spot = self.destination(to, *exactly, || host::name_of(from))?;
                let source = Host::new(*xattrs);
                self.plant(&source, &Host::root(from), &spot, *overrides)
            }
            Change::Write {
                path,
                content,
                overrides,
            } => {
                let spot = self.spot(path)?;
                let mut facts = self.plain(FileType::Regular, *overrides);
                let parent = spot.directory.inode();
                let held =
                    self.make_anew(&mut facts, *overrides, parent, &spot.name, &spot.path)?;
                let mut filler = Filler::new(self, held.inode(), &spot.path);
                filler.write(0, content)?;
                filler.finish(content.len() as u64)?;
                Planter::new(self, *overrides).dress(&facts, held.inode(), &spot.path)
            }
            Change::Copy {
                image,
                from,
                to,
                exactly,
                recursive,
            } => {
                let spot = self.destination(to, *exactly, || Ok(last_name(from).to_vec()))?;
                match image {
                    None => self.copy_within(from, &spot, *recursive),
                    Some(image) => self.copy_between(image, from, &spot, *recursive),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn plant<S: Source>(
        &self,
        source: &S,
        node: &S::Node,
        spot: &Spot<'_>,
        overrides: Overrides,
    ) -> Result<()> {
        let mut planter = Planter::new(self, overrides);
        let (parent, name) = (spot.directory.inode(), &spot.name);
        planter.plant(source, node, parent, name, &spot.path)
    }

    pub(super) fn copy_within(&self, from: &[u8], spot: &Spot<'_>, recursive: bool) -> Result<()> {
        let found = self.link_at(from)?;
        check_kind(found.kind(), from, recursive)?;
        if found.kind() == FileType::Directory {
            self.check_outside(found.inode(), spot.directory.inode(), from)?;
        }
        if let Some(there) = find(
            self.volume(),
            spot.directory.inode(),
            &spot.name,
            &spot.path,
        )? && there.inode() == found.inode()
        {
            return refuse(&spot.path, "source and destination are the same file");
        }
        let place = Place {
            inode: found.inode(),
            path: from.to_vec(),
        };
        self.plant(
            &Image::new(self.volume()),
            &place,
            spot,
            Overrides::default(),
        )
    }

    pub(super) fn copy_between(
        &self,
        image: &Path,
        from: &[u8],
        spot: &Spot<'_>,
        recursive: bool,
    ) -> Result<()> {
        if self.is_of(image) {
            // Waiting for whoever has it would be waiting for ourselves.
            return Err(EditError::Whole(format!(
                "{}: it is the image that is being edited; without `--from` files are copied within it",
                image.display()
            )));
        }
        let reader = Reader::open(image)?;
        let place = reader.place(from)?;
        let source = Image::new(reader.volume());
        check_kind(source.attributes(&place)?.file_type, from, recursive)?;
        self.plant(&source, &place, spot, Overrides::default())
    }

    /// Refuses to copy a directory into itself.
    pub(super) fn check_outside(
        &self,
        tree: InodeNumber,
        mut into: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        let mut seen = HashSet::new();
        while into != tree && into != InodeNumber::ROOT && seen.insert(into) {
            let up = find(self.volume(), into, b"..", path)?;
            into = up.map_or(InodeNumber::ROOT, |up| up.inode());
        }
        if into == tree {
            return refuse(path, "a directory cannot be copied into itself");
        }
        Ok(())
    }
}

fn check_kind(kind: FileType, path: &[u8], recursive: bool) -> Result<()> {
    if kind == FileType::Directory && !recursive {
        return refuse(path, "is a directory; -r copies it");
    }
    Ok(())
}
