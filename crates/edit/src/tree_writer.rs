//! Writes files and trees of a [`Source`] into the image.
//!
//! A tree is written depth first with its names in order, so that the same tree gives the same
//! image. An existing file is replaced unless it is a directory; an existing directory gets the new
//! one's attributes and keeps its other names. The attributes of a directory are set after its
//! children are written, and times are set last.
//!
//! Two files of a command may have one name in the image: those of two sources, or of one source in
//! a directory where case does not matter. Neither replaces the other: the content of the first
//! would be lost.

use std::collections::{HashMap, HashSet};

use pext4_fs::{
    Acls, CreateAttributes, DeviceNumber, Entry, FileType, InodeNumber, Refusal, SetAttributes,
    SetTime, SetXattrMode, Volume, path,
};

use pext4_ondisk::acl;
use pext4_ondisk::inode::{InodeFlags, MAX_MAJOR, MAX_MINOR};

use crate::acls;
use crate::error::{FsContext, Result, Shown, of_attribute, refuse};
use crate::flags::is_encrypted;
use crate::image_tree::join;
use crate::session::EditSession;
use crate::source::{FileMetadata, Source};

/// The maximum depth of nested directories. Paths that Linux accepts are no deeper.
pub(crate) const MAX_DEPTH: u32 = 1024;
/// What is said beyond that.
pub(crate) const TOO_DEEP: &str = "more than 1024 directories in one another";

/// What is said of a directory that would replace a symbolic link.
const LINK_IS_HERE: &str = "a symbolic link is here, which no directory replaces; `pext4 edit \
                            --tar` goes on where it leads: `tar -C DIR -c . | pext4 edit IMAGE \
                            --tar -`";

/// Attributes that replace those of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Owner of all files.
    pub uid: Option<u32>,
    /// Group of all files.
    pub gid: Option<u32>,
    /// Permission bits of the file itself, or of the top of a tree.
    pub permissions: Option<u16>,
}

/// The inodes that a command has written into the image so far.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Those of files with several names, by [`FileMetadata::identity`].
    links: HashMap<(u64, u64), InodeNumber>,
    /// Those of all files but directories, where they may be met again.
    files: HashSet<InodeNumber>,
}

/// Writes the files of one change.
pub(crate) struct TreeWriter<'s> {
    session: &'s EditSession,
    overrides: Overrides,
    written: Written,
    /// Whether two files may have one name.
    may_meet: bool,
    depth: u32,
}

/// An inode that was created or found, which is not freed until this is dropped, and its kind.
pub(crate) struct HeldInode<'v> {
    held: path::HeldInode<&'v Volume>,
    kind: FileType,
}

impl<'v> HeldInode<'v> {
    /// Takes over the reference that a lookup returned.
    pub(crate) fn of(volume: &'v Volume, entry: Entry) -> Self {
        Self {
            kind: entry.attributes.file_type,
            held: volume.paths().adopt(entry),
        }
    }

    /// An inode that a path leads to.
    pub(crate) fn new(held: path::HeldInode<&'v Volume>) -> pext4_fs::Result<Self> {
        let kind = held.attributes()?.file_type;
        Ok(Self { held, kind })
    }

    pub(crate) fn inode(&self) -> InodeNumber {
        self.held.inode()
    }

    pub(crate) fn kind(&self) -> FileType {
        self.kind
    }
}

/// The inode that a name leads to, if the name exists.
pub(crate) fn find<'v>(
    volume: &'v Volume,
    parent: InodeNumber,
    name: &[u8],
    path: &[u8],
) -> Result<Option<HeldInode<'v>>> {
    match volume.lookup(parent, name) {
        Ok(entry) => Ok(Some(HeldInode::of(volume, entry))),
        Err(error) if error.is(Refusal::NotFound) => Ok(None),
        Err(error) => Err(error).with_path(path),
    }
}

impl<'s> TreeWriter<'s> {
    pub(crate) fn new(session: &'s EditSession, overrides: Overrides) -> Self {
        Self {
            session,
            overrides,
            written: Written::default(),
            may_meet: false,
            depth: 0,
        }
    }

    /// A writer of a tree of a command, of which other trees were written before if `written` is
    /// given.
    pub(crate) fn of_tree(
        session: &'s EditSession,
        overrides: Overrides,
        written: Option<Written>,
    ) -> Self {
        Self {
            may_meet: written.is_some() || session.folds_names(),
            written: written.unwrap_or_default(),
            ..Self::new(session, overrides)
        }
    }

    /// What was written so far.
    pub(crate) fn into_written(self) -> Written {
        self.written
    }

    fn volume(&self) -> &'s Volume {
        self.session.volume()
    }

    /// Writes `node` and everything below it as `name` in `parent`. `path` is its path in the
    /// image, for errors.
    pub(crate) fn write_tree<S: Source>(
        &mut self,
        source: &S,
        node: &S::Node,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        let found = source.metadata(node)?;
        if found.flags.is_some_and(is_encrypted) {
            // The copy would have neither the flag nor the attribute that leads to the key.
            let problem = "what would be copied here is encrypted, and the copy could never be \
                           decrypted";
            return refuse(path, problem);
        }
        let metadata = self.adjusted(found.clone());
        let first = metadata
            .identity
            .and_then(|key| self.written.links.get(&key))
            .copied();
        self.check_not_written(parent, name, first, path)?;
        if let Some(first) = first {
            return self.link(first, parent, name, path);
        }
        let held = self.make(&metadata, parent, name, path)?;
        if let Some(key) = metadata.identity {
            self.written.links.insert(key, held.inode());
        }
        if self.may_meet && metadata.kind != FileType::Directory {
            self.written.files.insert(held.inode());
        }
        match metadata.kind {
            FileType::Directory => self.write_children(source, node, held.inode(), path)?,
            FileType::Regular => {
                let mut content_writer = ContentWriter::new(self.session, held.inode(), path);
                source.content(node, &found, &mut |offset, bytes| {
                    content_writer.write(offset, bytes)
                })?;
                content_writer.finish(metadata.size)?;
            }
            _ => {}
        }
        self.apply_metadata(&metadata, held.inode(), path)
    }

    /// Refuses a name that another file of the command has. A name of the same file, `first`,
    /// stays.
    fn check_not_written(
        &self,
        parent: InodeNumber,
        name: &[u8],
        first: Option<InodeNumber>,
        path: &[u8],
    ) -> Result<()> {
        if !self.may_meet {
            return Ok(());
        }
        match find(self.volume(), parent, name, path)?.map(|there| there.inode()) {
            Some(there) if self.written.files.contains(&there) && Some(there) != first => {
                let problem = "this command has just put another file here, whose name is the \
                               same, or differs only in case";
                refuse(path, problem)
            }
            _ => Ok(()),
        }
    }

    fn write_children<S: Source>(
        &mut self,
        source: &S,
        node: &S::Node,
        directory: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        if self.depth >= MAX_DEPTH {
            return refuse(path, TOO_DEEP);
        }
        self.depth += 1;
        for (name, child) in source.children(node)? {
            let path = join(path, &name);
            self.write_tree(source, &child, directory, &name, &path)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// The metadata with what is to be different.
    pub(crate) fn adjusted(&self, mut metadata: FileMetadata) -> FileMetadata {
        metadata.uid = self.overrides.uid.unwrap_or(metadata.uid);
        metadata.gid = self.overrides.gid.unwrap_or(metadata.gid);
        if self.depth == 0 {
            let wanted = self.overrides.permissions;
            metadata.permissions = wanted.unwrap_or(metadata.permissions);
        }
        // With a fixed time no file is newer than that, and access times are not copied.
        if let Some(fixed) = self.session.fixed_time() {
            metadata.modified = metadata.modified.min(fixed);
            metadata.accessed = metadata.modified;
        }
        metadata
    }

    /// Creates the inode under its name. Replaces an existing file that is no directory.
    pub(crate) fn make(
        &self,
        metadata: &FileMetadata,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<HeldInode<'s>> {
        self.make_with_acls(metadata, &Acls::default(), parent, name, path)
    }

    /// As [`Self::make`], with these access control lists.
    pub(crate) fn make_with_acls(
        &self,
        metadata: &FileMetadata,
        acls: &Acls<'_>,
        parent: InodeNumber,
        name: &[u8],
        path: &[u8],
    ) -> Result<HeldInode<'s>> {
        check_device(metadata, path)?;
        if let Some(there) = find(self.volume(), parent, name, path)? {
            match (there.kind(), metadata.kind) {
                (FileType::Directory, FileType::Directory) => {
                    self.session.step_file()?;
                    return Ok(there);
                }
                (FileType::Directory, _) => {
                    return refuse(path, "a directory is here, and what is new is none");
                }
                (FileType::Symlink, FileType::Directory) => return refuse(path, LINK_IS_HERE),
                (_, FileType::Directory) => {
                    return refuse(path, "here is something that is no directory");
                }
                _ => self.volume().unlink(parent, name).with_path(path)?,
            }
        }
        if metadata.kind == FileType::Symlink {
            check_target(self.volume(), &metadata.target, path)?;
        }
        let new = CreateAttributes {
            permissions: metadata.permissions,
            uid: metadata.uid,
            gid: metadata.gid,
        };
        let volume = self.volume();
        let entry = match metadata.kind {
            FileType::Symlink => volume.make_symlink(parent, name, &metadata.target, &new),
            kind => volume.make_with_acls(parent, name, &new, kind, metadata.device, acls),
        };
        let held = HeldInode::of(volume, entry.with_path(path)?);
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
            volume.unlink(parent, name).with_path(path)?;
        }
        if volume.attributes(inode).with_path(path)?.file_type == FileType::Directory {
            return refuse(path, "it is a hard link to a directory");
        }
        let entry = volume.link(inode, parent, name).with_path(path)?;
        drop(HeldInode::of(volume, entry));
        self.session.step_file()
    }

    /// Sets the attributes of an inode whose content is written.
    pub(crate) fn apply_metadata(
        &self,
        metadata: &FileMetadata,
        inode: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        let volume = self.volume();
        for (name, value) in &metadata.xattrs {
            check_list(name, value, path)?;
            let set = volume.set_xattr(inode, name, value, SetXattrMode::Any);
            if matches!(&set, Err(error) if error.is(Refusal::NotSupported)) {
                let name = Shown(name);
                let problem =
                    format!("its attribute {name} has a kind of name that ext4 cannot hold");
                return refuse(path, problem);
            }
            of_attribute(set, volume, path)?;
        }
        let is_link = metadata.kind == FileType::Symlink;
        let change = SetAttributes {
            permissions: (!is_link).then_some(metadata.permissions),
            uid: Some(metadata.uid),
            gid: Some(metadata.gid),
            accessed: Some(SetTime::To(metadata.accessed)),
            modified: Some(SetTime::To(metadata.modified)),
            flags: self.flags(metadata, inode).with_path(path)?,
            ..SetAttributes::default()
        };
        volume.set_attributes(inode, &change).with_path(path)?;
        let brings_list = metadata.xattrs.iter().any(|(name, _)| name == acl::ACCESS);
        // An existing directory keeps its list.
        let was_there = metadata.kind == FileType::Directory && !brings_list;
        if !is_link && (was_there || self.sets_permissions()) {
            acls::adapt_to_mode(volume, inode, metadata.permissions, path)?;
        }
        Ok(())
    }

    /// The flags of an inode with those that a copy gets; `None` if the source has none.
    fn flags(&self, metadata: &FileMetadata, inode: InodeNumber) -> pext4_fs::Result<Option<u32>> {
        let Some(wanted) = metadata.flags else {
            return Ok(None);
        };
        let copied = copied_flags(metadata.kind).bits();
        let present = self.volume().attributes(inode)?.flags;
        let present = present & InodeFlags::USER_VISIBLE.bits();
        Ok(Some(present & !copied | wanted & copied))
    }

    /// Whether this is the top of the tree and its permissions are overridden.
    fn sets_permissions(&self) -> bool {
        self.depth == 0 && self.overrides.permissions.is_some()
    }
}

/// The flags that a copy of a file gets: those that users may set, without those that describe how
/// the file is stored or belong to its project. Without immutable and append-only too, since the
/// edit may go on to change the copy.
fn copied_flags(kind: FileType) -> InodeFlags {
    let of_all = InodeFlags::NODUMP | InodeFlags::NOATIME;
    let of_directories = InodeFlags::DIRSYNC | InodeFlags::TOPDIR;
    let of_content = InodeFlags::SECRM | InodeFlags::UNRM | InodeFlags::SYNC;
    match kind {
        FileType::Directory => of_all | of_content | of_directories,
        FileType::Regular => of_all | of_content,
        _ => of_all,
    }
}

/// Refuses an access control list that nobody could read, as those of damaged images.
fn check_list(name: &[u8], value: &[u8], path: &[u8]) -> Result<()> {
    match acl::decode(value) {
        Err(corrupt) if acl::is_list(name) => {
            let problem = format!(
                "the list {} of the file that is copied here is not understood: {}; `pext4 \
                 setxattr --remove` removes it from that file",
                Shown(name),
                corrupt.problem()
            );
            refuse(path, problem)
        }
        _ => Ok(()),
    }
}

/// Refuses device numbers that ext4 cannot hold: it would store other numbers in their place.
fn check_device(metadata: &FileMetadata, path: &[u8]) -> Result<()> {
    let DeviceNumber { major, minor } = metadata.device;
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

/// Refuses the target of a symbolic link that does not fit a block.
pub(crate) fn check_target(volume: &Volume, target: &[u8], path: &[u8]) -> Result<()> {
    let (length, block) = (target.len(), volume.statfs().block_size);
    if length < block as usize {
        return Ok(());
    }
    let problem = format!(
        "its target has {length} bytes, and {} are the most in this image: it must fit a block of {block} \
         bytes",
        block - 1
    );
    refuse(path, problem)
}

/// Writes the content of one file, in order.
pub(crate) struct ContentWriter<'s> {
    session: &'s EditSession,
    inode: InodeNumber,
    path: Vec<u8>,
    end: u64,
}

impl<'s> ContentWriter<'s> {
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
                .with_path(&self.path)?;
            if written == 0 {
                return Err(pext4_fs::Error::from(Refusal::NoSpace)).with_path(&self.path);
            }
            done += written;
        }
        self.end = self.end.max(offset + bytes.len() as u64);
        self.session.step_data(bytes.len())
    }

    /// Sets the file's size. Ranges that were not written are holes.
    pub(crate) fn finish(self, size: u64) -> Result<()> {
        if self.end == size {
            return Ok(());
        }
        let change = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        let done = self.session.volume().set_attributes(self.inode, &change);
        done.with_path(&self.path).map(|_| ())
    }
}
