//! Trees of an image as a [`Source`]: for copies within and between images, and out of them.
//!
//! An image may be hostile: its directories may form cycles, or have several names. A directory is
//! entered once; a second path to it is reported as corruption. Names that no host and no tar could
//! hold are refused when they are listed, and so is the second of two equal names in a directory.
//! All directories together have a limit ([`DirectoryLimit`]), and so have all data and all
//! attributes ([`CopyLimit`]). A file that counts one link and is met by a second name is copied
//! under that, too, and all further names are links to that copy: to know the first name of every
//! file would take much memory.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;
use std::rc::Rc;

use pext4_fs::{Attributes, FileType, InodeNumber, Refusal, Volume};
use pext4_ondisk::{Corrupt, xattr};

use crate::copy_limit::CopyLimit;
use crate::directory_limit::DirectoryLimit;
use crate::error::{FsContext, ImageContext, Result};
use crate::flags::is_encrypted;
use crate::image_path::ImagePath;
use crate::source::{FileMetadata, PIECE, Sink, Source};
use crate::unreadable::Unreadable;

/// A volume as a source.
pub(crate) struct ImageTree<'v> {
    volume: &'v Volume,
    /// What errors name as the image, if it is not the one that is being edited.
    file: Option<&'v Path>,
    /// Directories that were entered.
    entered: RefCell<HashSet<InodeNumber>>,
    /// Files that count one link and were met.
    met: RefCell<HashSet<InodeNumber>>,
    /// Files whose data could not be read. Under another name they are not read again: what was
    /// read of them would count towards the limit once more.
    damaged: RefCell<HashSet<InodeNumber>>,
    directories: DirectoryLimit,
    limit: CopyLimit,
}

/// A file of an image.
#[derive(Clone, Debug)]
pub(crate) struct ImageFile {
    pub(crate) inode: InodeNumber,
    path: Rc<ImagePath>,
}

impl ImageFile {
    /// The top of a tree, at this path.
    pub(crate) fn top(inode: InodeNumber, path: &[u8]) -> Self {
        Self {
            inode,
            path: ImagePath::top(path),
        }
    }

    /// Its path, which is made each time, for errors.
    pub(crate) fn path(&self) -> Vec<u8> {
        self.path.whole()
    }

    /// Its path below the top of its tree: empty for the top itself.
    pub(crate) fn path_below_top(&self) -> Vec<u8> {
        self.path.below_top()
    }
}

/// The names of a directory and their files, in order. There may be millions: what is kept for each
/// is small, and files are made when they are asked for.
pub(crate) struct Children {
    /// The path of the directory.
    directory: Rc<ImagePath>,
    /// All names, one behind the other.
    texts: Vec<u8>,
    names: std::vec::IntoIter<Name>,
}

/// A name of a directory.
#[derive(Clone, Copy)]
struct Name {
    /// Where it begins among the texts.
    start: usize,
    length: u32,
    inode: InodeNumber,
}

impl Name {
    fn text<'t>(&self, texts: &'t [u8]) -> &'t [u8] {
        &texts[self.start..][..self.length as usize]
    }

    /// The order of names, and of equal ones.
    fn key<'t>(&self, texts: &'t [u8]) -> (&'t [u8], InodeNumber) {
        (self.text(texts), self.inode)
    }
}

impl Iterator for Children {
    type Item = (Vec<u8>, ImageFile);

    fn next(&mut self) -> Option<Self::Item> {
        let name = self.names.next()?;
        let text = name.text(&self.texts);
        let file = ImageFile {
            inode: name.inode,
            path: ImagePath::of_child(&self.directory, text),
        };
        Some((text.to_vec(), file))
    }
}

impl<'v> ImageTree<'v> {
    pub(crate) fn new(volume: &'v Volume) -> Self {
        Self::of_file(volume, None)
    }

    /// The volume of an image that errors name.
    pub(crate) fn of_file(volume: &'v Volume, file: Option<&'v Path>) -> Self {
        Self {
            volume,
            file,
            entered: RefCell::new(HashSet::new()),
            met: RefCell::new(HashSet::new()),
            damaged: RefCell::new(HashSet::new()),
            directories: DirectoryLimit::new(volume),
            limit: CopyLimit::new(volume),
        }
    }

    pub(crate) fn attributes(&self, file: &ImageFile) -> Result<Attributes> {
        let found = self.volume.attributes(file.inode).with_file(file);
        found.in_image(self.file)
    }

    /// The names of a directory, sorted. If unreadable files may be skipped, only those names that
    /// can be read.
    pub(crate) fn readable_children(
        &self,
        file: &ImageFile,
        unreadable: &mut Unreadable<'_, '_>,
    ) -> Result<Children> {
        let mut texts = Vec::new();
        let mut names = Vec::new();
        let entered = self.enter(file).in_image(self.file);
        if unreadable.or_skip(entered)?.is_some() {
            let listed = each_name(self.volume, file.inode, &mut |text, inode| {
                names.push(Name {
                    start: texts.len(),
                    length: text.len() as u32,
                    inode,
                });
                texts.extend_from_slice(text);
            });
            unreadable.or_skip(listed.with_file(file).in_image(self.file))?;
        }
        names.sort_unstable_by(|one, other| one.key(&texts).cmp(&other.key(&texts)));
        let (mut kept, mut previous) = (0, None::<Name>);
        for at in 0..names.len() {
            let (name, text) = (names[at], names[at].text(&texts));
            let is_second = previous.is_some_and(|previous| previous.text(&texts) == text);
            previous = Some(name);
            let checked = self.check_name(file, text, is_second).in_image(self.file);
            if unreadable.or_skip(checked)?.is_some() {
                names[kept] = name;
                kept += 1;
            }
        }
        names.truncate(kept);
        Ok(Children {
            directory: Rc::clone(&file.path),
            texts,
            names: names.into_iter(),
        })
    }

    /// Refuses a name that could lead out of its directory, and a name that the directory holds a
    /// second time: the first may be a symbolic link, and whoever unpacks the tree would write what
    /// is below the second to where it leads.
    fn check_name(&self, directory: &ImageFile, name: &[u8], is_second: bool) -> Result<()> {
        let path = || join(&directory.path(), name);
        let problem = match is_harmless(name) {
            true if !is_second => return Ok(()),
            true => "holds this name twice",
            false if self.is_encrypted(directory) => {
                let what = "its directory is encrypted: without the key this is no name of a file";
                return Err(pext4_fs::Error::unsupported(what)).with_path(&path());
            }
            false => "holds a name that no file can have",
        };
        let corrupt = Corrupt::new("directory", problem).in_inode(directory.inode);
        Err(pext4_fs::Error::from(corrupt)).with_path(&path())
    }

    fn is_encrypted(&self, directory: &ImageFile) -> bool {
        let found = self.volume.attributes(directory.inode);
        found.is_ok_and(|found| is_encrypted(found.flags))
    }

    /// The metadata of a file but for the target of a symbolic link and the extended attributes:
    /// all that matters of one that gets another name. To be asked for once for each name.
    pub(crate) fn summary(&self, file: &ImageFile) -> Result<FileMetadata> {
        let found = self.attributes(file)?;
        let may_have_more = match (found.file_type, found.links) {
            (FileType::Directory, _) => false,
            (_, 0 | 1) => !self.met.borrow_mut().insert(file.inode),
            _ => true,
        };
        Ok(FileMetadata {
            kind: found.file_type,
            permissions: found.permissions(),
            uid: found.uid,
            gid: found.gid,
            accessed: found.accessed,
            modified: found.modified,
            size: found.size,
            device: found.device,
            target: Vec::new(),
            xattrs: Vec::new(),
            flags: Some(found.flags),
            identity: may_have_more.then(|| (0, u64::from(file.inode.get()))),
        })
    }

    /// Adds what [`Self::summary`] leaves out.
    pub(crate) fn complete(&self, file: &ImageFile, metadata: &mut FileMetadata) -> Result<()> {
        if metadata.kind == FileType::Symlink {
            let target = self.volume.read_link(file.inode).with_file(file);
            metadata.target = target.in_image(self.file)?;
        }
        let xattrs = self.xattrs(file.inode, metadata.kind).with_file(file);
        metadata.xattrs = xattrs.in_image(self.file)?;
        Ok(())
    }

    /// The attributes of a file, without those that Linux does not read from its kind of file.
    fn xattrs(
        &self,
        inode: InodeNumber,
        kind: FileType,
    ) -> pext4_fs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut xattrs = self.volume.xattrs(inode)?;
        self.limit.take_attributes(inode, &xattrs)?;
        xattrs.retain(|(name, _)| {
            xattr::split_name(name).is_none_or(|(index, _)| xattr::is_placed(kind, index))
        });
        xattrs.sort_unstable();
        Ok(xattrs)
    }

    /// Counts the holes of a file that are copied as zeroes, though holes can be told.
    pub(crate) fn take_holes(&self, file: &ImageFile, bytes: u64) -> Result<()> {
        let taken = self.limit.take_holes(bytes).with_file(file);
        taken.in_image(self.file)
    }

    /// Reads the data of a file that is to be copied later, to know that it can be read.
    pub(crate) fn try_content(&self, file: &ImageFile, metadata: &FileMetadata) -> Result<()> {
        let read = || self.content(file, metadata, &mut |_, _| Ok(()));
        self.limit.in_advance(read)
    }

    /// Remembers a file as damaged if its data could not be read.
    fn or_damaged<T>(&self, inode: InodeNumber, read: pext4_fs::Result<T>) -> pext4_fs::Result<T> {
        if read.is_err() {
            self.damaged.borrow_mut().insert(inode);
        }
        read
    }

    /// Refuses to list a directory a second time, and one that is too large.
    fn enter(&self, file: &ImageFile) -> Result<()> {
        if !self.entered.borrow_mut().insert(file.inode) {
            let problem = "is reached by two ways";
            let corrupt = Corrupt::new("directory", problem).in_inode(file.inode);
            return Err(pext4_fs::Error::from(corrupt)).with_file(file);
        }
        let found = self.volume.attributes(file.inode);
        let taken = found.and_then(|found| self.directories.take(&found));
        taken.with_file(file)
    }
}

impl Source for ImageTree<'_> {
    type Node = ImageFile;
    type Children = Children;

    fn metadata(&self, file: &ImageFile) -> Result<FileMetadata> {
        let mut metadata = self.summary(file)?;
        self.complete(file, &mut metadata)?;
        Ok(metadata)
    }

    fn children(&self, file: &ImageFile) -> Result<Children> {
        self.readable_children(file, &mut Unreadable::new(None))
    }

    fn content(&self, file: &ImageFile, _: &FileMetadata, sink: Sink<'_>) -> Result<()> {
        let mut piece = vec![0; PIECE];
        for run in DataRuns::new(self, file) {
            let (mut at, end) = run.in_image(self.file)?;
            while at < end {
                let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
                let read = self.volume.read(file.inode, at, &mut piece[..length]);
                let read = self.or_damaged(file.inode, read).with_file(file);
                let read = read.in_image(self.file)?;
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

/// The runs of data of a file, each from its first byte to the byte behind its last. A damaged map
/// may lead to the same blocks again and again; so it is an error if the runs are longer than the
/// file system, or, with those of files before, than the tree's limit.
pub(crate) struct DataRuns<'a> {
    tree: &'a ImageTree<'a>,
    file: &'a ImageFile,
    at: u64,
    /// Bytes that the other runs may have.
    left: u64,
}

impl<'a> DataRuns<'a> {
    pub(crate) fn new(tree: &'a ImageTree<'a>, file: &'a ImageFile) -> Self {
        Self {
            tree,
            file,
            at: 0,
            left: tree.volume.size(),
        }
    }

    fn next_run(&mut self) -> pext4_fs::Result<Option<(u64, u64)>> {
        let (volume, inode) = (self.tree.volume, self.file.inode);
        if self.tree.damaged.borrow().contains(&inode) {
            let problem = "could not be read under another of its names";
            return Err(Corrupt::new("file", problem).in_inode(inode).into());
        }
        let start = match volume.seek_data(inode, self.at) {
            Ok(start) => start,
            Err(error) if error.is(Refusal::NoSuchOffset) => return Ok(None),
            Err(error) => return Err(error),
        };
        let end = volume.seek_hole(inode, start)?;
        let Some(left) = self.left.checked_sub(end - start) else {
            let problem = "leads to more blocks than the file system has";
            return Err(Corrupt::new("map of a file", problem)
                .in_inode(inode)
                .into());
        };
        self.tree.limit.take_data(inode, end - start)?;
        (self.at, self.left) = (end, left);
        Ok(Some((start, end)))
    }
}

impl Iterator for DataRuns<'_> {
    type Item = Result<(u64, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        let run = self.next_run();
        let run = self.tree.or_damaged(self.file.inode, run);
        run.with_file(self.file).transpose()
    }
}

/// The names in a directory, without `.` and `..`.
pub(crate) fn list(
    volume: &Volume,
    directory: InodeNumber,
) -> pext4_fs::Result<Vec<(Vec<u8>, InodeNumber)>> {
    let mut names = Vec::new();
    let listed = each_name(volume, directory, &mut |name, inode| {
        names.push((name.to_vec(), inode));
    });
    listed.map(|()| names)
}

/// Passes the names in a directory, without `.` and `..`; before an error those that could be read.
fn each_name(
    volume: &Volume,
    directory: InodeNumber,
    pass: &mut dyn FnMut(&[u8], InodeNumber),
) -> pext4_fs::Result<()> {
    volume.read_directory(directory, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            pass(entry.name, entry.inode);
        }
        true
    })
}

/// Whether a name leads to a file in its directory and nowhere else.
fn is_harmless(name: &[u8]) -> bool {
    !name.is_empty()
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
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

#[cfg(test)]
mod tests {
    use super::{Children, ImagePath, InodeNumber, Name};

    #[test]
    fn a_name_takes_little_and_gets_its_path_when_it_is_asked_for() {
        assert_eq!(size_of::<Name>(), 16);
        let name = |start, length, inode| Name {
            start,
            length,
            inode: InodeNumber(inode),
        };
        let names = vec![name(3, 2, 7), name(0, 3, 5)];
        let mut children = Children {
            directory: ImagePath::top(b"/dir"),
            texts: b"oneab".to_vec(),
            names: names.into_iter(),
        };
        let mut next = || {
            children
                .next()
                .map(|(name, file)| (name, file.path(), file.inode.get()))
        };
        assert_eq!(next(), Some((b"ab".to_vec(), b"/dir/ab".to_vec(), 7)));
        assert_eq!(next(), Some((b"one".to_vec(), b"/dir/one".to_vec(), 5)));
        assert_eq!(next(), None);
    }
}
