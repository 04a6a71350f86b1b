//! Changes of names: remove, rename, make directories, links and special files.

use std::collections::HashSet;

use pext4_fs::path::MAX_SYMLINKS;
use pext4_fs::{FileType, InodeNumber, Refusal, RenameMode, SetAttributes};
use pext4_ondisk::directory::SET_GROUP_ID;

use super::paths::{NAMELESS, ParentAndName};
use super::{IntoDirectory, Link, MakeDirectory, MakeNode, Remove, Rename, Symlink, last_name};
use crate::directory_limit::DirectoryLimit;
use crate::error::{EditError, FsContext, Result, Shown, check_path, refuse};
use crate::flags::is_encrypted;
use crate::image_tree::{join, list};
use crate::mode::ModeChange;
use crate::session::EditSession;
use crate::tree_writer::{
    HeldInode, MAX_DEPTH, Overrides, TOO_DEEP, TreeWriter, check_target, find,
};

/// Whether a directory is made where a symbolic link on the way leads to nothing.
#[derive(Clone, Copy)]
enum DanglingLinks {
    Refused,
    /// After so many links.
    Followed(u32),
}

/// The errors of a rename that concern the new path, not the old one.
const TARGETS: [Refusal; 5] = [
    Refusal::NotEmpty,
    Refusal::IsADirectory,
    Refusal::NotADirectory,
    Refusal::TooManyLinks,
    Refusal::OtherProject,
];

impl EditSession {
    pub(super) fn remove(&self, change: &Remove) -> Result<()> {
        let Remove {
            path,
            recursive,
            force,
        } = change;
        let found = self.parent_and_name(path).and_then(|entry| {
            let there = find(self.volume(), entry.parent.inode(), &entry.name, path)?;
            Ok(there.map(|there| (entry, there.kind(), there.inode())))
        });
        let found = match found {
            Err(EditError::AtPath { source, .. })
                if *force
                    && [Refusal::NotFound, Refusal::NotADirectory]
                        .iter()
                        .any(|&why| source.is(why)) =>
            {
                return Ok(());
            }
            found => found?,
        };
        let Some((entry, kind, inode)) = found else {
            return if *force {
                Ok(())
            } else {
                Err(pext4_fs::Error::from(Refusal::NotFound)).with_path(path)
            };
        };
        match check_slash(path, kind) {
            // No directory has this name, and so nothing is there to be removed.
            Err(_) if *force => return Ok(()),
            checked => checked?,
        }
        if kind == FileType::Directory && !*recursive {
            return refuse(path, "is a directory; -r removes it with what is in it");
        }
        let mut remover = Remover {
            session: self,
            entered: HashSet::new(),
            limit: DirectoryLimit::new(self.volume()),
        };
        remover.remove(entry.parent.inode(), &entry.name, inode, kind, path)?;
        self.sync()
    }

    /// Removes a name, if it is there, with everything in it.
    pub(crate) fn remove_all(&self, path: &[u8]) -> Result<()> {
        self.remove(&Remove {
            path: path.to_vec(),
            recursive: true,
            force: true,
        })
    }

    pub(super) fn rename(&self, change: &Rename) -> Result<()> {
        let Rename { from, to, .. } = change;
        let old = self.parent_and_name(from)?;
        // Where case does not matter, a name may change its case: it replaces nothing, and a
        // directory goes into none.
        let is_respelt =
            |new: &ParentAndName<'_>| self.is_one_name(&old, new) && old.name != new.name;
        let respelt = self.parent_and_name(to).ok().filter(&is_respelt);
        let new = match (respelt, change.no_target_directory) {
            (Some(new), _) => new,
            (None, true) => self.parent_and_name(to)?,
            (None, false) => {
                let name = || Ok(old.name.clone());
                self.destination(to, false, name, || self.is_directory(&old, from))?
            }
        };
        let (parent, new_parent) = (old.parent.inode(), new.parent.inode());
        if let Some(there) = find(self.volume(), parent, &old.name, from)? {
            check_slash(from, there.kind())?;
            check_slash(&new.path, there.kind())?;
            let replaced = find(self.volume(), new_parent, &new.name, &new.path)?;
            let replaced = replaced.filter(|_| !is_respelt(&new));
            if change.no_clobber && replaced.is_some() {
                return Ok(());
            }
            if replaced.is_some_and(|replaced| replaced.inode() == there.inode()) {
                if (parent, &old.name) == (new_parent, &new.name) {
                    return refuse(from, "is where it is to be moved to");
                }
                // rename(2) between two names of one file keeps both. `mv` removes the old one.
                self.volume().unlink(parent, &old.name).with_path(from)?;
                self.step_file()?;
                return self.sync();
            }
            self.check_replaceable(&new, there.kind(), &Shown(from).to_string())?;
            self.check_link_leads_on(from, there.kind(), &new)?;
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
                    return EditError::RefusedAtPath {
                        image: None,
                        path: from.clone(),
                        problem,
                    };
                }
                let is_there = TARGETS.iter().any(|&why| error.is(why))
                    || (error.is(Refusal::NoKey) && !self.is_encrypted(parent));
                let path = if is_there { &new.path } else { from };
                EditError::AtPath {
                    image: None,
                    path: path.clone(),
                    source: error,
                }
            })?;
        self.step_file()?;
        self.note_put(&new)?;
        self.sync()
    }

    /// Refuses to put a symbolic link in the place of the file to which it leads, as
    /// [`Self::check_target_stays`] does for a new one.
    pub(super) fn check_link_leads_on(
        &self,
        link: &[u8],
        kind: FileType,
        entry: &ParentAndName<'_>,
    ) -> Result<()> {
        match self.resolve(link) {
            Ok(found) if kind == FileType::Symlink => self.check_target_stays(link, &found, entry),
            // It leads nowhere.
            _ => Ok(()),
        }
    }

    /// Whether two places are one name in one directory.
    fn is_one_name(&self, one: &ParentAndName<'_>, other: &ParentAndName<'_>) -> bool {
        let parent = one.parent.inode();
        parent == other.parent.inode() && self.volume().is_one_name(parent, &one.name, &other.name)
    }

    fn is_encrypted(&self, directory: InodeNumber) -> bool {
        let found = self.volume().attributes(directory);
        found.is_ok_and(|found| is_encrypted(found.flags))
    }

    pub(super) fn make_directory(&self, change: &MakeDirectory) -> Result<()> {
        let (path, mode) = (&change.path, change.mode.as_ref());
        if change.parents {
            let made = self.make_directories(path, mode, DanglingLinks::Refused);
            return made.map(drop);
        }
        let entry = self.parent_and_name(path)?;
        let made = self.make_one_directory(entry.parent.inode(), &entry.name, path, mode);
        made.map(drop)
    }

    /// Creates the missing directories of a path. The mode is that of the last. Returns the
    /// directories on the path from the first one on that was missing.
    fn make_directories(
        &self,
        path: &[u8],
        mode: Option<&ModeChange>,
        links: DanglingLinks,
    ) -> Result<Vec<InodeNumber>> {
        check_path(path)?;
        let names = path.split(|&byte| byte == b'/');
        let mut names = names
            .filter(|name| !name.is_empty() && *name != b".")
            .peekable();
        let mut done = Vec::from(b"/");
        // The directory so far, so that it is not looked for again for each name.
        let mut here = self.resolve(&done)?;
        let mut missing = Vec::new();
        while let Some(name) = names.next() {
            done = join(&done, name);
            let (next, was_missing) = match find(self.volume(), here.inode(), name, &done)? {
                None => {
                    let mode = mode.filter(|_| names.peek().is_none());
                    let made = self.make_one_directory(here.inode(), name, &done, mode)?;
                    (made, true)
                }
                Some(there) if there.kind() == FileType::Directory => (there, false),
                Some(there) => self.end_of_way(&there, &done, links)?,
            };
            here = next;
            if was_missing || !missing.is_empty() {
                missing.push(here.inode());
            }
        }
        Ok(missing)
    }

    /// The directory to which a path leads whose last name, `there`, is no directory, and whether
    /// that was missing.
    fn end_of_way(
        &self,
        there: &HeldInode<'_>,
        path: &[u8],
        links: DanglingLinks,
    ) -> Result<(HeldInode<'_>, bool)> {
        let was_missing = match links {
            DanglingLinks::Followed(depth) if there.kind() == FileType::Symlink => {
                self.make_end_of_links(path, depth)?
            }
            _ => false,
        };
        let end = self.resolve(path)?;
        match end.kind() {
            FileType::Directory => Ok((end, was_missing)),
            _ => refuse(path, "here is something that is no directory"),
        }
    }

    /// Creates the missing directories of a path, also where a symbolic link on it leads. Returns
    /// the directories on the path from the first one on that was missing.
    pub(crate) fn make_missing(&self, path: &[u8]) -> Result<Vec<InodeNumber>> {
        self.make_directories(path, None, DanglingLinks::Followed(0))
    }

    /// Creates the directory to which a link leads, if it is missing. So many links were followed
    /// before. Whether it was missing.
    fn make_end_of_links(&self, link: &[u8], depth: u32) -> Result<bool> {
        match self.resolve(link) {
            Err(EditError::AtPath { source, .. }) if source.is(Refusal::NotFound) => {}
            _ => return Ok(false),
        }
        if depth == MAX_SYMLINKS {
            return Err(pext4_fs::Error::from(Refusal::TooManySymlinks)).with_path(link);
        }
        let target = self.resolve_link(link)?;
        let target = self.volume().read_link(target.inode()).with_path(link)?;
        let directory = link.iter().rposition(|&byte| byte == b'/');
        let directory = &link[..directory.map_or(0, |slash| slash + 1)];
        let links = DanglingLinks::Followed(depth + 1);
        self.make_directories(&join_target(directory, &target), None, links)?;
        Ok(true)
    }

    pub(super) fn make_one_directory(
        &self,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
        mode: Option<&ModeChange>,
    ) -> Result<HeldInode<'_>> {
        if find(self.volume(), parent, name, path)?.is_some() {
            return Err(pext4_fs::Error::from(Refusal::Exists)).with_path(path);
        }
        let above = self.volume().attributes(parent).with_path(path)?;
        let inherited = above.mode & SET_GROUP_ID;
        let overrides = Overrides {
            permissions: mode.map(|mode| mode.apply(0o777 | inherited, true)),
            ..Overrides::default()
        };
        let mut metadata = self.default_metadata(FileType::Directory, overrides);
        let made = self.create(&mut metadata, overrides, parent, name, path)?;
        match overrides.permissions {
            // A new directory has the bit, whatever it is created with.
            Some(permissions) if inherited & !permissions != 0 => {
                let change = SetAttributes {
                    permissions: Some(permissions),
                    ..SetAttributes::default()
                };
                let set = self.volume().set_attributes(made.inode(), &change);
                set.with_path(path)?;
            }
            _ => {}
        }
        Ok(made)
    }

    pub(super) fn link(&self, change: &Link) -> Result<()> {
        let Link {
            target,
            path,
            force,
            into,
        } = change;
        let found = self.resolve_link(target)?;
        if found.kind() == FileType::Directory {
            return refuse(
                target,
                "is a directory, which gets no second name; -s makes a symbolic link",
            );
        }
        let entry = self.destination_of_link(target, path, *into)?;
        self.check_vacant(&entry, *force)?;
        self.check_target_stays(target, &found, &entry)?;
        let writer = TreeWriter::new(self, Overrides::default());
        let parent = entry.parent.inode();
        writer.link(found.inode(), parent, &entry.name, &entry.path)
    }

    pub(super) fn symlink(&self, change: &Symlink) -> Result<()> {
        let Symlink {
            target,
            path,
            force,
            into,
        } = change;
        let entry = self.destination_of_link(target, path, *into)?;
        self.check_vacant(&entry, *force)?;
        check_target(self.volume(), target, &entry.path)?;
        let directory = entry.path.iter().rposition(|&byte| byte == b'/');
        let directory = &entry.path[..directory.map_or(0, |slash| slash + 1)];
        // The link leads to the first; `ln`, which is called in the root, looks for the second.
        for target in [join_target(directory, target), target.clone()] {
            if let Ok(found) = self.resolve(&target) {
                self.check_target_stays(&target, &found, &entry)?;
            }
        }
        let mut metadata = self.default_metadata(FileType::Symlink, Overrides::default());
        metadata.target.clone_from(target);
        let writer = TreeWriter::new(self, Overrides::default());
        let parent = entry.parent.inode();
        let made = writer.make(&metadata, parent, &entry.name, &entry.path);
        made.map(|_| ())
    }

    pub(super) fn make_node(&self, node: &MakeNode) -> Result<()> {
        let overrides = Overrides {
            permissions: node.permissions,
            ..Overrides::default()
        };
        let mut metadata = self.default_metadata(node.kind, overrides);
        metadata.device = node.device;
        let entry = self.parent_and_name_of_file(&node.path)?;
        self.check_vacant(&entry, false)?;
        let parent = entry.parent.inode();
        self.create(&mut metadata, overrides, parent, &entry.name, &entry.path)
            .map(|_| ())
    }

    /// Refuses to replace a file by a link to it: its content would be lost. A file that has
    /// another name stays.
    fn check_target_stays(
        &self,
        target: &[u8],
        found: &HeldInode<'_>,
        entry: &ParentAndName<'_>,
    ) -> Result<()> {
        let there = self.at(entry)?;
        if there.is_none_or(|(there, _)| there != found.inode()) {
            return Ok(());
        }
        let attributes = self.volume().attributes(found.inode());
        let is_same_name = || {
            let named = self.parent_and_name(target);
            named.is_ok_and(|named| self.is_one_name(&named, entry))
        };
        if attributes.with_path(target)?.links > 1 && !is_same_name() {
            return Ok(());
        }
        let link = Shown(&entry.path);
        refuse(target, format!("this and {link} are the same file"))
    }

    /// The directory and name of a new link to `target`.
    fn destination_of_link(
        &self,
        target: &[u8],
        path: &[u8],
        into: IntoDirectory,
    ) -> Result<ParentAndName<'_>> {
        let is_itself = match into {
            IntoDirectory::Always => false,
            IntoDirectory::Never => true,
            IntoDirectory::NotThroughLinks => {
                let there = self.resolve_link(path);
                there.is_ok_and(|there| there.kind() == FileType::Symlink)
            }
        };
        if is_itself {
            return self.parent_and_name_of_file(path);
        }
        let name = || match last_name(target) {
            b"." | b".." => refuse(path, NAMELESS),
            name => Ok(name.to_vec()),
        };
        self.destination(path, false, name, || Ok(false))
    }

    /// Whether a directory has this name; a link to one is none.
    fn is_directory(&self, entry: &ParentAndName<'_>, path: &[u8]) -> Result<bool> {
        let there = find(self.volume(), entry.parent.inode(), &entry.name, path)?;
        Ok(there.is_some_and(|there| there.kind() == FileType::Directory))
    }

    pub(super) fn check_vacant(&self, entry: &ParentAndName<'_>, force: bool) -> Result<()> {
        let parent = entry.parent.inode();
        match find(self.volume(), parent, &entry.name, &entry.path)? {
            Some(_) if !force => Err(pext4_fs::Error::from(Refusal::Exists)).with_path(&entry.path),
            _ => Ok(()),
        }
    }
}

/// The path that the target of a symbolic link in a directory stands for. `directory` is empty or
/// ends in a slash.
pub(super) fn join_target(directory: &[u8], target: &[u8]) -> Vec<u8> {
    match target.starts_with(b"/") {
        true => target.to_vec(),
        false => [directory, target].concat(),
    }
}

/// Refuses a path that ends in a slash and leads to a file that is no directory.
fn check_slash(path: &[u8], kind: FileType) -> Result<()> {
    if path.ends_with(b"/") && kind != FileType::Directory {
        return Err(pext4_fs::Error::from(Refusal::NotADirectory)).with_path(path);
    }
    Ok(())
}

/// Removes trees.
struct Remover<'s> {
    session: &'s EditSession,
    /// The directories that are being removed, by which a cycle is detected.
    entered: HashSet<InodeNumber>,
    limit: DirectoryLimit,
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
            if self.entered.len() >= MAX_DEPTH as usize {
                return refuse(path, TOO_DEEP);
            }
            if !self.entered.insert(inode) {
                return refuse(path, "a directory is in itself");
            }
            let found = volume.attributes(inode).with_path(path)?;
            self.limit.take(&found).with_path(path)?;
            for (child, number) in list(volume, inode).with_path(path)? {
                let path = join(path, &child);
                let kind = volume.attributes(number).with_path(&path)?.file_type;
                self.remove(inode, &child, number, kind, &path)?;
            }
            self.entered.remove(&inode);
            volume.remove_directory(parent, name).with_path(path)?;
        } else {
            volume.unlink(parent, name).with_path(path)?;
        }
        self.session.step_file()
    }
}
