//! Unpacks a tar archive into an image.
//!
//! Each entry creates a file at its name below a directory of the image. Missing directories on the
//! way are created; symbolic links on the way are followed inside the image, and what they lead to
//! is created as well. An existing file is replaced, but a directory only by a directory. A
//! directory gets its attributes at the end, so those that are made in it do not inherit them. Hard
//! links to files that do not exist (yet) are refused, and so is what [`checked`] refuses. In a
//! layer absolute names begin at the directory that it goes to.

use std::collections::HashSet;
use std::io::Read;

use pext4_fs::{DeviceNumber, FileType, InodeNumber, Refusal};
use pext4_ondisk::acl::{self, Acl};
use pext4_tar::marks::{Mark, mark};
use pext4_tar::{Entry, Kind, Malformed, checked};

use super::layer::Layer;
use super::read::Archive;
use crate::change::{self, Change, last_name};
use crate::error::{EditError, FsContext, Result, refuse};
use crate::session::EditSession;
use crate::source::{FileMetadata, PIECE};
use crate::tree_writer::{ContentWriter, Overrides, TreeWriter};

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unpacked {
    /// The number of entries.
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
}

impl EditSession {
    /// Unpacks a tar archive into the directory `into`, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// `Tar` for an archive that is damaged or cut short, or has names outside of the directory;
    /// the errors of a [`Change`] of the same kind, with the path.
    pub fn apply_tar(&mut self, archive: &mut dyn Read, into: &[u8]) -> Result<Unpacked> {
        self.unpack(archive, into, None)
    }

    /// Unpacks a layer of a container image (OCI, Docker) over the directory `into`, which is
    /// created if it is missing. Its whiteouts remove what they hide, and a file of the layer
    /// replaces whatever has its name, except that directories are merged.
    ///
    /// # Errors
    ///
    /// As [`EditSession::apply_tar`].
    pub fn apply_layer(&mut self, archive: &mut dyn Read, into: &[u8]) -> Result<Unpacked> {
        self.unpack(archive, into, Some(Layer::default()))
    }

    fn unpack(
        &mut self,
        archive: &mut dyn Read,
        into: &[u8],
        layer: Option<Layer>,
    ) -> Result<Unpacked> {
        self.apply(&Change::MakeDirectory(change::MakeDirectory {
            path: into.to_vec(),
            parents: true,
            mode: None,
        }))?;
        self.change(|session| {
            let mut unpacker = Unpacker {
                session,
                into,
                layer,
                piece: vec![0; PIECE],
                directories: Vec::new(),
                done: Unpacked::default(),
            };
            let mut archive = Archive::new(archive);
            while let Some(entry) = archive.next()? {
                unpacker.unpack(&mut archive, &entry)?;
            }
            unpacker.apply_directory_metadata()?;
            Ok(unpacker.done)
        })
    }
}

struct Unpacker<'s> {
    session: &'s EditSession,
    into: &'s [u8],
    /// If the archive is a layer of a container image.
    layer: Option<Layer>,
    piece: Vec<u8>,
    /// Directories whose attributes are set at the end, when all their entries exist.
    directories: Vec<(Vec<u8>, FileMetadata)>,
    done: Unpacked,
}

impl Unpacker<'_> {
    fn unpack(&mut self, archive: &mut Archive<'_>, entry: &Entry) -> Result<()> {
        let is_layer = self.layer.is_some();
        let inside = checked::path(entry, is_layer).map_err(|problem| bad(entry, problem))?;
        let path = self.path_of(&inside);
        if is_layer && let Some(mark) = mark(&inside) {
            return self.apply_mark(mark, &path);
        }
        if entry.kind == Kind::HardLink {
            return self.link(entry, &path);
        }
        let kind = entry.kind.file_type();
        if kind == FileType::Symlink {
            checked::symlink_target(entry).map_err(|problem| bad(entry, problem))?;
        }
        self.done.files += 1;
        let metadata = self.metadata(entry, kind)?;
        self.clear_way(&path, kind)?;
        if kind == FileType::Directory {
            return self.directory(path, metadata);
        }
        let (parent, name) = self.parent(&path)?;
        let writer = TreeWriter::new(self.session, Overrides::default());
        let held = writer.make(&metadata, parent, name, &path)?;
        self.note(&path)?;
        if kind == FileType::Regular {
            let mut content_writer = ContentWriter::new(self.session, held.inode(), &path);
            self.copy(archive, entry, &mut content_writer)?;
            content_writer.finish(entry.size)?;
        }
        self.apply_metadata(&writer, metadata, held.inode(), &path)
    }

    /// Hides what the mark at this path of the image hides.
    fn apply_mark(&mut self, mark: Mark<'_>, path: &[u8]) -> Result<()> {
        if mark == Mark::Below {
            return Ok(());
        }
        // Like any entry, a mark has its directory made, which is one of the layer's then.
        let (_, name) = self.parent(path)?;
        self.note(path)?;
        let directory = &path[..path.len() - name.len()];
        match (mark, &self.layer) {
            (Mark::Whiteout(hidden), Some(layer)) => {
                layer.hide(self.session, &[directory, hidden].concat())
            }
            (Mark::Opaque, Some(layer)) => layer.hide_in(self.session, directory),
            _ => Ok(()),
        }
    }

    /// Removes what a file of a layer replaces and a file of another archive would not: a directory
    /// by anything else, and anything else by a directory.
    fn clear_way(&mut self, path: &[u8], kind: FileType) -> Result<()> {
        if self.layer.is_none() {
            return Ok(());
        }
        let there = match self.session.volume().paths().symlink_metadata(path) {
            Err(error) if error.is(Refusal::NotFound) => return Ok(()),
            there => there.with_path(path)?.file_type,
        };
        let directory = FileType::Directory;
        if (there == directory) != (kind == directory) {
            self.session.remove_all(path)?;
            let is_below = |entry: &[u8]| {
                let rest = entry.strip_prefix(path);
                rest.is_some_and(|rest| rest.first().is_none_or(|&byte| byte == b'/'))
            };
            self.directories.retain(|(entry, _)| !is_below(entry));
        }
        Ok(())
    }

    /// Notes a file that was made, so that a mark of the same layer does not hide it.
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

    fn copy(
        &mut self,
        archive: &mut Archive<'_>,
        entry: &Entry,
        content_writer: &mut ContentWriter<'_>,
    ) -> Result<()> {
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
        Ok(())
    }

    fn directory(&mut self, path: Vec<u8>, metadata: FileMetadata) -> Result<()> {
        match self.session.volume().paths().metadata(&path) {
            Ok(there) if there.file_type == FileType::Directory => self.session.step_file()?,
            Err(error) if !leads_nowhere(&error) => return Err(error).with_path(&path),
            _ => self.make_directory(&path, &metadata)?,
        }
        self.note(&path)?;
        self.directories.push((path, metadata));
        Ok(())
    }

    /// Makes a directory, in the place of anything else that is there.
    fn make_directory(&self, path: &[u8], metadata: &FileMetadata) -> Result<()> {
        match self.session.volume().paths().symlink_metadata(path) {
            Ok(_) => self.session.remove_all(path)?,
            Err(error) if error.is(Refusal::NotFound) => {}
            Err(error) => return Err(error).with_path(path),
        }
        let (parent, name) = self.parent(path)?;
        let first = FileMetadata {
            permissions: 0o755,
            uid: 0,
            gid: 0,
            xattrs: Vec::new(),
            ..metadata.clone()
        };
        let writer = TreeWriter::new(self.session, Overrides::default());
        writer.make(&first, parent, name, path).map(drop)
    }

    /// Sets the attributes of directories, children before their parents. If a directory has
    /// several entries, under any names, the last one counts. One that a later entry of a layer has
    /// replaced is left out.
    fn apply_directory_metadata(&mut self) -> Result<()> {
        let writer = TreeWriter::new(self.session, Overrides::default());
        let mut done = HashSet::new();
        for (path, metadata) in std::mem::take(&mut self.directories).into_iter().rev() {
            if self.layer.is_some() && !self.is_directory(&path)? {
                continue;
            }
            let held = self
                .session
                .volume()
                .paths()
                .resolve(&path)
                .with_path(&path)?;
            if !done.insert(held.inode()) {
                continue;
            }
            self.apply_metadata(&writer, metadata, held.inode(), &path)?;
        }
        Ok(())
    }

    fn is_directory(&self, path: &[u8]) -> Result<bool> {
        match self.session.volume().paths().symlink_metadata(path) {
            Err(error) if leads_nowhere(&error) => Ok(false),
            there => Ok(there.with_path(path)?.file_type == FileType::Directory),
        }
    }

    fn link(&mut self, entry: &Entry, path: &[u8]) -> Result<()> {
        self.clear_way(path, FileType::Regular)?;
        let target = checked::hard_link(entry, self.layer.is_some())
            .map_err(|problem| bad(entry, problem))?;
        let target = self.path_of(&target);
        let first = match self.session.volume().paths().resolve_link(&target) {
            Ok(first) => first,
            Err(error) if error.is(Refusal::NotFound) => {
                let problem = "it is a hard link to a file that is not there (yet)";
                return Err(bad(entry, problem));
            }
            Err(error) => return Err(error).with_path(&target),
        };
        self.done.files += 1;
        let (parent, name) = self.parent(path)?;
        let writer = TreeWriter::new(self.session, Overrides::default());
        writer.link(first.inode(), parent, name, path)?;
        self.note(path)
    }

    /// The directory of a path, which is created if it is missing, and the path's last name.
    fn parent<'p>(&self, path: &'p [u8]) -> Result<(InodeNumber, &'p [u8])> {
        let name = last_name(path);
        if name.is_empty() {
            return refuse(path, "the image's root is a directory");
        }
        let directory = &path[..path.len() - name.len()];
        let paths = self.session.volume().paths();
        let held = match paths.resolve(directory) {
            Err(error) if error.is(Refusal::NotFound) => {
                self.session.make_missing(directory)?;
                paths.resolve(directory).with_path(directory)?
            }
            found => found.with_path(directory)?,
        };
        Ok((held.inode(), name))
    }

    /// The path in the image of a path in the archive.
    fn path_of(&self, inside: &[u8]) -> Vec<u8> {
        let mut path = self.into.to_vec();
        while path.last() == Some(&b'/') {
            path.pop();
        }
        path.push(b'/');
        path.extend_from_slice(inside);
        path
    }

    fn metadata(&self, entry: &Entry, kind: FileType) -> Result<FileMetadata> {
        let attributes = checked::attributes(entry, |_| false)
            .map_err(|problem| bad(entry, problem.to_string()))?;
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
        Ok(TreeWriter::new(self.session, Overrides::default()).adjusted(metadata))
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

fn bad(entry: &Entry, problem: impl Into<String>) -> EditError {
    EditError::Tar(Malformed::new(&entry.name, problem))
}
