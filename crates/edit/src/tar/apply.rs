//! Unpacks a tar archive into an image.
//!
//! Each entry creates a file at its name below a directory of the image. Missing directories on the
//! way are created; symbolic links on the way are followed inside the image, and what they lead to
//! is created as well. An existing file is replaced, but a directory of the image only by a
//! directory. Among the entries of one archive the later one counts: a file replaces a directory
//! that the archive made, and a directory a symbolic link that it made, as by GNU tar. A directory
//! gets its attributes at the end, so those that are made in it do not inherit them. Hard links to
//! files that do not exist (yet) are refused, and so is what [`checked`] refuses. In a layer
//! absolute names begin at the directory that it goes to, and entries may wait for its marks.

use std::collections::HashSet;
use std::fmt;
use std::io::Read;

use pext4_fs::{Attributes, DeviceNumber, FileType, InodeNumber, Refusal};
use pext4_ondisk::acl::{self, Acl};
use pext4_ondisk::feature::Incompat;
use pext4_tar::marks::{Mark, mark};
use pext4_tar::{Entry, Kind, Malformed, checked};

use super::directories::Directories;
use super::layer::Layer;
use super::read::Archive;
use super::waiting::Waiting;
use super::way::Way;
use crate::change::{self, Change, last_name};
use crate::error::{EditError, FsContext, Result, refuse};
use crate::session::EditSession;
use crate::source::{FileMetadata, PIECE};
use crate::tree_writer::{ContentWriter, HeldInode, Overrides, TreeWriter, find};

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unpacked {
    /// The number of entries.
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
}

/// Tells of the name of an extended attribute whether it is left out.
pub type AttributeFilter<'f> = dyn Fn(&[u8]) -> bool + 'f;

/// How an archive is unpacked.
#[derive(Clone, Copy, Default)]
pub struct UnpackOptions<'o> {
    /// The archive is a layer of a container image (OCI, Docker): its whiteouts remove what they
    /// hide, and a file of the layer replaces whatever has its name, except that directories are
    /// merged.
    pub is_layer: bool,
    /// Whether the extended attribute of this name is left out, also if it is invalid.
    pub excludes_attribute: Option<&'o AttributeFilter<'o>>,
}

impl fmt::Debug for UnpackOptions<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UnpackOptions")
            .field("is_layer", &self.is_layer)
            .field("excludes_attributes", &self.excludes_attribute.is_some())
            .finish()
    }
}

impl EditSession {
    /// Unpacks a tar archive into the directory `into`, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// `Tar` for an archive that is damaged or cut short, or has names outside of the directory;
    /// `TarEntry` with the errors of a [`Change`] of the same kind.
    pub fn apply_tar(&mut self, archive: &mut dyn Read, into: &[u8]) -> Result<Unpacked> {
        self.apply_tar_with(archive, into, UnpackOptions::default())
    }

    /// As [`EditSession::apply_tar`], for a layer of a container image
    /// ([`UnpackOptions::is_layer`]).
    ///
    /// # Errors
    ///
    /// As [`EditSession::apply_tar`].
    pub fn apply_layer(&mut self, archive: &mut dyn Read, into: &[u8]) -> Result<Unpacked> {
        let options = UnpackOptions {
            is_layer: true,
            ..UnpackOptions::default()
        };
        self.apply_tar_with(archive, into, options)
    }

    /// As [`EditSession::apply_tar`], with options.
    ///
    /// # Errors
    ///
    /// As [`EditSession::apply_tar`].
    pub fn apply_tar_with(
        &mut self,
        archive: &mut dyn Read,
        into: &[u8],
        options: UnpackOptions<'_>,
    ) -> Result<Unpacked> {
        self.apply(&Change::MakeDirectory(change::MakeDirectory {
            parents: true,
            ..change::MakeDirectory::new(into)
        }))?;
        let (done, lacks_end_mark) = self.change(|session| {
            let mut unpacker = Unpacker {
                session,
                into,
                layer: options.is_layer.then(Layer::default),
                options,
                piece: vec![0; PIECE],
                made: HashSet::new(),
                directories: Directories::default(),
                waiting: Waiting::default(),
                done: Unpacked::default(),
            };
            let mut archive = Archive::new(archive);
            while let Some(entry) = archive.next()? {
                let unpacked = unpacker.unpack(&mut archive, &entry);
                unpacked.map_err(|error| error.of_entry(&entry.name))?;
            }
            unpacker.apply_waiting()?;
            unpacker.apply_directory_metadata()?;
            Ok((unpacker.done, archive.lacks_end_mark()))
        })?;
        if lacks_end_mark {
            let note = "the archive ends without an end mark; it may have been cut short";
            self.note(note.to_owned());
        }
        Ok(done)
    }
}

/// Where the content of an entry is.
pub(super) enum Content<'c, 'r, 's> {
    /// Next in the archive.
    Next(&'c mut Archive<'r>),
    /// In a file without a name. For a hard link, the file to which it led when it was read.
    Kept(Option<HeldInode<'s>>),
}

pub(super) struct Unpacker<'s> {
    pub(super) session: &'s EditSession,
    pub(super) into: &'s [u8],
    options: UnpackOptions<'s>,
    /// If the archive is a layer of a container image.
    pub(super) layer: Option<Layer>,
    piece: Vec<u8>,
    /// Numbers of directories and symbolic links that the archive made. What has such a number is
    /// the archive's, even if the number was freed and used again.
    made: HashSet<InodeNumber>,
    directories: Directories,
    pub(super) waiting: Waiting<'s>,
    done: Unpacked,
}

impl<'s> Unpacker<'s> {
    /// A writer of entries as the archive has them.
    fn writer(&self) -> TreeWriter<'s> {
        TreeWriter::new(self.session, Overrides::default())
    }

    fn unpack(&mut self, archive: &mut Archive<'_>, entry: &Entry) -> Result<()> {
        let is_layer = self.layer.is_some();
        let inside = checked::path(entry, is_layer).map_err(|problem| bad(entry, problem))?;
        if is_layer && let Some(mark) = mark(&inside) {
            return self.take_mark(mark, &inside);
        }
        let path = self.path_of(&inside);
        if is_layer && self.must_wait(entry, &path)? {
            return self.wait(archive, entry, &path);
        }
        self.make(entry, &path, Content::Next(archive))
    }

    /// Makes the file of an entry.
    pub(super) fn make(
        &mut self,
        entry: &Entry,
        path: &[u8],
        content: Content<'_, '_, 's>,
    ) -> Result<()> {
        if entry.kind == Kind::HardLink {
            return self.link(entry, path, content);
        }
        let kind = entry.kind.file_type();
        if kind == FileType::Symlink {
            checked::symlink_target(entry).map_err(|problem| bad(entry, problem))?;
        }
        self.done.files += 1;
        let metadata = self.metadata(entry, kind)?;
        if kind == FileType::Directory {
            return self.directory(path, metadata);
        }
        let (parent, name) = self.parent(path)?;
        self.remove_directory(parent, name, path)?;
        // The file may take the place of a link on its own path.
        self.note(path)?;
        let writer = self.writer();
        let held = match content {
            Content::Kept(Some(held)) => {
                writer.link(held.inode(), parent, name, path)?;
                held
            }
            Content::Kept(None) => writer.make(&metadata, parent, name, path)?,
            Content::Next(archive) => {
                let held = writer.make(&metadata, parent, name, path)?;
                if kind == FileType::Regular {
                    self.write_content(archive, entry, held.inode(), path)?;
                }
                held
            }
        };
        if kind == FileType::Symlink {
            self.made.insert(held.inode());
        }
        self.apply_metadata(&writer, metadata, held.inode(), path)
    }

    /// Hides what the mark at this path of the image hides.
    pub(super) fn apply_mark(&mut self, mark: Mark<'_>, path: &[u8]) -> Result<()> {
        // Like any entry, a mark has its directory made, which is one of the layer's then.
        let (_, name) = self.parent(path)?;
        self.note(path)?;
        // The mark may hide a link on its own path.
        let directory = Way::plain_path(self.session, &path[..path.len() - name.len()])?;
        match (mark, &mut self.layer) {
            (Mark::Whiteout(hidden), Some(layer)) => {
                layer.hide(self.session, &[&directory, hidden].concat())
            }
            (Mark::Opaque, Some(layer)) => layer.hide_in(self.session, &directory),
            _ => Ok(()),
        }
    }

    /// Removes a directory that a file is to replace: in a layer any, else one that this archive
    /// made.
    fn remove_directory(&self, parent: InodeNumber, name: &[u8], path: &[u8]) -> Result<()> {
        let there = find(self.session.volume(), parent, name, path)?;
        let is_replaced = |there: HeldInode<'_>| {
            there.kind() == FileType::Directory
                && (self.layer.is_some() || self.made.contains(&there.inode()))
        };
        match there.is_some_and(is_replaced) {
            true => self.session.remove_all(path),
            false => Ok(()),
        }
    }

    /// Notes a file that is made, so that a mark of the same layer does not hide it.
    fn note(&mut self, path: &[u8]) -> Result<()> {
        match &mut self.layer {
            Some(layer) => layer.note(self.session, path),
            None => Ok(()),
        }
    }

    /// Sets the attributes of an inode. An access list that says no more than the mode is not
    /// stored, and removes one that the inode has or inherited, as in Linux.
    fn apply_metadata(
        &self,
        writer: &TreeWriter<'_>,
        mut metadata: FileMetadata,
        inode: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        let permissions = metadata.permissions;
        let says_mode = |list: Acl| list.is_mode_only() && list.mode_bits() == permissions & 0o777;
        let is_needless = |(name, value): &(Vec<u8>, Vec<u8>)| {
            name == acl::ACCESS && Acl::from_disk(value).is_some_and(says_mode)
        };
        let count = metadata.xattrs.len();
        if metadata.kind != FileType::Symlink {
            metadata.xattrs.retain(|xattr| !is_needless(xattr));
        }
        let is_left_out = metadata.xattrs.len() < count;
        writer.apply_metadata(&metadata, inode, path)?;
        if is_left_out {
            let volume = self.session.volume();
            volume
                .remove_access_list(inode, permissions)
                .with_path(path)?;
        }
        Ok(())
    }

    /// Writes the content of an entry, which is next in the archive.
    pub(super) fn write_content(
        &mut self,
        archive: &mut Archive<'_>,
        entry: &Entry,
        inode: InodeNumber,
        path: &[u8],
    ) -> Result<()> {
        let mut content_writer = ContentWriter::new(self.session, inode, path);
        let whole = 0..entry.stored;
        let runs = entry.segments.as_deref();
        for run in runs.unwrap_or(std::slice::from_ref(&whole)) {
            let (mut at, end) = (run.start, run.end);
            while at < end {
                let room = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
                let read = archive.read(entry, &mut self.piece[..room])?;
                content_writer.write(at, &self.piece[..read])?;
                at += read as u64;
                self.done.bytes += read as u64;
            }
        }
        content_writer.finish(entry.size)
    }

    fn directory(&mut self, path: &[u8], metadata: FileMetadata) -> Result<()> {
        let there = match self.session.volume().paths().attributes(path) {
            Ok(there) if there.file_type == FileType::Directory && !self.replaces_link(path)? => {
                self.session.step_file()?;
                self.note(path)?;
                there
            }
            Err(error) if !leads_nowhere(&error) => return Err(error).with_path(path),
            _ => self.make_directory(path, &metadata)?,
        };
        let there = (there.inode, there.generation);
        self.directories.push(there, path, metadata);
        Ok(())
    }

    /// Whether a symbolic link is at a path that a directory replaces, although it leads to one: in
    /// a layer any, else one that this archive made.
    fn replaces_link(&self, path: &[u8]) -> Result<bool> {
        let there = self.session.volume().paths().link_attributes(path);
        let there = there.with_path(path)?;
        Ok(there.file_type == FileType::Symlink
            && (self.layer.is_some() || self.made.contains(&there.inode)))
    }

    /// Makes a directory, in the place of anything else that is there.
    fn make_directory(&mut self, path: &[u8], metadata: &FileMetadata) -> Result<Attributes> {
        // First of all, since it may take the place of a link on its own path.
        let (parent, name) = self.parent(path)?;
        self.note(path)?;
        if find(self.session.volume(), parent, name, path)?.is_some() {
            self.session.remove_all(path)?;
        }
        let first = FileMetadata {
            permissions: 0o755,
            uid: 0,
            gid: 0,
            xattrs: Vec::new(),
            ..metadata.clone()
        };
        let writer = self.writer();
        let held = writer.make(&first, parent, name, path)?;
        self.made.insert(held.inode());
        let attributes = self.session.volume().attributes(held.inode());
        attributes.with_path(path)
    }

    fn apply_directory_metadata(&mut self) -> Result<()> {
        let writer = self.writer();
        let directories = std::mem::take(&mut self.directories);
        directories.for_each(self.session.volume(), |inode, metadata, path| {
            self.apply_metadata(&writer, metadata, inode, path)
        })
    }

    fn link(&mut self, entry: &Entry, path: &[u8], content: Content<'_, '_, 's>) -> Result<()> {
        let first = match (self.link_target(entry), content) {
            (Err(EditError::Tar(_)), Content::Kept(Some(first))) => first,
            (first, _) => first?,
        };
        self.done.files += 1;
        let (parent, name) = self.parent(path)?;
        self.remove_directory(parent, name, path)?;
        self.note(path)?;
        let writer = self.writer();
        writer.link(first.inode(), parent, name, path)
    }

    /// The file to which a hard link leads.
    pub(super) fn link_target(&self, entry: &Entry) -> Result<HeldInode<'s>> {
        let target = checked::hard_link(entry, self.layer.is_some())
            .map_err(|problem| bad(entry, problem))?;
        let target = self.path_of(&target);
        let found = self.session.volume().paths().resolve_link(&target);
        match found.and_then(HeldInode::new) {
            Err(error) if error.is(Refusal::NotFound) => {
                let problem = "it is a hard link to a file that is not there (yet)";
                Err(bad(entry, problem))
            }
            found => found.with_path(&target),
        }
    }

    /// The directory of a path, which is created if it is missing, and the path's last name.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(InodeNumber, &'p [u8])> {
        let name = last_name(path);
        if name.is_empty() {
            return refuse(path, "the image's root is a directory");
        }
        let directory = &path[..path.len() - name.len()];
        let paths = self.session.volume().paths();
        let held = match paths.resolve(directory) {
            Err(error) if error.is(Refusal::NotFound) => {
                self.make_missing(directory)?;
                paths.resolve(directory).with_path(directory)?
            }
            found => found.with_path(directory)?,
        };
        Ok((held.inode(), name))
    }

    /// Creates the missing directories of a path. Those with its names are the archive's.
    fn make_missing(&mut self, directory: &[u8]) -> Result<()> {
        self.made.extend(self.session.make_missing(directory)?);
        Ok(())
    }

    /// The path in the image of a path in the archive.
    pub(super) fn path_of(&self, inside: &[u8]) -> Vec<u8> {
        let mut path = self.into.to_vec();
        while path.last() == Some(&b'/') {
            path.pop();
        }
        path.push(b'/');
        path.extend_from_slice(inside);
        path
    }

    fn excludes_attribute(&self, name: &[u8]) -> bool {
        let excludes = self.options.excludes_attribute;
        excludes.is_some_and(|excludes| excludes(name))
    }

    /// The attributes of an entry, which are no larger than what a file of the image can have.
    pub(super) fn attributes(
        &self,
        entry: &Entry,
    ) -> std::result::Result<checked::Attributes, checked::AttributeProblem> {
        let superblock = self.session.superblock_before();
        let max_bytes = match superblock.features.has_incompat(Incompat::EA_INODE) {
            // Each value may have an inode of its own.
            true => usize::MAX,
            false => {
                usize::from(superblock.effective_inode_size())
                    + self.session.volume().statfs().block_size as usize
            }
        };
        checked::attributes(entry, max_bytes, |name| self.excludes_attribute(name))
    }

    fn metadata(&self, entry: &Entry, kind: FileType) -> Result<FileMetadata> {
        let attributes = self
            .attributes(entry)
            .map_err(|problem| bad_attribute(entry, &problem))?;
        let permissions = match attributes.permissions {
            Some(of_list) => entry.permissions & 0o7000 | of_list,
            None => entry.permissions,
        };
        let metadata = FileMetadata {
            kind,
            permissions,
            uid: entry.uid,
            gid: entry.gid,
            accessed: entry.accessed.unwrap_or(entry.modified),
            modified: entry.modified,
            size: entry.size,
            device: DeviceNumber {
                major: entry.device.0,
                minor: entry.device.1,
            },
            target: entry.link.clone(),
            xattrs: attributes.all,
            flags: None,
            identity: None,
        };
        Ok(self.writer().adjusted(metadata))
    }
}

/// Whether a path leads to nothing: a name is missing, or a link leads in a circle or through a
/// file.
fn leads_nowhere(error: &pext4_fs::Error) -> bool {
    let refusals = [
        Refusal::NotFound,
        Refusal::NotADirectory,
        Refusal::TooManySymlinks,
    ];
    refusals.into_iter().any(|refusal| error.is(refusal))
}

pub(super) fn bad_attribute(entry: &Entry, problem: &checked::AttributeProblem) -> EditError {
    bad(entry, format!("{problem}; {}", problem.way_out()))
}

fn bad(entry: &Entry, problem: impl Into<String>) -> EditError {
    EditError::Tar(Malformed::new(&entry.name, problem))
}
