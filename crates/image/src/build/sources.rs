//! The sources of an image, and how each kind is read into the tree.

mod layers;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pext4_block::{Progress, loops};
use pext4_ondisk::shown::Shown;

use super::OnSkipped;
use super::archive::apply::ArchiveWriter;
use super::archive::input::{Compression, FileInput, MAX_PADDING_BYTES, with_stream};
use super::archive::spool::Spool;
use super::archive::{Limits, Reader, Record};
use super::directory::DirectoryWriter;
use super::error::{Error, Result};
use super::oci;
use super::output::{Output, scratch};
use super::packed_image::{self, Given, PackedImage};
use super::rules::Rules;
use super::scan;
use super::tree::Tree;
use layers::LayerReader;

/// A source of an image.
#[non_exhaustive]
pub enum Source {
    /// The contents of a directory of the host. The directory itself becomes the root.
    Directory(PathBuf),
    /// A tar archive in a file: plain, or compressed by gzip or zstd.
    Archive(PathBuf),
    /// A container image in an OCI layout.
    OciLayout(PathBuf),
    /// A tar archive from a stream, with the same compressions. The name is for messages.
    Stream(String, Box<dyn Read + Send>),
    /// A source whose kind nobody has stated. It is refused if it turns out to be a container image
    /// whose files would become those of the image.
    Detected(Box<Source>),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => formatter.debug_tuple("Directory").field(path).finish(),
            Self::Archive(path) => formatter.debug_tuple("Archive").field(path).finish(),
            Self::OciLayout(path) => formatter.debug_tuple("OciLayout").field(path).finish(),
            Self::Stream(name, _) => formatter.debug_tuple("Stream").field(name).finish(),
            Self::Detected(source) => formatter.debug_tuple("Detected").field(source).finish(),
        }
    }
}

impl Source {
    /// The source at a path, according to the file type: an OCI layout, another directory, or an
    /// archive. Directories and archives are [`Source::Detected`].
    ///
    /// # Errors
    ///
    /// The path does not exist or is not accessible.
    pub fn at(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(if !metadata.is_dir() {
            Self::Archive(path.to_owned()).detected()
        } else if oci::is_layout(path) {
            Self::OciLayout(path.to_owned())
        } else {
            Self::Directory(path.to_owned()).detected()
        })
    }

    /// Whether the archive of this source is the file at `path`, under whatever name.
    pub(super) fn is_file_at(&self, path: &Path) -> bool {
        match self {
            Self::Archive(archive) => loops::are_same(archive, path),
            Self::Detected(source) => source.is_file_at(path),
            Self::Directory(_) | Self::OciLayout(_) | Self::Stream(..) => false,
        }
    }

    /// The same source, of a kind that nobody has stated.
    #[must_use]
    pub fn detected(self) -> Self {
        Self::Detected(Box::new(self))
    }
}

/// What was read of all sources.
pub(super) struct Everything {
    pub tree: Tree,
    pub contents: Vec<Contents>,
    /// Number of names that were skipped because they could not be read.
    pub skipped: u64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The file or directory from which contents are read after planning.
pub(super) enum Contents {
    /// Files below an open directory.
    Directory(scan::Source),
    /// Ranges of a file.
    File(Archive),
}

/// A file that contains contents: an archive or the spool.
pub(super) struct Archive {
    pub file: File,
    pub path: PathBuf,
    /// Its size and mtime when it was opened; `None` for the spool.
    stamp: Option<Stamp>,
}

type Stamp = (u64, i64, i64);

fn stamp(file: &File) -> io::Result<Stamp> {
    let metadata = file.metadata()?;
    Ok((metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

impl Archive {
    fn open(file: File, path: &Path) -> Result<Self> {
        let stamp = stamp(&file).map_err(|cause| Error::source(path, "find its size", cause))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            stamp: Some(stamp),
        })
    }

    /// Fails if the file was modified since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        match self.stamp {
            Some(then) if stamp(&self.file).ok() != Some(then) => Err(Error::Changed {
                path: self.path.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// A named pipe, opened by the first read. `open` waits for a writer, and no request to stop ends
/// that: so the thread that reads the stream opens it, for which nobody waits after such a request.
struct Pipe {
    path: PathBuf,
    file: Option<File>,
}

impl Pipe {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path)?),
        };
        file.read(into)
    }
}

/// Options of reading.
pub(super) struct Options<'a> {
    pub rules: &'a Rules,
    pub limits: Limits,
    pub threads: usize,
    pub skip_unreadable: bool,
    pub one_file_system: bool,
    pub on_skipped: Option<&'a OnSkipped>,
    pub selector: oci::ImageSelector<'a>,
    pub progress: &'a Progress,
}

/// Reads sources into a tree.
pub(super) struct Sources<'a> {
    options: Options<'a>,
    output: &'a Output,
    pub tree: Tree,
    /// Indexed by `Node::source`.
    pub contents: Vec<Contents>,
    spool: Option<Spool>,
    /// Number of names that were skipped because they could not be read.
    pub skipped: u64,
    /// Notes for the user.
    notes: Vec<String>,
    /// The next source number. Each layer has its own, since each is laid over the previous one.
    next_source: u16,
}

impl<'a> Sources<'a> {
    pub fn new(options: Options<'a>, output: &'a Output, tree: Tree) -> Self {
        Self {
            options,
            output,
            tree,
            contents: Vec::new(),
            spool: None,
            skipped: 0,
            notes: Vec::new(),
            next_source: 0,
        }
    }

    /// Lays a source over the previous ones.
    pub fn add(&mut self, source: Source) -> Result<()> {
        match source {
            Source::Detected(source) => self.add_of_kind(*source, true),
            source => self.add_of_kind(source, false),
        }
    }

    fn add_of_kind(&mut self, source: Source, is_detected: bool) -> Result<()> {
        let packed = is_detected.then(PackedImage::default);
        match source {
            Source::Directory(path) => {
                if is_detected {
                    packed_image::check_folder(&path)?;
                }
                self.add_directory(&path)
            }
            Source::Archive(path) => self.add_archive(&path, packed),
            Source::OciLayout(path) => self.add_layers(&path),
            Source::Stream(name, reader) => {
                self.add_stream(Given::Stream(Path::new(&name)), reader, packed)
            }
            Source::Detected(source) => self.add_of_kind(*source, is_detected),
        }
    }

    /// Returns what was read.
    pub fn finish(self) -> Everything {
        Everything {
            tree: self.tree,
            contents: self.contents,
            skipped: self.skipped,
            notes: self.notes,
        }
    }

    /// Notes that the archive of this name has no end mark, if that is so.
    fn note_end(&mut self, path: &Path, has_mark: bool) {
        if !has_mark {
            let path = Shown(path.as_os_str().as_bytes());
            self.notes.push(format!(
                "{path}: it ends without an end mark; it may have been cut short"
            ));
        }
    }

    fn next_number(&mut self) -> Result<u16> {
        let number = self.next_source;
        self.next_source = number
            .checked_add(1)
            .ok_or_else(|| Error::impossible("more sources than can be counted"))?;
        Ok(number)
    }

    fn add_directory(&mut self, path: &Path) -> Result<()> {
        let source = scan::Source::open(path)?;
        let number = self.next_number()?;
        if number > 0 {
            self.tree.make_index();
        }
        let root = source.root_entry(self.options.rules)?;
        let options = scan::Options {
            rules: self.options.rules,
            threads: self.options.threads,
            skip_unreadable: self.options.skip_unreadable,
            one_file_system: self.options.one_file_system,
            leave_out: self.output.own_files(),
            progress: self.options.progress,
        };
        let (skipped, on_skipped) = (&mut self.skipped, self.options.on_skipped);
        let mut writer = DirectoryWriter::new(&mut self.tree, self.options.rules, path, number);
        writer.add_root(root)?;
        source.read(&options, |batch| {
            *skipped += batch.skipped.len() as u64;
            if let Some(on_skipped) = on_skipped {
                batch.skipped.iter().for_each(on_skipped);
            }
            writer.add_batch(batch)
        })?;
        writer.finish()?;
        self.contents.push(Contents::Directory(source));
        Ok(())
    }

    fn add_archive(&mut self, path: &Path, mut packed: Option<PackedImage>) -> Result<()> {
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
            return self.add_stream(Given::Archive(path), Box::new(Pipe::new(path)), packed);
        }
        let file = File::open(path).map_err(|cause| Error::source(path, "open it", cause))?;
        let mut start = [0; 4];
        let is_plain_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let read = if is_plain_file {
            file.read_at(&mut start, 0)
        } else {
            Ok(0)
        };
        let read = read.map_err(|cause| Error::source(path, "read it", cause))?;
        if !is_plain_file || Compression::detect(&start[..read]) != Compression::None {
            return self.add_stream(Given::Archive(path), Box::new(file), packed);
        }
        let number = self.next_number()?;
        let archive = Archive::open(file, path)?;
        self.tree.make_index();
        let (rules, progress) = (self.options.rules, self.options.progress);
        let max_names = self.options.limits.files;
        let mut archive_writer = ArchiveWriter::new(path, rules, number, max_names);
        let input = FileInput::new(&archive.file, path)?;
        let end = Reader::new(path, input, rules, self.options.limits).read(|record| {
            progress.count(1, 0)?;
            note(&mut packed, &record);
            archive_writer.apply(&mut self.tree, record)
        })?;
        self.note_end(path, end.has_mark);
        check(packed, Given::Archive(path))?;
        archive_writer.finish(&mut self.tree)?;
        self.contents.push(Contents::File(archive));
        Ok(())
    }

    fn add_stream(
        &mut self,
        given: Given<'_>,
        reader: Box<dyn Read + Send>,
        mut packed: Option<PackedImage>,
    ) -> Result<()> {
        let path = given.path();
        let number = self.next_number()?;
        self.tree.make_index();
        self.make_spool()?;
        let spool = self.spool.as_ref().expect("just made");
        let (rules, progress) = (self.options.rules, self.options.progress);
        let max_names = self.options.limits.files;
        let mut archive_writer = ArchiveWriter::new(path, rules, number, max_names);
        let (tree, limits) = (&mut self.tree, self.options.limits);
        let writer = spool.writer(self.output.target());
        let mut has_mark = true;
        with_stream(reader, path, writer, MAX_PADDING_BYTES, progress, |input| {
            let end = Reader::new(path, input, rules, limits).read(|record| {
                progress.count(1, 0)?;
                note(&mut packed, &record);
                archive_writer.apply(tree, record)
            })?;
            has_mark = end.has_mark;
            Ok(end.input)
        })?;
        self.note_end(path, has_mark);
        check(packed, given)?;
        archive_writer.finish(&mut self.tree)?;
        self.push_spooled()
    }

    fn make_spool(&mut self) -> Result<()> {
        if self.spool.is_none() {
            self.spool = Some(Spool::new(scratch(self.output.target())?));
        }
        Ok(())
    }

    /// Records that a source's contents are in the spool.
    fn push_spooled(&mut self) -> Result<()> {
        let spool = self
            .spool
            .as_ref()
            .expect("made before anything went there");
        let file = spool.file.try_clone().map_err(|cause| {
            Error::output(self.output.target(), "keep contents beside it", cause)
        })?;
        self.contents.push(Contents::File(Archive {
            file,
            path: self.output.target().to_owned(),
            stamp: None,
        }));
        Ok(())
    }

    fn add_layers(&mut self, path: &Path) -> Result<()> {
        let blobs = oci::layers(path, self.options.selector, self.options.progress)?;
        if blobs.is_empty() {
            let path = Shown(path.as_os_str().as_bytes());
            self.notes
                .push(format!("{path}: it has no layers, so the root is empty"));
        }
        self.tree.make_index();
        self.make_spool()?;
        let archives = blobs
            .iter()
            .map(|blob| Archive::open(blob.open_file()?, &blob.path))
            .collect::<Result<Vec<_>>>()?;
        let first = self.next_source;
        for _ in &blobs {
            self.next_number()?;
        }
        let work = LayerReader::new(
            &blobs,
            &archives,
            self.spool.as_ref().expect("just made"),
            self.output.target(),
            &self.options,
        );
        let (tree, threads) = (&mut self.tree, self.options.threads);
        let is_spooled = work.run(tree, first, threads)?;
        for (archive, is_spooled) in archives.into_iter().zip(is_spooled) {
            if is_spooled {
                self.push_spooled()?;
            } else {
                self.contents.push(Contents::File(archive));
            }
        }
        Ok(())
    }
}

fn note(packed: &mut Option<PackedImage>, record: &Record) {
    if let Some(packed) = packed {
        packed.note(&record.path);
    }
}

fn check(packed: Option<PackedImage>, given: Given<'_>) -> Result<()> {
    packed.map_or(Ok(()), |packed| packed.check(given))
}
