//! Writes an image as a tar archive.
//!
//! Files are written in the order of a walk: a directory before its children, names sorted, so the
//! same image gives the same archive. Pax records contain what a plain header cannot: long names,
//! nanoseconds, large numbers, extended attributes (`SCHILY.xattr.`). They contain access control
//! lists twice: in the form of system calls, and as text with numbers (`SCHILY.acl.`), which
//! `tar --acls` reads. Files with holes are written in GNU's sparse form, which GNU tar, bsdtar and
//! the libraries of Go and Python read, or in full ([`ExportOptions::whole_files`]); of more holes
//! than can be read again, the shortest are written as zeroes ([`Pieces`]). A file with
//! several names is written once, then as links. Sockets have no form in tar and are left out and
//! counted. So are the flags of files: bsdtar writes them as `SCHILY.fflags`, but GNU tar warns of
//! each such record, and nothing here would read them back.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use pext4_block::Progress;
use pext4_fs::path::AsVolumePath;
use pext4_fs::{FileType, Refusal, Time};
use pext4_ondisk::acl::{self, Acl};
use pext4_ondisk::xattr::pax;
use pext4_tar::{BLOCK, MAX_SEGMENTS, checksum};

use super::pieces::Pieces;
use crate::error::{FsContext, HostContext, ImageContext, Result};
use crate::flags::has_more_than_storage;
use crate::image_tree::{DataRuns, ImageFile, ImageTree};
use crate::reader::{Reader, check_depth};
use crate::source::{FileMetadata, PIECE};
use crate::unreadable::{OnSkipped, Unreadable};

/// The largest numbers in octal fields of 8 and of 12 bytes.
const MAX_SHORT: u64 = 0o777_7777;
const MAX_LONG: u64 = 0o777_7777_7777;
/// The pax records of access control lists as text, and their attributes.
const LISTS: [(&[u8], &[u8]); 2] = [
    (b"SCHILY.acl.access", acl::ACCESS),
    (b"SCHILY.acl.default", acl::DEFAULT),
];
/// The number of data runs in a sparse header, and in each block that follows it.
const RUNS_IN_HEADER: usize = 4;
/// Bytes of a name in a header.
const NAME_LENGTH: usize = 100;
const RUNS_IN_BLOCK: usize = 21;

/// What was exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// The number of files of all kinds, directories included. Each name of a file counts.
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// The number of sockets, which have no form in tar and are left out.
    pub sockets_skipped: u64,
    /// The number of files with flags of chattr, which are not in the archive.
    pub flags_skipped: u64,
    /// The number of files that could not be read and were left out.
    pub unreadable_skipped: u64,
}

/// How an image is exported.
#[derive(Default)]
pub struct ExportOptions<'o, 's> {
    /// Write the holes of files as zeroes, for readers that do not know GNU's sparse form (as that
    /// of busybox). Zeroes may be a large part of the archive then.
    pub whole_files: bool,
    /// What errors of writing the archive call it: the path of a file. `output` if absent.
    pub name: Option<&'o Path>,
    /// Skip files below the directory that cannot be read in the image, after calling this. Each
    /// file is read twice, to know that before its header is written. Without it such a file is an
    /// error.
    pub on_skipped: Option<&'o mut OnSkipped<'s>>,
    /// Counts what is written, and can stop it.
    pub progress: Arc<Progress>,
}

impl fmt::Debug for ExportOptions<'_, '_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ExportOptions")
            .field("whole_files", &self.whole_files)
            .field("name", &self.name)
            .field("skips_unreadable", &self.on_skipped.is_some())
            .finish()
    }
}

impl Reader {
    /// Writes a directory of the image with everything in it as a tar archive whose names are
    /// relative to it. `pext4 build` makes the same tree again from the archive of the root.
    ///
    /// # Errors
    ///
    /// `AtPath` for a file that cannot be read in the image; `Host` errors of `output`.
    pub fn export(&self, path: impl AsVolumePath, output: &mut dyn Write) -> Result<Exported> {
        self.export_with(path, output, ExportOptions::default())
    }

    /// As [`Self::export`], with options.
    ///
    /// # Errors
    ///
    /// As [`Self::export`]. If unreadable files are skipped: the path does not exist or cannot be
    /// read itself; `Host` errors of `output`; a file that can be read the first time and not the
    /// second.
    pub fn export_with(
        &self,
        path: impl AsVolumePath,
        output: &mut dyn Write,
        options: ExportOptions<'_, '_>,
    ) -> Result<Exported> {
        let exported = self.export_to(path.as_volume_path(), output, options);
        exported.in_image(self.file())
    }

    fn export_to(
        &self,
        path: &[u8],
        output: &mut dyn Write,
        options: ExportOptions<'_, '_>,
    ) -> Result<Exported> {
        let mut exporter = Exporter {
            image: self.tree(),
            progress: options.progress,
            reader: self,
            output,
            name: options.name.unwrap_or(Path::new("output")),
            whole_files: options.whole_files,
            unreadable: Unreadable::new(options.on_skipped),
            links: HashMap::new(),
            piece: vec![0; PIECE],
            exported: Exported::default(),
        };
        let top = self.find(path)?;
        if exporter.image.attributes(&top)?.file_type != FileType::Directory {
            return Err(pext4_fs::Error::from(Refusal::NotADirectory)).with_path(path);
        }
        exporter.write_tree(&top)?;
        // Two blocks of zeroes end an archive.
        exporter.put(&[0; 2 * BLOCK])?;
        exporter
            .output
            .flush()
            .with_host_file(exporter.name, "write it")?;
        Ok(Exported {
            unreadable_skipped: exporter.unreadable.skipped,
            ..exporter.exported
        })
    }
}

struct Exporter<'r, 'l> {
    image: ImageTree<'r>,
    progress: Arc<Progress>,
    reader: &'r Reader,
    output: &'r mut dyn Write,
    /// What errors call the output.
    name: &'r Path,
    /// Holes are written as zeroes.
    whole_files: bool,
    unreadable: Unreadable<'r, 'l>,
    /// Files with several names, by the first of them.
    links: HashMap<(u64, u64), ImageFile>,
    /// The buffer for data.
    piece: Vec<u8>,
    exported: Exported,
}

/// A header that is being built, and its pax records.
struct Header {
    bytes: [u8; BLOCK],
    records: Vec<u8>,
}

impl Exporter<'_, '_> {
    fn write_tree(&mut self, top: &ImageFile) -> Result<()> {
        // What was asked for is not skipped.
        let metadata = self.readable(top)?;
        self.write_one(b"./", top, &metadata)?;
        let children = self.image.readable_children(top, &mut self.unreadable)?;
        // Directories on the way from the top, and what is still to be written of each.
        let mut open = vec![children];
        while let Some(children) = open.last_mut() {
            let Some((_, file)) = children.next() else {
                open.pop();
                continue;
            };
            let mut name = file.path_below_top();
            let metadata = self.readable(&file);
            let Some(metadata) = self.unreadable.or_skip(metadata)? else {
                continue;
            };
            let is_directory = metadata.kind == FileType::Directory;
            if is_directory {
                name.push(b'/');
            }
            self.write_one(&name, &file, &metadata)?;
            if is_directory {
                check_depth(open.len() as u32, &file)?;
                let children = self.image.readable_children(&file, &mut self.unreadable)?;
                open.push(children);
            }
        }
        Ok(())
    }

    /// The metadata of a file, as far as it is written. If unreadable files may be skipped, an
    /// error if its content cannot be read.
    fn readable(&self, file: &ImageFile) -> Result<FileMetadata> {
        let mut metadata = self.image.summary(file)?;
        if metadata
            .identity
            .is_some_and(|key| self.links.contains_key(&key))
        {
            return Ok(metadata);
        }
        self.image.complete(file, &mut metadata)?;
        if self.unreadable.can_skip() && metadata.kind == FileType::Regular {
            self.image.try_content(file, &metadata)?;
        }
        Ok(metadata)
    }

    /// The name under which the file is in the archive, if it is.
    fn first_name(&self, metadata: &FileMetadata) -> Option<Vec<u8>> {
        let key = metadata.identity?;
        self.links.get(&key).map(ImageFile::path_below_top)
    }

    fn write_one(&mut self, name: &[u8], file: &ImageFile, metadata: &FileMetadata) -> Result<()> {
        if metadata.kind == FileType::Socket {
            self.exported.sockets_skipped += 1;
            return Ok(());
        }
        self.exported.files += 1;
        self.progress.count(1, 0)?;
        let mut header = Header::new(name, metadata);
        if let Some(first) = self.first_name(metadata) {
            header.set_link(b'1', &first);
            return self.put_header(header, name);
        }
        if let Some(key) = metadata.identity {
            self.links.insert(key, file.clone());
        }
        header.add_attributes(metadata);
        if metadata.flags.is_some_and(has_more_than_storage) {
            self.exported.flags_skipped += 1;
        }
        match metadata.kind {
            FileType::Regular => return self.write_file(header, name, file, metadata),
            FileType::Directory => header.bytes[156] = b'5',
            FileType::Symlink => header.set_link(b'2', &metadata.target),
            FileType::Fifo => header.bytes[156] = b'6',
            _ => {
                let is_block = metadata.kind == FileType::BlockDevice;
                header.bytes[156] = if is_block { b'4' } else { b'3' };
                header.set_number(329, 8, metadata.device.major.into());
                header.set_number(337, 8, metadata.device.minor.into());
            }
        }
        self.put_header(header, name)
    }

    fn write_file(
        &mut self,
        mut header: Header,
        name: &[u8],
        file: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<()> {
        let runs = self.runs(file, metadata.size)?;
        let stored: u64 = runs.iter().map(|(start, end)| end - start).sum();
        self.exported.bytes += stored;
        let is_whole = stored == metadata.size;
        header.bytes[156] = if is_whole { b'0' } else { b'S' };
        header.set_number(124, 12, stored);
        let mut map = Vec::new();
        if !is_whole {
            map = header.set_sparse(&runs, metadata.size);
        }
        self.put_header(header, name)?;
        self.put(&map)?;
        for (start, end) in runs {
            self.put_data(file, start, end)?;
        }
        self.pad(stored)
    }

    /// The runs of a file that are written. If the file ends in a hole, the last run is empty.
    fn runs(&self, file: &ImageFile, size: u64) -> Result<Vec<(u64, u64)>> {
        if self.whole_files {
            return Ok(vec![(0, size)]);
        }
        // One is for the empty run.
        let mut pieces = Pieces::new(MAX_SEGMENTS - 1);
        for run in DataRuns::new(&self.image, file) {
            self.progress.check()?;
            let (start, end) = run?;
            let end = end.min(size);
            if start >= end {
                break;
            }
            pieces.add(start, end);
        }
        let (mut runs, filled) = pieces.finish();
        self.image.take_holes(file, filled)?;
        if runs.last().is_none_or(|&(_, end)| end < size) && size > 0 {
            runs.push((size, size));
        }
        Ok(runs)
    }

    fn put_data(&mut self, file: &ImageFile, start: u64, end: u64) -> Result<()> {
        let mut at = start;
        while at < end {
            let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = &mut self.piece[..length];
            let read = self.reader.volume().read(file.inode, at, piece);
            let read = read.with_file(file)?;
            if read == 0 {
                // The file is shorter than its header says. Pad it, since the archive must stay
                // aligned.
                piece.fill(0);
            }
            let read = if read == 0 { length } else { read };
            put(self.output, self.name, &self.piece[..read])?;
            self.progress.count(0, read as u64)?;
            at += read as u64;
        }
        Ok(())
    }

    fn put_header(&mut self, mut header: Header, name: &[u8]) -> Result<()> {
        if !header.records.is_empty() {
            let records = std::mem::take(&mut header.records);
            let mut extended = Header::blank();
            extended.bytes[156] = b'x';
            // The name of an extended header has no meaning.
            extended.set_text(0, NAME_LENGTH, without_slash(name));
            extended.set_number(124, 12, records.len() as u64);
            let bytes = extended.finish();
            self.put(&bytes)?;
            self.put(&records)?;
            self.pad(records.len() as u64)?;
        }
        let bytes = header.finish();
        self.put(&bytes)
    }

    fn pad(&mut self, length: u64) -> Result<()> {
        let over = usize::try_from(length % BLOCK as u64).expect("below a block");
        match over {
            0 => Ok(()),
            over => self.put(&[0; BLOCK][over..]),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        put(self.output, self.name, bytes)
    }
}

/// As much of a name as a header holds, without a slash at its end: some readers take an entry
/// whose name ends so for a directory, whatever its type, and expect no data.
fn without_slash(name: &[u8]) -> &[u8] {
    let mut start = &name[..name.len().min(NAME_LENGTH)];
    while let Some(shorter) = start.strip_suffix(b"/") {
        start = shorter;
    }
    start
}

fn put(output: &mut dyn Write, name: &Path, bytes: &[u8]) -> Result<()> {
    output.write_all(bytes).with_host_file(name, "write it")
}

impl Header {
    fn blank() -> Self {
        let mut header = Self {
            bytes: [0; BLOCK],
            records: Vec::new(),
        };
        header.set_number(100, 8, 0o644);
        for (at, length) in [(108, 8), (116, 8), (124, 12), (136, 12)] {
            header.set_number(at, length, 0);
        }
        header.bytes[257..265].copy_from_slice(b"ustar\x0000");
        header
    }

    fn new(name: &[u8], metadata: &FileMetadata) -> Self {
        let mut header = Self::blank();
        if name.len() > NAME_LENGTH || !name.is_ascii() {
            header.record(b"path", name);
        }
        let name = match metadata.kind {
            FileType::Directory => name,
            _ => without_slash(name),
        };
        header.set_text(0, NAME_LENGTH, name);
        header.set_number(100, 8, metadata.permissions.into());
        header.set_or_record(108, 8, b"uid", metadata.uid.into());
        header.set_or_record(116, 8, b"gid", metadata.gid.into());
        header.set_time(metadata.modified);
        header
    }

    /// Adds what only the first name of a file has.
    fn add_attributes(&mut self, metadata: &FileMetadata) {
        self.record(b"atime", decimal(metadata.accessed).as_bytes());
        for (name, value) in &metadata.xattrs {
            let system = if acl::is_list(name) {
                acl::stored_to_call(value).ok()
            } else {
                None
            };
            self.record(&pax::key(name), system.as_ref().unwrap_or(value));
        }
        for (key, attribute) in LISTS {
            let stored = metadata.xattrs.iter().find(|(name, _)| name == attribute);
            if let Some((_, stored)) = stored
                && let Some(text) = list_text(attribute, stored, metadata)
            {
                self.record(key, text.as_bytes());
            }
        }
    }

    fn set_time(&mut self, time: Time) {
        let plain = u64::try_from(time.seconds).ok();
        let plain = plain.filter(|seconds| *seconds <= MAX_LONG && time.nanoseconds == 0);
        if plain.is_none() {
            self.record(b"mtime", decimal(time).as_bytes());
        }
        let rounded = u64::try_from(time.seconds).unwrap_or(0).min(MAX_LONG);
        self.set_number(136, 12, rounded);
    }

    fn set_link(&mut self, kind: u8, target: &[u8]) {
        self.bytes[156] = kind;
        if target.len() > 100 || !target.is_ascii() {
            self.record(b"linkpath", target);
        }
        self.set_text(157, 100, target);
    }

    /// Makes this a GNU sparse header with the first runs. Returns the blocks with the remaining
    /// runs, which follow the header.
    fn set_sparse(&mut self, runs: &[(u64, u64)], size: u64) -> Vec<u8> {
        self.bytes[257..265].copy_from_slice(b"ustar  \x00");
        self.bytes[345..].fill(0);
        let (here, rest) = runs.split_at(runs.len().min(RUNS_IN_HEADER));
        for (index, run) in here.iter().enumerate() {
            put_run(&mut self.bytes[386 + 24 * index..], *run);
        }
        self.bytes[482] = u8::from(!rest.is_empty());
        self.set_number(483, 12, size);
        let mut blocks = Vec::new();
        let count = rest.len().div_ceil(RUNS_IN_BLOCK);
        for (number, part) in rest.chunks(RUNS_IN_BLOCK).enumerate() {
            let mut block = [0; BLOCK];
            for (index, run) in part.iter().enumerate() {
                put_run(&mut block[24 * index..], *run);
            }
            block[504] = u8::from(number + 1 < count);
            blocks.extend_from_slice(&block);
        }
        blocks
    }

    fn set_text(&mut self, at: usize, room: usize, text: &[u8]) {
        let length = text.len().min(room);
        self.bytes[at..at + length].copy_from_slice(&text[..length]);
    }

    fn set_or_record(&mut self, at: usize, length: usize, key: &[u8], value: u64) {
        if value > MAX_SHORT {
            self.record(key, value.to_string().as_bytes());
        }
        self.set_number(at, length, value.min(MAX_SHORT));
    }

    fn set_number(&mut self, at: usize, length: usize, value: u64) {
        put_number(&mut self.bytes[at..at + length], value);
    }

    /// Adds a pax record. Its length includes the length field itself.
    fn record(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + digits(length) {
            length = rest + digits(length);
        }
        self.records
            .extend_from_slice(length.to_string().as_bytes());
        for part in [b" ", key, b"=", value, b"\n"] {
            self.records.extend_from_slice(part);
        }
    }

    fn finish(mut self) -> [u8; BLOCK] {
        let sum = checksum(&self.bytes);
        let text = format!("{sum:06o}\0 ");
        self.bytes[148..156].copy_from_slice(text.as_bytes());
        self.bytes
    }
}

/// The text of a stored list; `None` if the text would mean something else: for an invalid list, or
/// one that the permission bits contradict.
fn list_text(attribute: &[u8], stored: &[u8], metadata: &FileMetadata) -> Option<String> {
    let list = Acl::from_disk(stored)?;
    let text = acl::text::text(&list);
    let is_whole = matches!(acl::text::parse(text.as_bytes()), Ok(Some(again)) if again == list);
    let is_in_place = match attribute == acl::ACCESS {
        true => {
            metadata.kind != FileType::Symlink && metadata.permissions & 0o777 == list.mode_bits()
        }
        false => metadata.kind == FileType::Directory,
    };
    (is_whole && is_in_place).then_some(text)
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}

fn put_run(into: &mut [u8], (start, end): (u64, u64)) {
    put_number(&mut into[..12], start);
    put_number(&mut into[12..24], end - start);
}

/// Writes octal digits and a NUL, or GNU's base-256 form if the field is too short for that.
fn put_number(field: &mut [u8], value: u64) {
    let width = field.len() - 1;
    let octal = format!("{value:0width$o}");
    if octal.len() == width {
        field[..width].copy_from_slice(octal.as_bytes());
        field[width] = 0;
        return;
    }
    field.fill(0);
    field[0] = 0x80;
    let start = field.len() - 8;
    field[start..].copy_from_slice(&value.to_be_bytes());
}

/// Seconds in the form of pax, with nanoseconds if there are any.
fn decimal(time: Time) -> String {
    let Time {
        seconds,
        nanoseconds,
    } = time;
    match (seconds, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (0.., _) => format!("{seconds}.{nanoseconds:09}"),
        // Nanoseconds count forward: -1 s and 0.25 s is -0.75 s.
        _ => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::{Header, Time, decimal, put_number};

    #[test]
    fn records_count_their_own_length() {
        let mut header = Header::blank();
        header.record(b"k", b"12345");
        assert_eq!(header.records, b"11 k=12345\n");
        header.records.clear();
        header.record(b"k", &[b'x'; 94]);
        assert!(header.records.starts_with(b"101 k="));
        assert_eq!(header.records.len(), 101);
    }

    #[test]
    fn times_before_1970_count_forward() {
        let time = |seconds, nanoseconds| {
            decimal(Time {
                seconds,
                nanoseconds,
            })
        };
        assert_eq!(time(5, 0), "5");
        assert_eq!(time(5, 7), "5.000000007");
        assert_eq!(time(-1, 250_000_000), "-0.750000000");
        assert_eq!(time(-3, 0), "-3");
    }

    #[test]
    fn large_numbers_are_in_base_256() {
        let mut field = [0; 12];
        put_number(&mut field, 8);
        assert_eq!(&field, b"00000000010\0");
        put_number(&mut field, 1 << 33);
        assert_eq!(field[0], 0x80);
        assert_eq!(field[4..], (1u64 << 33).to_be_bytes());
    }
}
