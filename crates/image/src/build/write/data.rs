//! Copies contents from the sources to the image.
//!
//! Small files are read directly into the write buffer, so that one call writes many. For large
//! files the system shares blocks instead of copying, if it can (btrfs, xfs and others, with source
//! and image on the same file system, and the data at multiples of a block in both, which it mostly
//! is not in an archive); otherwise they are copied through a buffer that stays in the processor's
//! cache, which takes half the time of a copy by the system. Copying fails if size or mtime of a
//! file differ from when it was found.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::super::error::{Error, Result};
use super::super::place::{BlockMap, Piece};
use super::super::scan;
use super::super::sources::Contents;
use super::super::tree::{Id, NONE};
use super::{Image, WriteBuffer};

/// Files up to this size in bytes are read into the write buffer.
const MAX_SMALL_BYTES: u64 = 256 << 10;
/// Size of the copy buffer in bytes.
const COPY_BYTES: usize = 256 << 10;
/// Maximum length of a path for one `openat2` call, in bytes.
const MAX_PATH_BYTES: usize = 4000;

/// File systems whose files can share blocks, by their magic numbers: btrfs, xfs, bcachefs, zfs,
/// ocfs2.
const REFLINK_FILE_SYSTEMS: [u64; 5] = [
    0x9123_683E,
    0x5846_5342,
    0xCA45_1A4E,
    0x2FC1_2FC1,
    0x7461_636F,
];
/// File systems whose server copies, at any offset: nfs, cifs, smb2.
const SERVER_COPY_FILE_SYSTEMS: [u64; 3] = [0x6969, 0xFF53_4D42, 0xFE53_4D42];

/// Reads contents for one thread.
pub(super) struct ContentReader<'a> {
    image: &'a Image<'a>,
    /// The most recently used host directory.
    folder: Option<(DirectoryKey, OwnedFd)>,
    buffer: Vec<u8>,
    /// The state of `packed_before`: a file in an archive, the index of a segment, and how many
    /// bytes the archive contains before that segment.
    packed: (Id, usize, u64),
    /// What offsets are multiples of, in bytes, where the system shares blocks instead of copying;
    /// `None` if it cannot.
    reflink_block: Option<u64>,
}

/// A host directory: the parent of its files in the image, their source, and its path there if it
/// is another than in the image.
type DirectoryKey = (Id, u16, Option<Arc<Path>>);

/// A file to read from: a file of the host, or the archive that contains it.
enum OpenFile<'a> {
    Own(File),
    Archive(&'a File, &'a Path),
}

impl<'a> ContentReader<'a> {
    pub fn new(image: &'a Image<'a>) -> Self {
        let reflink_block = reflink_block(image.output.file());
        Self {
            image,
            folder: None,
            buffer: Vec::new(),
            packed: (NONE, 0, 0),
            reflink_block,
        }
    }

    /// Reads a file that is not copied in pieces.
    pub fn read_small(&mut self, id: Id, data: &mut WriteBuffer) -> Result<()> {
        let image = self.image;
        let node = image.tree.node(id);
        let opened = self.open(id)?;
        let segments = image.tree.segments.get(&id);
        let map = image.placement.maps.get(&id);
        if segments.is_none() && map.is_none() && node.size <= MAX_SMALL_BYTES {
            let length = node.size.next_multiple_of(image.shape.block_size);
            let length = usize::try_from(length).expect("a small file");
            let at = node.first_block * image.shape.block_size;
            let size = usize::try_from(node.size).expect("a small file");
            let room = data.room(image.output, at, length)?;
            self.read(id, &opened, node.content, &mut room[..size])?;
        } else {
            self.copy_ranges(id, &opened, 0..node.size)?;
        }
        self.check(id, &opened)
    }

    /// Reads the content of a file that is stored in its inode.
    pub fn read_inline(&mut self, id: Id) -> Result<Vec<u8>> {
        let node = self.image.tree.node(id);
        let mut content = vec![0; usize::try_from(node.size).expect("less than an inode")];
        if !content.is_empty() {
            let opened = self.open(id)?;
            self.read(id, &opened, node.content, &mut content)?;
            self.check(id, &opened)?;
        }
        Ok(content)
    }

    /// Copies a piece of a large file.
    pub fn copy(&mut self, piece: &Piece) -> Result<()> {
        let opened = self.open(piece.id)?;
        let copied = self.copy_ranges(piece.id, &opened, piece.bytes.clone())?;
        self.check(piece.id, &opened)?;
        self.image.progress.add(0, copied);
        Ok(())
    }

    /// Copies the data of a file in the range `bytes`. Returns the number of copied bytes.
    fn copy_ranges(&mut self, id: Id, opened: &OpenFile<'_>, bytes: Range<u64>) -> Result<u64> {
        let image = self.image;
        let node = image.tree.node(id);
        let is_packed = matches!(opened, OpenFile::Archive(..));
        let whole = 0..node.size;
        let segments: &[Range<u64>] = match image.tree.segments.get(&id) {
            Some(segments) => segments,
            None => std::slice::from_ref(&whole),
        };
        let within = overlapping(segments, &bytes);
        // An archive stores the data of a file without its holes.
        let mut packed = match is_packed {
            true => self.packed_before(id, segments, within.start),
            false => 0,
        };
        let mut copied = 0;
        for segment in &segments[within] {
            let start = segment.start.max(bytes.start);
            let end = segment.end.min(bytes.end);
            let from = if is_packed {
                node.content + packed + (start - segment.start)
            } else {
                start
            };
            self.copy_range(id, opened, from, start..end)?;
            packed += segment.end - segment.start;
            copied += end - start;
        }
        Ok(copied)
    }

    /// The number of bytes that an archive stores of a file before one of its segments. Pieces are
    /// mostly copied in order, so it continues from the previous result.
    fn packed_before(&mut self, id: Id, segments: &[Range<u64>], segment: usize) -> u64 {
        let (at, before) = match self.packed {
            (of, at, before) if of == id && at <= segment => (at, before),
            _ => (0, 0),
        };
        let lengths = segments[at..segment].iter();
        let sum = before + lengths.map(|range| range.end - range.start).sum::<u64>();
        self.packed = (id, segment, sum);
        sum
    }

    /// Copies a range of a file from offset `from` of `opened` to the mapped blocks.
    fn copy_range(
        &mut self,
        id: Id,
        opened: &OpenFile<'_>,
        from: u64,
        bytes: Range<u64>,
    ) -> Result<()> {
        let mut at = bytes.start;
        while at < bytes.end {
            let (target, length) = self.target(id, at);
            let length = length.min(bytes.end - at);
            self.transfer(id, opened, from + (at - bytes.start), target, length)?;
            at += length;
        }
        Ok(())
    }

    /// The offset of a byte of a file in the image, and how many bytes of the file follow
    /// contiguously.
    fn target(&self, id: Id, byte: u64) -> (u64, u64) {
        let block_size = self.image.shape.block_size;
        let Some(map) = self.image.placement.maps.get(&id) else {
            let start = self.image.tree.node(id).first_block * block_size;
            return (start + byte, u64::MAX - byte);
        };
        find(map, block_size, byte).expect("all data is mapped")
    }

    fn transfer(
        &mut self,
        id: Id,
        opened: &OpenFile<'_>,
        mut from: u64,
        mut to: u64,
        mut length: u64,
    ) -> Result<()> {
        while length > 0 && self.can_share(from, to) {
            let (mut source, mut target) = (from, to);
            let count = usize::try_from(length).unwrap_or(usize::MAX);
            let output = self.image.output.file();
            match rustix::fs::copy_file_range(
                opened.fd(),
                Some(&mut source),
                output,
                Some(&mut target),
                count,
            ) {
                Ok(0) => return Err(self.changed(id, opened)),
                Ok(copied) => {
                    let copied = copied as u64;
                    (from, to, length) = (from + copied, to + copied, length - copied);
                }
                Err(Errno::INTR) => {}
                // Not supported here, or failed. In both cases the plain copy reports errors.
                Err(_) => self.reflink_block = None,
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(COPY_BYTES, 0);
        while length > 0 {
            let count = usize::try_from(length).map_or(COPY_BYTES, |length| length.min(COPY_BYTES));
            self.read(id, opened, from, &mut buffer[..count])?;
            self.image.output.write(to, &buffer[..count])?;
            let done = count as u64;
            (from, to, length) = (from + done, to + done, length - done);
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Whether the system may share the blocks that begin at these offsets in source and image.
    fn can_share(&self, from: u64, to: u64) -> bool {
        self.reflink_block
            .is_some_and(|block| from.is_multiple_of(block) && to.is_multiple_of(block))
    }

    /// Reads exactly these bytes.
    fn read(&self, id: Id, opened: &OpenFile<'_>, from: u64, into: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let at = from + filled as u64;
            match rustix::io::pread(opened.fd(), &mut into[filled..], at) {
                Ok(0) => return Err(self.changed(id, opened)),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error::source(self.shown(id, opened), "read it", errno));
                }
            }
        }
        Ok(())
    }

    fn changed(&self, id: Id, opened: &OpenFile<'_>) -> Error {
        Error::Changed {
            path: self.shown(id, opened),
        }
    }

    /// The path of the source file or archive, for messages.
    fn shown(&self, id: Id, opened: &OpenFile<'_>) -> PathBuf {
        match opened {
            OpenFile::Own(_) => self.shown_source(id),
            OpenFile::Archive(_, path) => path.to_path_buf(),
        }
    }

    fn shown_source(&self, id: Id) -> PathBuf {
        match &self.image.contents[usize::from(self.image.tree.node(id).source)] {
            Contents::Directory(source) => source.path.join(self.image.tree.source_path(id)),
            Contents::File(archive) => archive.path.clone(),
        }
    }

    /// Fails if a host file was modified after it was found. Archives are checked once, at the end.
    fn check(&self, id: Id, opened: &OpenFile<'_>) -> Result<()> {
        let OpenFile::Own(file) = opened else {
            return Ok(());
        };
        let node = self.image.tree.node(id);
        let stat = rustix::fs::fstat(file)
            .map_err(|errno| Error::source(self.shown_source(id), "read its attributes", errno))?;
        let is_same_size = u64::try_from(stat.st_size) == Ok(node.size);
        let time = (
            stat.st_mtime,
            u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        );
        let found = self.image.tree.original_times.get(id);
        let is_same_time = time == found.unwrap_or((node.seconds, node.nanoseconds));
        if is_same_size && is_same_time {
            return Ok(());
        }
        Err(self.changed(id, opened))
    }

    fn open(&mut self, id: Id) -> Result<OpenFile<'a>> {
        let image = self.image;
        match &image.contents[usize::from(image.tree.node(id).source)] {
            Contents::File(archive) => Ok(OpenFile::Archive(&archive.file, &archive.path)),
            Contents::Directory(source) => self.open_below(source, id).map(OpenFile::Own),
        }
    }

    fn open_below(&mut self, source: &scan::Source, id: Id) -> Result<File> {
        let tree = self.image.tree;
        let node = tree.node(id);
        let failed =
            |errno: Errno| Error::source(source.path.join(tree.source_path(id)), "open it", errno);
        let own = tree.source_directories.get(&id).cloned();
        let key = (node.parent, node.source, own);
        if self.folder.as_ref().is_none_or(|(open, _)| *open != key) {
            let path = match &key.2 {
                Some(path) => path.to_path_buf(),
                None => tree.path(node.parent),
            };
            self.folder = Some((key, open_folder(source, &path).map_err(failed)?));
        }
        let (_, folder) = self.folder.as_ref().expect("just made");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(folder, tree.name(id), flags, Mode::empty()).map_err(failed)?;
        Ok(File::from(fd))
    }
}

impl OpenFile<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Archive(file, _) => file.as_fd(),
        }
    }
}

/// What offsets in `image` are multiples of, in bytes, where the system can share blocks instead of
/// copying.
fn reflink_block(image: &File) -> Option<u64> {
    let answer = rustix::fs::fstatfs(image).ok()?;
    let kind = u64::try_from(answer.f_type).ok()? & 0xFFFF_FFFF;
    if SERVER_COPY_FILE_SYSTEMS.contains(&kind) {
        return Some(1);
    }
    let block = u64::try_from(answer.f_bsize).ok()?;
    (REFLINK_FILE_SYSTEMS.contains(&kind) && block > 0).then_some(block)
}

/// Opens a directory below a source's root without following symbolic links.
fn open_folder(source: &scan::Source, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if path.as_os_str().is_empty() {
        return rustix::fs::openat(&source.root, c".", flags, Mode::empty());
    }
    if path.as_os_str().len() < MAX_PATH_BYTES {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&source.root, path, flags, Mode::empty(), resolve) {
            // An old kernel, or a seccomp filter.
            Err(Errno::NOSYS | Errno::PERM) => {}
            answer => return answer,
        }
    }
    let mut at = rustix::fs::openat(&source.root, c".", flags, Mode::empty())?;
    for name in path {
        at = rustix::fs::openat(&at, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(at)
}

/// The indexes of the segments that overlap `bytes`. The segments are sorted.
fn overlapping(segments: &[Range<u64>], bytes: &Range<u64>) -> Range<usize> {
    let first = segments.partition_point(|segment| segment.end <= bytes.start);
    let end = segments.partition_point(|segment| segment.start < bytes.end);
    first..end.max(first)
}

/// The offset of a byte of a mapped file, and how many bytes follow in its run.
fn find(map: &BlockMap, block_size: u64, byte: u64) -> Option<(u64, u64)> {
    let block = byte / block_size;
    let next = map
        .runs
        .partition_point(|run| u64::from(run.logical.get()) <= block);
    let run = map.runs.get(next.checked_sub(1)?)?;
    let offset = byte - u64::from(run.logical.get()) * block_size;
    let length = u64::from(run.length) * block_size;
    (offset < length).then(|| (run.start.get() * block_size + offset, length - offset))
}

#[cfg(test)]
mod tests {
    use super::overlapping;

    #[test]
    fn a_piece_overlaps_its_own_segments() {
        let segments = [0..10, 20..30, 40..50];
        for (bytes, within) in [
            (0..50, 0..3),
            (0..10, 0..1),
            (10..20, 1..1),
            (9..21, 0..2),
            (25..26, 1..2),
            (30..60, 2..3),
            (50..60, 3..3),
        ] {
            assert_eq!(overlapping(&segments, &bytes), within, "{bytes:?}");
        }
        assert_eq!(overlapping(&[], &(0..9)), 0..0);
    }
}
