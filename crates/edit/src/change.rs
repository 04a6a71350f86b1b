//! The changes of a session: what each does, one function a verb.
//!
//! Paths are bytes and begin at the image's root, with or without a leading slash. Symbolic links on
//! the way are followed inside the image; at the end of a path only where the verb says so. Where a
//! verb takes a destination that is a directory, the file goes into it under its own name, as with
//! the commands of the same names.

use std::collections::HashSet;
use std::io::Read;
use std::path::PathBuf;

use pext4_fs::{
    DeviceNumber, FileType, InodeNumber, RenameMode, SetAttributes, SetTime, SetXattrMode, Time,
};

use crate::acl;
use crate::error::{At, EditError, On, Result, refuse};
use crate::host::{self, Host};
use crate::mode::ModeChange;
use crate::plant::{Filler, Holding, MOST_DEPTH, Overrides, Planter, find};
use crate::reader::Reader;
use crate::session::EditSession;
use crate::source::{Facts, Source};
use crate::tree::{Image, Place, join, list};

/// Bytes read from a stream at once.
const PIECE: usize = 1 << 20;

/// One change.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Brings a file or a tree of the host into the image, with attributes, extended attributes,
    /// holes and hard links.
    Put {
        /// On the host.
        from: PathBuf,
        /// In the image.
        to: Vec<u8>,
        /// A destination that is a directory is the tree's top itself.
        exactly: bool,
        /// Whether extended attributes come along.
        xattrs: bool,
        /// What is to be different from the host's file.
        overrides: Overrides,
    },
    /// Makes a file with this content, in place of what is there.
    Write {
        /// The file.
        path: Vec<u8>,
        /// Its content.
        content: Vec<u8>,
        /// Permissions and owner; 0644 and root where nothing is said.
        overrides: Overrides,
    },
    /// Copies a file or a tree within the image, or from another one, with everything.
    Copy {
        /// The other image.
        image: Option<PathBuf>,
        /// In that image.
        from: Vec<u8>,
        /// In this image.
        to: Vec<u8>,
        /// A destination that is a directory is the tree's top itself.
        exactly: bool,
        /// Whether directories are copied.
        recursive: bool,
    },
    /// Removes a name; a symbolic link is removed itself.
    Remove {
        /// What.
        path: Vec<u8>,
        /// Directories with all that is in them.
        recursive: bool,
        /// What is not there is no error.
        force: bool,
    },
    /// Moves a name.
    Rename {
        /// What.
        from: Vec<u8>,
        /// Where to; a directory that is there takes it in.
        to: Vec<u8>,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Which.
        path: Vec<u8>,
        /// With the directories it lies in; one that is there is no error.
        parents: bool,
        /// Permissions of the directory itself; 0755 where nothing is said.
        permissions: Option<u16>,
    },
    /// Makes another name for a file.
    Link {
        /// The file; a symbolic link is not followed.
        target: Vec<u8>,
        /// The name.
        path: Vec<u8>,
        /// In place of what is there.
        force: bool,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Where it leads, as it is.
        target: Vec<u8>,
        /// The link.
        path: Vec<u8>,
        /// In place of what is there.
        force: bool,
    },
    /// Makes a device, a fifo or a socket.
    MakeNode {
        /// Which.
        path: Vec<u8>,
        /// What kind.
        kind: FileType,
        /// For devices.
        device: DeviceNumber,
        /// Permissions; 0644 where nothing is said.
        permissions: Option<u16>,
    },
    /// Changes permissions; a symbolic link is followed.
    SetMode {
        /// Of what.
        path: Vec<u8>,
        /// How.
        mode: ModeChange,
        /// Of all below, too, but of no symbolic link.
        recursive: bool,
    },
    /// Changes owner and group.
    SetOwner {
        /// Of what.
        path: Vec<u8>,
        /// The owner.
        uid: Option<u32>,
        /// The group.
        gid: Option<u32>,
        /// Of all below, too.
        recursive: bool,
        /// Of a symbolic link itself.
        no_follow: bool,
    },
    /// Sets times; a file that is not there is made, empty.
    Touch {
        /// Which.
        path: Vec<u8>,
        /// The time; the present where nothing is said.
        time: Option<Time>,
        /// Nothing is made.
        no_create: bool,
    },
    /// Sets an extended attribute; access control lists as system calls take them.
    SetXattr {
        /// Of what; a symbolic link is followed.
        path: Vec<u8>,
        /// The full name, as in `user.note`.
        name: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// Of what; a symbolic link is followed.
        path: Vec<u8>,
        /// The full name.
        name: Vec<u8>,
    },
}

/// A directory, held, and a name in it that may not be there.
struct Spot<'v> {
    directory: Holding<'v>,
    name: Vec<u8>,
    /// The path, for errors.
    path: Vec<u8>,
}

impl EditSession {
    /// Applies a change. After an error the session is to be dropped: part of the change may have
    /// been applied to it.
    ///
    /// # Errors
    ///
    /// What the verb of the same name would say, with the path.
    pub fn apply(&mut self, change: &Change) -> Result<()> {
        let _stand = self.stand();
        match change {
            Change::Put { .. } | Change::Write { .. } | Change::Copy { .. } => self.bring(change),
            Change::Remove {
                path,
                recursive,
                force,
            } => self.remove(path, *recursive, *force),
            Change::Rename { from, to } => self.rename(from, to),
            Change::MakeDirectory {
                path,
                parents,
                permissions,
            } => self.make_directory(path, *parents, permissions.unwrap_or(0o755)),
            Change::Link { .. } | Change::Symlink { .. } | Change::MakeNode { .. } => {
                self.make_name(change)
            }
            other => self.set(other),
        }
    }

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
        let facts = self.plain(FileType::Regular, overrides);
        let planter = Planter::new(self, overrides);
        let held = planter.make(&facts, spot.directory.inode(), &spot.name, &spot.path)?;
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
        planter.dress(&facts, held.inode(), &spot.path)
    }

    fn bring(&self, change: &Change) -> Result<()> {
        match change {
            Change::Put {
                from,
                to,
                exactly,
                xattrs,
                overrides,
            } => {
                let spot = self.destination(to, *exactly, || host::name_of(from))?;
                let source = Host { xattrs: *xattrs };
                self.plant(&source, from, &spot, *overrides)
            }
            Change::Write {
                path,
                content,
                overrides,
            } => {
                let spot = self.spot(path)?;
                let facts = self.plain(FileType::Regular, *overrides);
                let planter = Planter::new(self, *overrides);
                let held = planter.make(&facts, spot.directory.inode(), &spot.name, &spot.path)?;
                let mut filler = Filler::new(self, held.inode(), &spot.path);
                filler.write(0, content)?;
                filler.finish(content.len() as u64)?;
                planter.dress(&facts, held.inode(), &spot.path)
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

    fn plant<S: Source>(
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

    fn copy_within(&self, from: &[u8], spot: &Spot<'_>, recursive: bool) -> Result<()> {
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

    fn copy_between(
        &self,
        image: &std::path::Path,
        from: &[u8],
        spot: &Spot<'_>,
        recursive: bool,
    ) -> Result<()> {
        let reader = Reader::open(image)?;
        let place = reader.place(from)?;
        let source = Image::new(reader.volume());
        check_kind(source.attributes(&place)?.file_type, from, recursive)?;
        self.plant(&source, &place, spot, Overrides::default())
    }

    /// Refuses to copy a directory into itself.
    fn check_outside(&self, tree: InodeNumber, mut into: InodeNumber, path: &[u8]) -> Result<()> {
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

    fn remove(&self, path: &[u8], recursive: bool, force: bool) -> Result<()> {
        let found = self.spot(path).and_then(|spot| {
            let there = find(self.volume(), spot.directory.inode(), &spot.name, path)?;
            Ok(there.map(|there| (spot, there.kind(), there.inode())))
        });
        let found = match found {
            Err(EditError::Inside { source, .. })
                if force && source.is(pext4_fs::Refusal::NotFound) =>
            {
                return Ok(());
            }
            found => found?,
        };
        let Some((spot, kind, inode)) = found else {
            return if force {
                Ok(())
            } else {
                Err(pext4_fs::Error::from(pext4_fs::Refusal::NotFound)).at(path)
            };
        };
        if kind == FileType::Directory && !recursive {
            return refuse(path, "is a directory; -r removes it with what is in it");
        }
        let mut remover = Remover {
            session: self,
            entered: HashSet::new(),
        };
        remover.remove(spot.directory.inode(), &spot.name, inode, kind, path)?;
        self.sync()
    }

    fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let old = self.spot(from)?;
        let new = self.destination(to, false, || Ok(old.name.clone()))?;
        let (parent, new_parent) = (old.directory.inode(), new.directory.inode());
        self.volume()
            .rename(
                parent,
                &old.name,
                new_parent,
                &new.name,
                RenameMode::Replace,
            )
            .at(from)?;
        self.sync()
    }

    fn make_directory(&self, path: &[u8], parents: bool, permissions: u16) -> Result<()> {
        if !parents {
            let spot = self.spot(path)?;
            return self.make_one_directory(spot.directory.inode(), &spot.name, path, permissions);
        }
        let mut done = Vec::from(b"/");
        let names: Vec<&[u8]> = path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty() && *name != b".")
            .collect();
        for (position, name) in names.iter().enumerate() {
            let here = self.at(&done)?;
            let path = join(&done, name);
            let last = position + 1 == names.len();
            match find(self.volume(), here.inode(), name, &path)? {
                None => {
                    let permissions = if last { permissions } else { 0o755 };
                    self.make_one_directory(here.inode(), name, &path, permissions)?;
                }
                Some(_) if self.at(&path)?.kind() == FileType::Directory => {}
                Some(_) => return refuse(&path, "here is something that is no directory"),
            }
            done = path;
        }
        Ok(())
    }

    /// Makes what is missing of a directory's path.
    pub(crate) fn make_missing(&self, path: &[u8]) -> Result<()> {
        self.make_directory(path, true, 0o755)
    }

    fn make_one_directory(
        &self,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
        permissions: u16,
    ) -> Result<()> {
        if find(self.volume(), parent, name, path)?.is_some() {
            return Err(pext4_fs::Error::from(pext4_fs::Refusal::Exists)).at(path);
        }
        let overrides = Overrides {
            permissions: Some(permissions),
            ..Overrides::default()
        };
        let facts = self.plain(FileType::Directory, overrides);
        let planter = Planter::new(self, overrides);
        planter.make(&facts, parent, name, path).map(|_| ())
    }

    fn make_name(&self, change: &Change) -> Result<()> {
        match change {
            Change::Link {
                target,
                path,
                force,
            } => {
                let found = self.link_at(target)?;
                let spot = self.destination(path, false, || Ok(last_name(target).to_vec()))?;
                self.check_vacant(&spot, *force)?;
                let planter = Planter::new(self, Overrides::default());
                let parent = spot.directory.inode();
                planter.link(found.inode(), parent, &spot.name, &spot.path)
            }
            Change::Symlink {
                target,
                path,
                force,
            } => {
                let spot = self.destination(path, false, || Ok(last_name(target).to_vec()))?;
                let mut facts = self.plain(FileType::Symlink, Overrides::default());
                facts.target.clone_from(target);
                self.make_at(&spot, &facts, *force)
            }
            Change::MakeNode {
                path,
                kind,
                device,
                permissions,
            } => {
                let overrides = Overrides {
                    permissions: *permissions,
                    ..Overrides::default()
                };
                let mut facts = self.plain(*kind, overrides);
                facts.device = *device;
                self.make_at(&self.spot(path)?, &facts, false)
            }
            _ => Ok(()),
        }
    }

    fn make_at(&self, spot: &Spot<'_>, facts: &Facts, force: bool) -> Result<()> {
        self.check_vacant(spot, force)?;
        let planter = Planter::new(self, Overrides::default());
        let parent = spot.directory.inode();
        planter
            .make(facts, parent, &spot.name, &spot.path)
            .map(|_| ())
    }

    fn check_vacant(&self, spot: &Spot<'_>, force: bool) -> Result<()> {
        let parent = spot.directory.inode();
        match find(self.volume(), parent, &spot.name, &spot.path)? {
            Some(_) if !force => {
                Err(pext4_fs::Error::from(pext4_fs::Refusal::Exists)).at(&spot.path)
            }
            _ => Ok(()),
        }
    }

    fn set(&self, change: &Change) -> Result<()> {
        match change {
            Change::SetMode {
                path,
                mode,
                recursive,
            } => {
                let found = self.at(path)?;
                self.each(&found, path, *recursive, &mut |place, attributes| {
                    if attributes.file_type == FileType::Symlink {
                        return Ok(());
                    }
                    let is_directory = attributes.file_type == FileType::Directory;
                    let change = SetAttributes {
                        permissions: Some(mode.apply(attributes.mode & 0o7777, is_directory)),
                        ..SetAttributes::default()
                    };
                    self.set_attributes(place, &change)
                })
            }
            Change::SetOwner {
                path,
                uid,
                gid,
                recursive,
                no_follow,
            } => {
                let found = if *no_follow || *recursive {
                    self.link_at(path)?
                } else {
                    self.at(path)?
                };
                let change = SetAttributes {
                    uid: *uid,
                    gid: *gid,
                    ..SetAttributes::default()
                };
                self.each(&found, path, *recursive, &mut |place, _| {
                    self.set_attributes(place, &change)
                })
            }
            Change::Touch {
                path,
                time,
                no_create,
            } => self.touch(path, *time, *no_create),
            Change::SetXattr { path, name, value } => self.set_xattr(path, name, value),
            Change::RemoveXattr { path, name } => {
                let found = self.at(path)?;
                self.volume().remove_xattr(found.inode(), name).at(path)
            }
            _ => Ok(()),
        }
    }

    fn set_attributes(&self, place: &Place, change: &SetAttributes) -> Result<()> {
        let done = self.volume().set_attributes(place.inode, change);
        done.at(&place.path)?;
        self.step()
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        let found = self.at(path)?;
        let value = match acl::is_list(name) {
            false => value.to_vec(),
            true => match acl::to_image(value) {
                Some(value) => value,
                None => return refuse(path, "the value is no access control list"),
            },
        };
        self.volume()
            .set_xattr(found.inode(), name, &value, SetXattrMode::Any)
            .at(path)
    }

    fn touch(&self, path: &[u8], time: Option<Time>, no_create: bool) -> Result<()> {
        let time = time.map_or(SetTime::Now, SetTime::To);
        let found = match self.at(path) {
            Ok(found) => found,
            Err(EditError::Inside { source, .. })
                if source.is(pext4_fs::Refusal::NotFound) && no_create =>
            {
                return Ok(());
            }
            Err(EditError::Inside { source, .. }) if source.is(pext4_fs::Refusal::NotFound) => {
                let spot = self.spot(path)?;
                let facts = self.plain(FileType::Regular, Overrides::default());
                let planter = Planter::new(self, Overrides::default());
                planter.make(&facts, spot.directory.inode(), &spot.name, path)?
            }
            Err(error) => return Err(error),
        };
        let place = Place {
            inode: found.inode(),
            path: path.to_vec(),
        };
        let change = SetAttributes {
            accessed: Some(time),
            modified: Some(time),
            ..SetAttributes::default()
        };
        self.set_attributes(&place, &change)
    }

    /// Calls `with` for a file and, if `below`, for everything below it.
    fn each(
        &self,
        top: &Holding<'_>,
        path: &[u8],
        below: bool,
        with: &mut dyn FnMut(&Place, &pext4_fs::Attributes) -> Result<()>,
    ) -> Result<()> {
        let image = Image::new(self.volume());
        let mut rest = vec![Place {
            inode: top.inode(),
            path: path.to_vec(),
        }];
        while let Some(place) = rest.pop() {
            let attributes = image.attributes(&place)?;
            with(&place, &attributes)?;
            if below && attributes.file_type == FileType::Directory {
                let children = image.children(&place)?;
                rest.extend(children.into_iter().rev().map(|(_, child)| child));
            }
        }
        Ok(())
    }

    /// What a path leads to, links followed.
    fn at(&self, path: &[u8]) -> Result<Holding<'_>> {
        let held = self.volume().paths().resolve(path).at(path)?;
        self.hold(held.inode(), path)
    }

    /// What a path leads to, a link at its end not followed.
    fn link_at(&self, path: &[u8]) -> Result<Holding<'_>> {
        let held = self.volume().paths().resolve_link(path).at(path)?;
        self.hold(held.inode(), path)
    }

    fn hold(&self, inode: InodeNumber, path: &[u8]) -> Result<Holding<'_>> {
        let attributes = self.volume().attributes(inode).at(path)?;
        Ok(Holding::named(inode, attributes))
    }

    /// The directory a path lies in, and its last name.
    fn spot(&self, path: &[u8]) -> Result<Spot<'_>> {
        let name = last_name(path);
        if name.is_empty() || name == b"." || name == b".." {
            return refuse(path, "the path must end in a name");
        }
        let end = path
            .iter()
            .rposition(|&byte| byte != b'/')
            .map_or(0, |at| at + 1);
        let directory = self.at(&path[..end - name.len()])?;
        if directory.kind() != FileType::Directory {
            return Err(pext4_fs::Error::from(pext4_fs::Refusal::NotADirectory)).at(path);
        }
        Ok(Spot {
            directory,
            name: name.to_vec(),
            path: path.to_vec(),
        })
    }

    /// Where something goes: into a directory that is there, or to the path itself.
    fn destination(
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
                if source.is(pext4_fs::Refusal::NotFound) && !asks_for_directory =>
            {
                return self.spot(path);
            }
            Err(error) => return Err(error),
        };
        if there.kind() != FileType::Directory {
            if asks_for_directory {
                return Err(pext4_fs::Error::from(pext4_fs::Refusal::NotADirectory)).at(path);
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
    fn plain(&self, kind: FileType, overrides: Overrides) -> Facts {
        let now = pext4_sync::time::since_epoch();
        let time = Time {
            seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: now.subsec_nanos(),
        };
        Facts {
            kind,
            permissions: overrides.permissions.unwrap_or(0o644),
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

/// Removes trees.
struct Remover<'s> {
    session: &'s EditSession,
    /// Directories on the way, so that a circle ends.
    entered: HashSet<InodeNumber>,
}

impl Remover<'_> {
    fn remove(
        &mut self,
        parent: InodeNumber,
        name: &[u8],
        inode: InodeNumber,
        kind: FileType,
        path: &[u8],
    ) -> Result<()> {
        let volume = self.session.volume();
        if kind == FileType::Directory {
            let deep = self.entered.len() >= MOST_DEPTH as usize;
            if deep || !self.entered.insert(inode) {
                return refuse(path, "directories are in one another without end");
            }
            for (child, number) in list(volume, inode).at(path)? {
                let path = join(path, &child);
                let kind = volume.attributes(number).at(&path)?.file_type;
                self.remove(inode, &child, number, kind, &path)?;
            }
            self.entered.remove(&inode);
            volume.remove_directory(parent, name).at(path)?;
        } else {
            volume.unlink(parent, name).at(path)?;
        }
        self.session.step()
    }
}

fn check_kind(kind: FileType, path: &[u8], recursive: bool) -> Result<()> {
    if kind == FileType::Directory && !recursive {
        return refuse(path, "is a directory; -r copies it");
    }
    Ok(())
}

/// The last name of a path; empty for the root.
pub(crate) fn last_name(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/')
        .rfind(|name| !name.is_empty())
        .unwrap_or_default()
}

/// Reads until the buffer is full or the stream ends.
pub(crate) fn fill(stream: &mut dyn Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match stream.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
