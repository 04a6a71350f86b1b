//! Copies out of an image, onto the host.
//!
//! The image may be hostile. Nothing is written outside of the copy: every file is created
//! (`O_EXCL`, `O_NOFOLLOW`) by its name in the descriptor of its directory. A tree is created as a
//! new directory that no other user may enter until the copy is complete. Names with slashes, `.`
//! and `..` are refused when they are listed. The whole copy, also that of a single file, has a
//! temporary name until it is complete.
//!
//! Modes, times (nanoseconds), holes, hard links and `user.` attributes are always kept; owners,
//! set-user-ID bits, devices and other attributes only if root copies.
//!
//! A tree may be deeper than a process may have files open ([`OpenDirectories`]).

mod metadata;
mod place;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use pext4_block::{Progress, temporary_name};
use pext4_fs::FileType;
use pext4_fs::path::AsVolumePath;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{EditError, HostContext, ImageContext, Result, refuse};
use crate::host::directory::{HostDirectory, OpenDirectories};
use crate::image_tree::{ImageFile, ImageTree};
use crate::reader::{Reader, check_depth};
use crate::source::{FileMetadata, Source};
use crate::unreadable::{OnSkipped, Unreadable};
use metadata::set_mode;
use place::{check_vacant, rename_into_place, target};

/// The mode of a directory until the copy is complete.
const DIRECTORY_TO_FILL: Mode = Mode::RWXU;

/// How many temporary names are tried, if files with these names exist.
const MAX_ATTEMPTS: u32 = 100;

/// How to copy out.
#[derive(Clone, Debug)]
pub struct GetOptions {
    /// Keep owners, and with them set-user-ID bits and attributes of the system. Root's default.
    pub owners: bool,
    /// Leave devices out. If not, a device that cannot be created is an error.
    pub skip_devices: bool,
    /// Replace an existing file, but never a directory.
    pub force: bool,
    /// Counts what is copied, and can stop it: then nothing is left of the copy.
    pub progress: Arc<Progress>,
}

impl Default for GetOptions {
    fn default() -> Self {
        Self {
            owners: rustix::process::geteuid().is_root(),
            skip_devices: false,
            force: false,
            progress: Arc::default(),
        }
    }
}

/// What was copied out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// The path of the copy.
    pub path: PathBuf,
    /// The number of files of all kinds, directories included.
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// The number of devices that were left out.
    pub devices_skipped: u64,
    /// The number of extended attributes that were not copied.
    pub attributes_skipped: u64,
    /// The number of files that could not be read and were left out.
    pub unreadable_skipped: u64,
}

impl Reader {
    /// Copies a file or a tree to the host. If the destination is a directory, the copy is created
    /// in it under its own name. The destination of the image's root must be empty or missing.
    ///
    /// # Errors
    ///
    /// `AtPath` for a file that cannot be read in the image, `Host` for one that cannot be created.
    /// The copy is removed then.
    pub fn get(
        &self,
        path: impl AsVolumePath,
        destination: impl AsRef<Path>,
        options: &GetOptions,
    ) -> Result<Copied> {
        let got = self.get_with(path.as_volume_path(), destination.as_ref(), options, None);
        got.in_image(self.file())
    }

    /// As [`Self::get`], but skips files that cannot be read in the image, after calling
    /// `on_skipped`.
    ///
    /// # Errors
    ///
    /// The path does not exist or cannot be read itself; a file cannot be created on the host. The
    /// copy is removed then.
    pub fn get_readable(
        &self,
        path: impl AsVolumePath,
        destination: impl AsRef<Path>,
        options: &GetOptions,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<Copied> {
        let (path, destination) = (path.as_volume_path(), destination.as_ref());
        let got = self.get_with(path, destination, options, Some(on_skipped));
        got.in_image(self.file())
    }

    fn get_with(
        &self,
        path: &[u8],
        destination: &Path,
        options: &GetOptions,
        on_skipped: Option<&mut OnSkipped<'_>>,
    ) -> Result<Copied> {
        let source = self.find(path)?;
        let image = self.tree();
        let is_tree = image.attributes(&source)?.file_type == FileType::Directory;
        let target = target(path, destination, is_tree)?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = target.file_name().unwrap_or_default();
        check_vacant(&target, options)?;
        let directory = Rc::new(open_directory(parent).with_host_file(parent, "open it")?);
        let mut extractor = Extractor {
            image,
            options,
            base: Rc::clone(&directory),
            opened: OpenDirectories::below(Rc::clone(&directory)),
            temporary: OsString::new(),
            has_made_top: false,
            target: &target,
            links: HashMap::new(),
            closed: Vec::new(),
            unreadable: Unreadable::new(on_skipped),
            copied: Copied::default(),
        };
        let done = extractor
            .extract_top(name, &source)
            .and_then(|()| extractor.close_directories())
            .and_then(|()| match extractor.has_made_top {
                true => Ok(()),
                false => refuse(path, "is a device, and devices are left out"),
            })
            .and_then(|()| {
                rename_into_place(&directory, &extractor.temporary, name, &target, options)
            });
        if let Err(error) = done {
            let left = parent.join(&extractor.temporary);
            let has_made_top = extractor.has_made_top;
            // Its directories are closed, since the removal opens each level of a tree too.
            drop(extractor);
            if has_made_top {
                // If this fails, the copy stays under its temporary name.
                let _ = fs::remove_dir_all(&left).or_else(|_| fs::remove_file(&left));
            }
            return Err(error);
        }
        let (copied, unreadable_skipped) = (extractor.copied, extractor.unreadable.skipped);
        Ok(Copied {
            path: target,
            unreadable_skipped,
            ..copied
        })
    }
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// The first name of a file of the copy, and its directory; `None` for the top.
struct FirstName {
    directory: Option<Rc<HostDirectory>>,
    name: OsString,
}

/// A directory of the copy that gets its mode at the end.
struct ClosedDirectory {
    directory: Rc<HostDirectory>,
    /// What it is a copy of, for errors.
    source: ImageFile,
    mode: Mode,
}

struct Extractor<'r, 'l> {
    image: ImageTree<'r>,
    options: &'r GetOptions,
    /// The parent directory of the copy and the copy's temporary name there, for hard links.
    base: Rc<OwnedFd>,
    /// The open directories of the copy.
    opened: OpenDirectories,
    temporary: OsString,
    /// Whether the file of that name is the copy. If not, it belongs to somebody else.
    has_made_top: bool,
    /// The final path of the copy, for errors.
    target: &'r Path,
    /// The first names of files with several names.
    links: HashMap<(u64, u64), FirstName>,
    /// Directories whose modes keep their owner out, each after those in it. They get these modes
    /// at the end: until then this process must enter them for hard links, and to remove them if
    /// the copy fails.
    closed: Vec<ClosedDirectory>,
    unreadable: Unreadable<'r, 'l>,
    copied: Copied,
}

impl Extractor<'_, '_> {
    /// Creates the whole copy under the first temporary name that is free. The process ID in the
    /// name does not tell two readers of one process apart.
    fn extract_top(&mut self, name: &OsStr, source: &ImageFile) -> Result<()> {
        self.options.progress.count(1, 0)?;
        for attempt in 0..MAX_ATTEMPTS {
            let mark = format!(".pext4-{}.{attempt}", std::process::id());
            let temporary = temporary_name(name, &mark);
            temporary.clone_into(&mut self.temporary);
            match self.extract(None, &temporary, source, 0) {
                Err(EditError::Host { source, .. })
                    if !self.has_made_top && source.kind() == io::ErrorKind::AlreadyExists => {}
                done => return done,
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
            .with_host_file(self.target, "make a file beside it")
    }

    /// Creates `source` as `name` in a directory of the copy, or as the top.
    fn extract(
        &mut self,
        parent: Option<&Rc<HostDirectory>>,
        name: &OsStr,
        source: &ImageFile,
        depth: u32,
    ) -> Result<()> {
        let mut metadata = self.image.summary(source)?;
        if let Some(first) = metadata.identity.and_then(|key| self.links.get(&key)) {
            let above = self.descriptor(first.directory.as_ref(), source)?;
            let directory = self.descriptor(parent, source)?;
            return rustix::fs::linkat(&above, &first.name, &directory, name, AtFlags::empty())
                .with_host_file(&self.host_path(source), "make its other name");
        }
        self.image.complete(source, &mut metadata)?;
        if depth > 0 {
            self.options.progress.count(1, 0)?;
        }
        let made = if metadata.kind == FileType::Directory {
            self.directory(parent, name, source, &metadata, depth)?
        } else {
            let directory = self.descriptor(parent, source)?;
            let directory = directory.as_fd();
            match metadata.kind {
                FileType::Regular => self.file(directory, name, source, &metadata)?,
                FileType::Symlink => self.symlink(directory, name, source, &metadata)?,
                _ => self.special_file(directory, name, source, &metadata)?,
            }
        };
        self.copied.files += u64::from(made);
        if let (true, Some(key)) = (made, metadata.identity) {
            let first = FirstName {
                directory: parent.cloned(),
                name: name.to_owned(),
            };
            self.links.insert(key, first);
        }
        Ok(())
    }

    /// The descriptor of a directory of the copy; of the top's for `None`. It is not kept while
    /// what is in the directory is copied, or a deep tree would take too many.
    fn descriptor(
        &self,
        directory: Option<&Rc<HostDirectory>>,
        source: &ImageFile,
    ) -> Result<Rc<OwnedFd>> {
        match directory {
            None => Ok(Rc::clone(&self.base)),
            Some(directory) => {
                let opened = self.opened.descriptor(directory);
                opened.with_host_file(&self.host_path(source), "open the directory for it")
            }
        }
    }

    /// Sets the modes of directories that keep their owner out.
    fn close_directories(&self) -> Result<()> {
        self.closed.iter().try_for_each(|closed| {
            let open = self.descriptor(Some(&closed.directory), &closed.source)?;
            set_mode(open.as_fd(), closed.mode)
                .with_host_file(&self.host_path(&closed.source), "give it its mode")
        })
    }

    fn directory(
        &mut self,
        parent: Option<&Rc<HostDirectory>>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
        depth: u32,
    ) -> Result<bool> {
        check_depth(depth, source)?;
        rustix::fs::mkdirat(&self.descriptor(parent, source)?, name, DIRECTORY_TO_FILL)
            .with_host_file(&self.host_path(source), "make it")?;
        self.has_made_top = true;
        let here = self.opened.enter(parent, name);
        let here = here.with_host_file(&self.host_path(source), "open it")?;
        if parent.is_none() {
            let open = self.descriptor(Some(&here), source)?;
            self.disinherit(source, |list| rustix::fs::fremovexattr(&open, list))?;
        }
        for (name, child) in self.image.readable_children(source, &mut self.unreadable)? {
            let name = OsString::from_vec(name);
            let extracted = self.extract(Some(&here), &name, &child, depth + 1);
            self.unreadable.or_skip(extracted)?;
        }
        let open = self.descriptor(Some(&here), source)?;
        let mode = self.apply_metadata(open.as_fd(), source, metadata)?;
        if !mode.contains(DIRECTORY_TO_FILL) {
            self.closed.push(ClosedDirectory {
                directory: here,
                source: source.clone(),
                mode,
            });
        }
        Ok(true)
    }

    fn file(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<bool> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.with_host_file(&self.host_path(source), "make it")?);
        let is_top = !std::mem::replace(&mut self.has_made_top, true);
        if is_top {
            self.disinherit(source, |list| rustix::fs::fremovexattr(&file, list))?;
        }
        let mut bytes = 0;
        let copied = self.image.content(source, metadata, &mut |offset, piece| {
            bytes += piece.len() as u64;
            self.options.progress.count(0, piece.len() as u64)?;
            file.write_all_at(piece, offset)
                .with_host_file(&self.host_path(source), "write it")
        });
        if copied.is_err() {
            rustix::fs::unlinkat(parent, name, AtFlags::empty())
                .with_host_file(&self.host_path(source), "remove what was copied of it")?;
            self.has_made_top = !is_top;
        }
        copied?;
        self.copied.bytes += bytes;
        file.set_len(metadata.size)
            .with_host_file(&self.host_path(source), "give it its size")?;
        self.apply_metadata(file.as_fd(), source, metadata)?;
        Ok(true)
    }

    fn symlink(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<bool> {
        rustix::fs::symlinkat(OsStr::from_bytes(&metadata.target), parent, name)
            .with_host_file(&self.host_path(source), "make it")?;
        self.has_made_top = true;
        self.apply_metadata_by_name(parent, name, source, metadata)?;
        Ok(true)
    }

    fn special_file(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        source: &ImageFile,
        metadata: &FileMetadata,
    ) -> Result<bool> {
        let kind = match metadata.kind {
            FileType::CharacterDevice => rustix::fs::FileType::CharacterDevice,
            FileType::BlockDevice => rustix::fs::FileType::BlockDevice,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            _ => rustix::fs::FileType::Socket,
        };
        let is_device = kind.is_block_device() || kind.is_char_device();
        if is_device && self.options.skip_devices {
            self.copied.devices_skipped += 1;
            return Ok(false);
        }
        let number = rustix::fs::makedev(metadata.device.major, metadata.device.minor);
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::mknodat(parent, name, kind, mode, number) {
            Err(Errno::PERM) if is_device => refuse(
                &source.path(),
                "only root can make a device here; --skip-devices leaves devices out",
            ),
            done => done.with_host_file(&self.host_path(source), "make it"),
        }?;
        self.has_made_top = true;
        self.apply_metadata_by_name(parent, name, source, metadata)?;
        Ok(true)
    }

    /// The path of a file on the host, for errors.
    fn host_path(&self, source: &ImageFile) -> PathBuf {
        let below = source.path_below_top();
        match &*below {
            b"" => self.target.to_owned(),
            below => self.target.join(OsStr::from_bytes(below)),
        }
    }
}
