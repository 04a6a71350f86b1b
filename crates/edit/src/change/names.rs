//! Names: removed, moved, made.

use std::collections::HashSet;

use pext4_fs::{FileType, InodeNumber, Refusal, RenameMode};

use super::spot::Spot;
use super::{Change, Into, last_name};
use crate::error::{At, EditError, Result, Shown, check_path, refuse};
use crate::plant::{MAX_DEPTH, Overrides, Planter, find};
use crate::session::EditSession;
use crate::source::Facts;
use crate::tree::{join, list};

/// What is told of where a file is moved to, not of the file.
const TARGETS: [Refusal; 4] = [
    Refusal::NotEmpty,
    Refusal::IsADirectory,
    Refusal::NotADirectory,
    Refusal::TooManyLinks,
];

impl EditSession {
    pub(super) fn remove(&self, path: &[u8], recursive: bool, force: bool) -> Result<()> {
        let found = self.spot(path).and_then(|spot| {
            let there = find(self.volume(), spot.directory.inode(), &spot.name, path)?;
            Ok(there.map(|there| (spot, there.kind(), there.inode())))
        });
        let found = match found {
            Err(EditError::Inside { source, .. })
                if force
                    && [Refusal::NotFound, Refusal::NotADirectory]
                        .iter()
                        .any(|&why| source.is(why)) =>
            {
                return Ok(());
            }
            found => found?,
        };
        let Some((spot, kind, inode)) = found else {
            return if force {
                Ok(())
            } else {
                Err(pext4_fs::Error::from(Refusal::NotFound)).at(path)
            };
        };
        check_slash(path, kind)?;
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

    pub(super) fn rename(&self, from: &[u8], to: &[u8], exactly: bool, keep: bool) -> Result<()> {
        let old = self.spot(from)?;
        let new = match exactly {
            true => self.spot(to)?,
            false => self.destination(to, false, || Ok(old.name.clone()))?,
        };
        let (parent, new_parent) = (old.directory.inode(), new.directory.inode());
        if let Some(there) = find(self.volume(), parent, &old.name, from)? {
            check_slash(from, there.kind())?;
            check_slash(&new.path, there.kind())?;
            let replaced = find(self.volume(), new_parent, &new.name, &new.path)?;
            if keep && replaced.is_some() {
                return Ok(());
            }
            if replaced.is_some_and(|replaced| replaced.inode() == there.inode()) {
                if (parent, &old.name) == (new_parent, &new.name) {
                    return refuse(from, "is where it is to be moved to");
                }
                // A rename leaves both names of one file; who moves it wants one.
                self.volume().unlink(parent, &old.name).at(from)?;
                return self.sync();
            }
        }
        self.volume()
            .rename(
                parent,
                &old.name,
                new_parent,
                &new.name,
                RenameMode::Replace,
            )
            .map_err(|error| {
                if error.is(Refusal::Invalid) {
                    let problem = format!("it cannot go into itself, to {}", Shown(&new.path));
                    return EditError::Refused {
                        path: from.to_vec(),
                        problem,
                    };
                }
                let is_there = TARGETS.iter().any(|&why| error.is(why));
                let path = if is_there { &new.path } else { from };
                EditError::Inside {
                    path: path.to_vec(),
                    source: error,
                }
            })?;
        self.sync()
    }

    pub(super) fn make_directory(
        &self,
        path: &[u8],
        parents: bool,
        permissions: Option<u16>,
    ) -> Result<()> {
        if !parents {
            let spot = self.spot(path)?;
            return self.make_one_directory(spot.directory.inode(), &spot.name, path, permissions);
        }
        check_path(path)?;
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
                    let permissions = permissions.filter(|_| last);
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
        self.make_directory(path, true, None)
    }

    pub(super) fn make_one_directory(
        &self,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
        permissions: Option<u16>,
    ) -> Result<()> {
        if find(self.volume(), parent, name, path)?.is_some() {
            return Err(pext4_fs::Error::from(Refusal::Exists)).at(path);
        }
        let overrides = Overrides {
            permissions,
            ..Overrides::default()
        };
        let mut facts = self.plain(FileType::Directory, overrides);
        self.make_anew(&mut facts, overrides, parent, name, path)
            .map(|_| ())
    }

    pub(super) fn make_name(&self, change: &Change) -> Result<()> {
        match change {
            Change::Link {
                target,
                path,
                force,
                into,
            } => {
                let found = self.link_at(target)?;
                let spot = self.place_of_link(target, path, *into)?;
                self.check_vacant(&spot, *force)?;
                let planter = Planter::new(self, Overrides::default());
                let parent = spot.directory.inode();
                planter.link(found.inode(), parent, &spot.name, &spot.path)
            }
            Change::Symlink {
                target,
                path,
                force,
                into,
            } => {
                let spot = self.place_of_link(target, path, *into)?;
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
                let spot = self.spot_of_file(path)?;
                self.check_vacant(&spot, false)?;
                let parent = spot.directory.inode();
                self.make_anew(&mut facts, overrides, parent, &spot.name, &spot.path)
                    .map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Where a link to `target` goes.
    fn place_of_link(&self, target: &[u8], path: &[u8], into: Into) -> Result<Spot<'_>> {
        let is_itself = match into {
            Into::Any => false,
            Into::None => true,
            Into::NotThroughLinks => {
                let there = self.link_at(path);
                there.is_ok_and(|there| there.kind() == FileType::Symlink)
            }
        };
        if is_itself {
            return self.spot_of_file(path);
        }
        self.destination(path, false, || Ok(last_name(target).to_vec()))
    }

    pub(super) fn make_at(&self, spot: &Spot<'_>, facts: &Facts, force: bool) -> Result<()> {
        self.check_vacant(spot, force)?;
        let planter = Planter::new(self, Overrides::default());
        let parent = spot.directory.inode();
        planter
            .make(facts, parent, &spot.name, &spot.path)
            .map(|_| ())
    }

    pub(super) fn check_vacant(&self, spot: &Spot<'_>, force: bool) -> Result<()> {
        let parent = spot.directory.inode();
        match find(self.volume(), parent, &spot.name, &spot.path)? {
            Some(_) if !force => Err(pext4_fs::Error::from(Refusal::Exists)).at(&spot.path),
            _ => Ok(()),
        }
    }
}

/// Refuses a path that ends in a slash, as a directory's may, where something else is.
fn check_slash(path: &[u8], kind: FileType) -> Result<()> {
    if path.ends_with(b"/") && kind != FileType::Directory {
        return Err(pext4_fs::Error::from(Refusal::NotADirectory)).at(path);
    }
    Ok(())
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
            let deep = self.entered.len() >= MAX_DEPTH as usize;
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
        self.session.step_file()
    }
}
