//! Making files in the image out of a source's.
//!
//! A tree is made depth first, its names in order, so that the same tree gives the same image.
//! What is there already gives way if it is no directory; a directory takes the new one's attributes
//! and keeps its other names. The attributes of a directory are set after its children, and times
//! last of all.

use std::collections::HashMap;

use pext4_fs::{
    AccessLists, Attributes, CreateAttributes, DeviceNumber, Entry, FileType, InodeNumber, Refusal,
    SetAttributes, SetTime, SetXattrMode, Time, Volume,
};

use pext4_ondisk::acl;

use crate::error::{At, Result, Shown, refuse};
use crate::lists;
use crate::session::EditSession;
use crate::source::{Facts, Source};
use crate::tree::join;

/// Directories in one another at most: a path that Linux takes has no more.
pub(crate) const MAX_DEPTH: u32 = 1024;

/// The largest numbers of a device.
const MAX_MAJOR: u32 = 0xFFF;
const MAX_MINOR: u32 = 0xF_FFFF;

/// What is to be different from the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Owner of everything.
    pub uid: Option<u32>,
    /// Group of everything.
    pub gid: Option<u32>,
    /// Permission bits of the file itself, or of the top of a tree.
    pub permissions: Option<u16>,
}

/// Makes files for one change.
pub(crate) struct Planter<'s> {
    session: &'s EditSession,
    overrides: Overrides,
    /// The first name's inode of files with several.
    links: HashMap<(u64, u64), InodeNumber>,
    depth: u32,
}

/// An inode that was made or found. One that a lookup returned is held until this is dropped.
pub(crate) struct Holding<'v> {
    /// Whom to tell at the end.
    holder: Option<&'v Volume>,
    entry: Entry,
}

impl<'v> Holding<'v> {
    /// Takes over what a lookup returned.
    fn of(volume: &'v Volume, entry: Entry) -> Self {
        Self {
            holder: Some(volume),
            entry,
        }
    }

    /// An inode that lives by its name.
    pub(crate) fn named(inode: InodeNumber, attributes: Attributes) -> Self {
        Self {
            holder: None,
            entry: Entry { inode, attributes },
        }
    }

    pub(crate) fn inode(&self) -> InodeNumber {
        self.entry.inode
    }

    pub(crate) fn kind(&self) -> FileType {
        self.entry.attributes.file_type
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        if let Some(volume) = self.holder {
            volume.forget(self.entry.inode, 1);
        }
    }
}

/// What a name leads to, if it is there.
pub(crate) fn find<'v>(
    volume: &'v Volume,
    parent: InodeNumber,
    name: &[u8],
    path: &[u8],
) -> Result<Option<Holding<'v>>> {
    match volume.lookup(parent, name) {
        Ok(entry) => Ok(Some(Holding::of(volume, entry))),
        Err(error) if error.is(Refusal::NotFound) => Ok(None),
        Err(error) => Err(error).at(path),
    }
}

impl<'s> Planter<'s> {
    pub(crate) fn new(session: &'s EditSession, overrides: Overrides) -> Self {
        Self {
            session,
            overrides,
            links: HashMap::new(),
            depth: 0,
        }
    }

    fn volume(&self) -> &'s Volume {
        self.session.volume()
    }

    /// Makes `node` and all below it as `name` in `parent`; `path` is its path in the image.
    pub(crate) fn plant<S: Source>(
        &mut self,
        source: &S,
        node: &S::Node,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        let found = source.facts(node)?;
        let facts = self.adjusted(found.clone());
        let first = facts.identity.and_then(|key| self.links.get(&key)).copied();
        if let Some(first) = first {
            return self.link(first, parent, name, path);
        }
        let held = self.make(&facts, parent, name, path)?;
        if let Some(key) = facts.identity {
            self.links.insert(key, held.inode());
        }
        match facts.kind {
            FileType::Directory => self.plant_children(source, node, held.inode(), path)?,
            FileType::Regular => {
                let mut filler = Filler::new(self.session, held.inode(), path);
                source.content(node, &found, &mut |offset, bytes| {
                    filler.write(offset, bytes)
                })?;
                filler.finish(facts.size)?;
            }
            _ => {}
        }
        self.dress(&facts, held.inode(), path)
    }

    fn plant_children<S: Source>(
        &mut self,
        source: &S,
        node: &S::Node,
        directory: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        if self.depth >= MAX_DEPTH {
            return refuse(
                path,
                format!("more than {MAX_DEPTH} directories in one another"),
            );
        }
        self.depth += 1;
        for (name, child) in source.children(node)? {
            let path = join(path, &name);
            self.plant(source, &child, directory, &name, &path)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// The facts with what is to be different.
    pub(crate) fn adjusted(&self, mut facts: Facts) -> Facts {
        facts.uid = self.overrides.uid.unwrap_or(facts.uid);
        facts.gid = self.overrides.gid.unwrap_or(facts.gid);
        if self.depth == 0 {
            let wanted = self.overrides.permissions;
            facts.permissions = wanted.unwrap_or(facts.permissions);
        }
        // A fixed time: nothing is younger, and reading a file is not told.
        if let Some(fixed) = self.session.fixed_time() {
            facts.modified = earlier(facts.modified, fixed);
            facts.accessed = facts.modified;
        }
        facts
    }

    /// Makes the inode under its name, in place of what may go.
    pub(crate) fn make(
        &self,
        facts: &Facts,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<Holding<'s>> {
        self.make_with_lists(facts, &AccessLists::default(), parent, name, path)
    }

    /// Likewise, with these access lists.
    pub(crate) fn make_with_lists(
        &self,
        facts: &Facts,
        lists: &AccessLists<'_>,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<Holding<'s>> {
        check_device(facts, path)?;
        if let Some(there) = find(self.volume(), parent, name, path)? {
            match (there.kind(), facts.kind) {
                (FileType::Directory, FileType::Directory) => return Ok(there),
                (FileType::Directory, _) => {
                    return refuse(path, "a directory is here, and what is new is none");
                }
                (_, FileType::Directory) => {
                    return refuse(path, "here is something that is no directory");
                }
                _ => self.volume().unlink(parent, name).at(path)?,
            }
        }
        let new = CreateAttributes {
            permissions: facts.permissions,
            uid: facts.uid,
            gid: facts.gid,
        };
        let volume = self.volume();
        let entry = match facts.kind {
            FileType::Symlink => volume.make_symlink(parent, name, &facts.target, &new),
            kind => volume.make_with_lists(parent, name, &new, kind, facts.device, lists),
        };
        let held = Holding::of(volume, entry.at(path)?);
        self.session.step_file()?;
        Ok(held)
    }

    /// Gives an inode another name.
    pub(crate) fn link(
        &self,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        let volume = self.volume();
        if let Some(there) = find(volume, parent, name, path)? {
            if there.inode() == inode {
                return Ok(());
            }
            if there.kind() == FileType::Directory {
                return refuse(path, "a directory is here, and what is new is none");
            }
            volume.unlink(parent, name).at(path)?;
        }
        let entry = volume.link(inode, parent, name).at(path)?;
        drop(Holding::of(volume, entry));
        self.session.step_file()
    }

    /// Gives a finished inode its attributes.
    pub(crate) fn dress(&self, facts: &Facts, inode: InodeNumber, path: &[u8]) -> Result<()> {
        let volume = self.volume();
        for (name, value) in &facts.xattrs {
            let set = volume.set_xattr(inode, name, value, SetXattrMode::Any);
            if matches!(&set, Err(error) if error.is(Refusal::NotSupported)) {
                let name = Shown(name);
                let problem =
                    format!("its attribute {name} has a kind of name that ext4 cannot hold");
                return refuse(path, problem);
            }
            set.at(path)?;
        }
        let is_link = facts.kind == FileType::Symlink;
        let change = SetAttributes {
            permissions: (!is_link).then_some(facts.permissions),
            uid: Some(facts.uid),
            gid: Some(facts.gid),
            accessed: Some(SetTime::To(facts.accessed)),
            modified: Some(SetTime::To(facts.modified)),
            ..SetAttributes::default()
        };
        volume.set_attributes(inode, &change).at(path)?;
        let brings_list = facts.xattrs.iter().any(|(name, _)| name == acl::ACCESS);
        // A directory that was there keeps its list.
        let was_there = facts.kind == FileType::Directory && !brings_list;
        if !is_link && (was_there || self.sets_permissions()) {
            lists::follow(volume, inode, facts.permissions, path)?;
        }
        Ok(())
    }

    /// Whether what is made at the top gets other permissions than it has.
    fn sets_permissions(&self) -> bool {
        self.depth == 0 && self.overrides.permissions.is_some()
    }
}

/// ext4 would store other numbers in place of those that it cannot hold.
fn check_device(facts: &Facts, path: &[u8]) -> Result<()> {
    let DeviceNumber { major, minor } = facts.device;
    if major <= MAX_MAJOR && minor <= MAX_MINOR {
        return Ok(());
    }
    refuse(
        path,
        format!(
            "no device can have the numbers {major},{minor}: the major number is {MAX_MAJOR} and \
             the minor one {MAX_MINOR} at most"
        ),
    )
}

fn earlier(one: Time, two: Time) -> Time {
    let key = |time: &Time| (time.seconds, time.nanoseconds);
    if key(&one) <= key(&two) { one } else { two }
}

/// Writes the content of one file, in order.
pub(crate) struct Filler<'s> {
    session: &'s EditSession,
    inode: InodeNumber,
    path: Vec<u8>,
    end: u64,
}

impl<'s> Filler<'s> {
    pub(crate) fn new(session: &'s EditSession, inode: InodeNumber, path: &[u8]) -> Self {
        Self {
            session,
            inode,
            path: path.to_vec(),
            end: 0,
        }
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let written = self
                .session
                .volume()
                .write(self.inode, at, &bytes[done..])
                .at(&self.path)?;
            if written == 0 {
                return Err(pext4_fs::Error::from(Refusal::NoSpace)).at(&self.path);
            }
            done += written;
        }
        self.end = self.end.max(offset + bytes.len() as u64);
        self.session.step_data(bytes.len())
    }

    /// The file is so long; what no piece covered is a hole.
    pub(crate) fn finish(self, size: u64) -> Result<()> {
        if self.end == size {
            return Ok(());
        }
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        let done = self.session.volume().set_attributes(self.inode, &change);
        done.at(&self.path).map(|_| ())
    }
}
