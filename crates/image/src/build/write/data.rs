//! Contents on their way from the sources into the image.
//!
//! Small files are read to where they will be written from, so that one call writes many. Large ones
//! are copied by the system itself where it can share blocks instead of copying (btrfs, xfs and
//! others, source and image on the same file system), else through a buffer that stays in the
//! processor's cache. A file must have the size and the times with which it was found.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::super::error::{Error, Result};
use super::super::place::{Map, Piece};
use super::super::scan;
use super::super::sources::Contents;
use super::super::tree::{Id, NONE};
use super::{Image, Stretch};

/// Files up to this size are read to where they are written from.
const SMALL: u64 = 256 << 10;
/// Bytes that are copied at once.
const CHUNK: usize = 256 << 10;
/// Longest path that one call takes.
const LONGEST_PATH: usize = 4000;

/// File systems whose copies share blocks, by their numbers: btrfs, xfs, bcachefs, zfs, ocfs2, nfs,
/// cifs, smb2.
const SHARING: [u64; 8] = [
    0x9123_683E,
    0x5846_5342,
    0xCA45_1A4E,
    0x2FC1_2FC1,
    0x7461_636F,
    0x6969,
    0xFF53_4D42,
    0xFE53_4D42,
];

/// Reads contents for one thread.
pub(super) struct Reader<'a> {
    image: &'a Image<'a>,
    /// The directory of the host that was read last.
    folder: Option<(Id, u16, OwnedFd)>,
    buffer: Vec<u8>,
    /// A file in an archive, one of its segments, and how many bytes the archive holds before that.
    packed: (Id, usize, u64),
    shares_blocks: bool,
}

/// A file to read from: opened for it alone, or an archive's.
enum Opened<'a> {
    Own(File),
    Archive(&'a File, &'a Path),
}

impl<'a> Reader<'a> {
    pub fn new(image: &'a Image<'a>) -> Self {
        let kind = rustix::fs::fstatfs(image.output.file()).map(|answer| answer.f_type);
        let shares_blocks = kind.is_ok_and(|kind| {
            u64::try_from(kind).is_ok_and(|kind| SHARING.contains(&(kind & 0xFFFF_FFFF)))
        });
        Self {
            image,
            folder: None,
            buffer: Vec::new(),
            packed: (NONE, 0, 0),
            shares_blocks,
        }
    }

    /// Reads a file that is no larger than a batch.
    pub fn read_small(&mut self, id: Id, data: &mut Stretch) -> Result<()> {
        let image = self.image;
        let node = image.tree.node(id);
        let opened = self.open(id)?;
        let segments = image.tree.segments.get(&id);
        let map = image.places.maps.get(&id);
        if segments.is_none() && map.is_none() && node.size <= SMALL {
            let length = node.size.next_multiple_of(image.shape.block_size);
            let length = usize::try_from(length).expect("a small file");
            let at = node.place * image.shape.block_size;
            let size = usize::try_from(node.size).expect("a small file");
            let room = data.room(image.output, at, length)?;
            self.read(id, &opened, node.content, &mut room[..size])?;
        } else {
            self.copy_ranges(id, &opened, 0..node.size)?;
        }
        self.check(id, &opened)
    }

    /// Reads what lies in a file's inode.
    pub fn read_inside(&mut self, id: Id) -> Result<Vec<u8>> {
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
        self.copy_ranges(piece.id, &opened, piece.bytes.clone())?;
        self.check(piece.id, &opened)?;
        self.image
            .progress
            .add(0, piece.bytes.end - piece.bytes.start);
        Ok(())
    }

    /// Copies what of a file's data lies in `bytes`.
    fn copy_ranges(&mut self, id: Id, opened: &Opened<'_>, bytes: Range<u64>) -> Result<()> {
        let image = self.image;
        let node = image.tree.node(id);
        let is_packed = matches!(opened, Opened::Archive(..));
        let whole = 0..node.size;
        let segments: &[Range<u64>] = match image.tree.segments.get(&id) {
            Some(segments) => segments,
            None => std::slice::from_ref(&whole),
        };
        let within = touching(segments, &bytes);
        // In an archive the data of a file with holes lie without them.
        let mut packed = match is_packed {
            true => self.packed_before(id, segments, within.start),
            false => 0,
        };
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
        }
        Ok(())
    }

    /// Bytes that an archive holds of a file before one of its segments. A file's pieces are mostly
    /// taken in order, so it goes on from where it was.
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

    /// Copies a range of a file, from `from` in what was opened, to where it is mapped.
    fn copy_range(
        &mut self,
        id: Id,
        opened: &Opened<'_>,
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

    /// Where a byte of a file lies in the image, and how many follow it there.
    fn target(&self, id: Id, byte: u64) -> (u64, u64) {
        let block_size = self.image.shape.block_size;
        let Some(map) = self.image.places.maps.get(&id) else {
            let start = self.image.tree.node(id).place * block_size;
            return (start + byte, u64::MAX - byte);
        };
        find(map, block_size, byte).expect("all data is mapped")
    }

    fn transfer(
        &mut self,
        id: Id,
        opened: &Opened<'_>,
        mut from: u64,
        mut to: u64,
        mut length: u64,
    ) -> Result<()> {
        while length > 0 && self.shares_blocks {
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
                // It cannot do it here; or it failed, which the plain way will tell.
                Err(_) => self.shares_blocks = false,
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(CHUNK, 0);
        while length > 0 {
            let count = usize::try_from(length).map_or(CHUNK, |length| length.min(CHUNK));
            self.read(id, opened, from, &mut buffer[..count])?;
            self.image.output.write(to, &buffer[..count])?;
            let done = count as u64;
            (from, to, length) = (from + done, to + done, length - done);
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Reads exactly these bytes.
    fn read(&self, id: Id, opened: &Opened<'_>, from: u64, into: &mut [u8]) -> Result<()> {
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

    fn changed(&self, id: Id, opened: &Opened<'_>) -> Error {
        Error::Changed {
            path: self.shown(id, opened),
        }
    }

    /// The path of what is read, for messages.
    fn shown(&self, id: Id, opened: &Opened<'_>) -> PathBuf {
        match opened {
            Opened::Own(_) => self.shown_source(id),
            Opened::Archive(_, path) => path.to_path_buf(),
        }
    }

    fn shown_source(&self, id: Id) -> PathBuf {
        match &self.image.contents[usize::from(self.image.tree.node(id).source)] {
            Contents::Directory(source) => source.path.join(self.image.tree.path(id)),
            Contents::File(archive) => archive.path.clone(),
        }
    }

    /// Fails if a file of the host is not what it was when it was found. Archives are checked once,
    /// at the end.
    fn check(&self, id: Id, opened: &Opened<'_>) -> Result<()> {
        let Opened::Own(file) = opened else {
            return Ok(());
        };
        let node = self.image.tree.node(id);
        let stat = rustix::fs::fstat(file)
            .map_err(|errno| Error::source(self.shown_source(id), "read its attributes", errno))?;
        let size_is = u64::try_from(stat.st_size) == Ok(node.size);
        let time = (
            stat.st_mtime,
            u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        );
        let found = self.image.tree.found_times.get(&id);
        let time_is = time == *found.unwrap_or(&(node.seconds, node.nanoseconds));
        if size_is && time_is {
            return Ok(());
        }
        Err(self.changed(id, opened))
    }

    fn open(&mut self, id: Id) -> Result<Opened<'a>> {
        let image = self.image;
        match &image.contents[usize::from(image.tree.node(id).source)] {
            Contents::File(archive) => Ok(Opened::Archive(&archive.file, &archive.path)),
            Contents::Directory(source) => self.open_below(source, id).map(Opened::Own),
        }
    }

    fn open_below(&mut self, source: &scan::Source, id: Id) -> Result<File> {
        let tree = self.image.tree;
        let node = tree.node(id);
        let failed =
            |errno: Errno| Error::source(source.path.join(tree.path(id)), "open it", errno);
        let is_there = matches!(&self.folder, Some((folder, number, _))
            if *folder == node.parent && *number == node.source);
        if !is_there {
            let folder = open_folder(source, &tree.path(node.parent)).map_err(failed)?;
            self.folder = Some((node.parent, node.source, folder));
        }
        let (_, _, folder) = self.folder.as_ref().expect("just made");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(folder, tree.name(id), flags, Mode::empty()).map_err(failed)?;
        Ok(File::from(fd))
    }
}

impl Opened<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Archive(file, _) => file.as_fd(),
        }
    }
}

/// Opens a directory below a source's root, through no symbolic link.
fn open_folder(source: &scan::Source, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if path.as_os_str().is_empty() {
        return rustix::fs::openat(&source.root, c".", flags, Mode::empty());
    }
    if path.as_os_str().len() < LONGEST_PATH {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&source.root, path, flags, Mode::empty(), resolve) {
            // An old system, or one that filters it.
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

/// The segments, which are in order, of which something lies in `bytes`.
fn touching(segments: &[Range<u64>], bytes: &Range<u64>) -> Range<usize> {
    let first = segments.partition_point(|segment| segment.end <= bytes.start);
    let end = segments.partition_point(|segment| segment.start < bytes.end);
    first..end.max(first)
}

/// Where a byte of a mapped file lies, and how many bytes follow it in its run.
fn find(map: &Map, block_size: u64, byte: u64) -> Option<(u64, u64)> {
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
    use super::touching;

    #[test]
    fn a_piece_visits_its_own_segments() {
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
            assert_eq!(touching(&segments, &bytes), within, "{bytes:?}");
        }
        assert_eq!(touching(&[], &(0..9)), 0..0);
    }
}
