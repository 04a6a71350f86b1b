//! The image file during the build. It gets its final name only when it is complete.
//!
//! If the host supports `O_TMPFILE`, the file has no name until then, so not even a killed build
//! leaves anything. Otherwise it has a temporary name beside the target and is removed when the
//! build fails.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice, copy_permissions, temporary_name};
use pext4_ondisk::superblock::{self, Superblock};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::error::{Error, Result};
use crate::is_vacant;

/// The file that becomes the image.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    target: PathBuf,
    /// The temporary name, if the file has one.
    temporary: Option<PathBuf>,
    /// Whether an existing file of the final name is replaced.
    replace: bool,
    /// Keeps others from opening the file that is replaced: they would continue to write to a file
    /// without a name.
    _replaced: Option<FileDevice>,
    size: u64,
}

impl Output {
    /// Creates a file for an image that will be named `target`. An existing file is replaced only
    /// if it is an ext4 image, or as good as empty: where the name of the image was forgotten on a
    /// command line, it is that of a source.
    pub fn create(target: &Path, replace: bool) -> Result<Self> {
        match std::fs::metadata(target) {
            Ok(existing) if !existing.is_file() => {
                let cause = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
                return Err(Error::output(target, "make it", cause));
            }
            Ok(_) if !replace => {
                let cause = io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it exists already; --force replaces it",
                );
                return Err(Error::output(target, "make it", cause));
            }
            // A dangling symbolic link occupies the name as well.
            Err(_) if !replace && std::fs::symlink_metadata(target).is_ok() => {
                let problem = "it is a symbolic link that leads nowhere; --force replaces it";
                let cause = io::Error::new(io::ErrorKind::AlreadyExists, problem);
                return Err(Error::output(target, "make it", cause));
            }
            Ok(_) => check_replaceable(target)?,
            Err(_) => {}
        }
        let replaced = claim_to_replace(target)?;
        let target = &if replace {
            resolve_link(target)
        } else {
            target.to_owned()
        };
        let (file, temporary) = open_nameless(folder_of(target)).map_or_else(
            || create_named(target).map(|(file, path)| (file, Some(path))),
            |file| Ok((file, None)),
        )?;
        let output = Self {
            file,
            target: target.to_owned(),
            temporary,
            replace,
            _replaced: replaced,
            size: 0,
        };
        if replace {
            // Fail before the work if owner and mode cannot be set.
            output.take_owner_and_mode()?;
        }
        Ok(output)
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The final name.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Device and inode number of the file that has the final name now, and of this file. The build
    /// excludes both if they are located inside a source directory.
    pub fn own_files(&self) -> Vec<(u64, u64)> {
        let stats = [
            rustix::fs::stat(&self.target),
            rustix::fs::fstat(&self.file),
        ];
        let stats = stats.into_iter().flatten();
        stats.map(|stat| (stat.st_dev, stat.st_ino)).collect()
    }

    /// Sets the size of the file.
    pub fn set_size(&mut self, size: u64) -> Result<()> {
        self.size = size;
        self.file
            .set_len(size)
            .map_err(|cause| Error::output(&self.target, "give it its size", cause))
    }

    /// Writes bytes of the image.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|cause| Error::output(&self.target, "write", cause))
    }

    /// Makes the image durable.
    pub fn sync(&self) -> Result<()> {
        self.file
            .sync_all()
            .map_err(|cause| Error::output(&self.target, "make it durable", cause))
    }

    /// Gives the complete image its final name.
    pub fn publish(mut self) -> Result<()> {
        let shown = |cause: io::Error| Error::output(&self.target, "give it its name", cause);
        if self.replace {
            self.take_owner_and_mode()?;
        }
        if self.temporary.is_none() {
            self.temporary = Some(link(&self.file, &self.target).map_err(shown)?);
        }
        let temporary = self.temporary.as_ref().expect("it has a name by now");
        if self.replace {
            std::fs::rename(temporary, &self.target).map_err(shown)?;
        } else {
            rename_without_replacing(temporary, &self.target).map_err(shown)?;
        }
        self.temporary = None;
        Ok(())
    }

    /// Copies owner and mode of the image that is replaced.
    fn take_owner_and_mode(&self) -> Result<()> {
        let Ok(old) = std::fs::metadata(&self.target) else {
            return Ok(());
        };
        let failed = |cause| Error::output(&self.target, "keep its owner and mode", cause);
        let own = self.file.metadata().map_err(failed)?;
        if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
            fchown(&self.file, Some(old.uid()), Some(old.gid())).map_err(failed)?;
        }
        copy_permissions(&self.target, &self.file).map_err(failed)
    }

    /// Makes the new name of an image durable, which is complete by now.
    pub fn sync_folder(target: &Path) -> Result<()> {
        const ACTION: &str = "make its name durable (the image itself is complete)";
        let target = &resolve_link(target);
        File::open(folder_of(target))
            .and_then(|folder| folder.sync_all())
            .map_err(|cause| Error::output(target, ACTION, cause))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // The caller already gets the first error.
            let _ = std::fs::remove_file(temporary);
        }
    }
}

/// Fails if a file holds something else than an ext4 file system.
fn check_replaceable(target: &Path) -> Result<()> {
    let action = "replace it";
    let failed = |cause| Error::output(target, action, cause);
    let mut file = File::open(target).map_err(failed)?;
    let mut bytes = [0; superblock::SIZE];
    let is_ext4 = match file.read_exact_at(&mut bytes, superblock::OFFSET) {
        Ok(()) => Superblock::magic_of(&bytes) == superblock::MAGIC,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
        Err(error) => return Err(failed(error)),
    };
    if is_ext4 || is_vacant(&mut file).map_err(failed)? {
        return Ok(());
    }
    let problem = "it is no ext4 image; remove it first, or was IMAGE forgotten?";
    Err(failed(io::Error::new(io::ErrorKind::InvalidInput, problem)))
}

/// Locks a file that is replaced. `None` if there is none, or it cannot be opened for another
/// reason than its use; then no volume of ours writes to it.
fn claim_to_replace(target: &Path) -> Result<Option<FileDevice>> {
    match FileDevice::open(target, Access::ReadWrite, Duration::ZERO) {
        Ok(device) => Ok(Some(device)),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Err(Error::InUse(error)),
        Err(_) => Ok(None),
    }
}

/// The target of a symbolic link: when an image is replaced, the link stays.
fn resolve_link(target: &Path) -> PathBuf {
    match std::fs::symlink_metadata(target) {
        Ok(there) if there.is_symlink() => std::fs::canonicalize(target).ok(),
        _ => None,
    }
    .unwrap_or_else(|| target.to_owned())
}

/// Renames, unless `to` exists.
fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support the flag.
        Err(Errno::INVAL | Errno::NOSYS) => rename_by_link(from, to),
        done => Ok(done?),
    }
}

/// Renames by a second name, which, unlike a rename, is not made over a file that exists.
fn rename_by_link(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()) {
        Ok(()) => std::fs::remove_file(from).map_err(|cause| {
            let text = format!(
                "it has it, and {} cannot be removed: {cause}",
                from.display()
            );
            io::Error::new(cause.kind(), text)
        }),
        // The file system has no second names either.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            rename_if_absent(from, to)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Renames, unless `to` exists shortly before. Nothing more certain is left.
fn rename_if_absent(from: &Path, to: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(to).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    std::fs::rename(from, to)
}

fn folder_of(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file without a name, if the host supports that and can give it a name later.
fn open_nameless(folder: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, folder, flags, Mode::from_raw_mode(0o644)).ok()?;
    let file = File::from(file);
    is_file_at(&fd_path(&file), &file).then_some(file)
}

/// The `/proc` path of an open file, for files without another path.
fn fd_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether `path` refers to this very file. Without `/proc` it does not.
fn is_file_at(path: &Path, file: &File) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match (std::fs::metadata(path), file.metadata()) {
        (Ok(there), Ok(here)) => identity(there) == identity(here),
        _ => false,
    }
}

/// Names beside the target that contain the process ID, so that concurrent builds do not collide.
fn candidates(target: &Path) -> impl Iterator<Item = PathBuf> + '_ {
    (0..1000).map(move |attempt| {
        let name = target.file_name().unwrap_or_default();
        let mark = format!(".{}.{attempt}", std::process::id());
        folder_of(target).join(temporary_name(name, &mark))
    })
}

fn create_named(target: &Path) -> Result<(File, PathBuf)> {
    for path in candidates(target) {
        let created = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(Error::output(target, "make it", cause)),
            Ok(file) => return Ok((file, path)),
        }
    }
    let cause = io::Error::from(io::ErrorKind::AlreadyExists);
    Err(Error::output(target, "make a file beside it", cause))
}

/// Gives a nameless file a name beside the target.
fn link(file: &File, target: &Path) -> io::Result<PathBuf> {
    let own = fd_path(file);
    for path in candidates(target) {
        match rustix::fs::linkat(CWD, &own, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
            Ok(()) => return Ok(path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Creates a scratch file without a name in the target's directory.
pub(super) fn scratch(target: &Path) -> Result<File> {
    if let Some(file) = open_nameless(folder_of(target)) {
        return Ok(file);
    }
    let (file, path) = create_named(target)?;
    std::fs::remove_file(&path)
        .map_err(|cause| Error::output(target, "remove a file beside it", cause))?;
    Ok(file)
}

impl Device for Output {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, offset, length)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use std::time::Duration;

    use pext4_block::{Access, FileDevice};

    use super::{
        Error, Output, create_named, fd_path, is_file_at, rename_by_link, rename_if_absent,
    };

    /// Without `/proc` a nameless file could not get a name at the end.
    #[test]
    fn a_file_is_behind_its_fd_path_alone() {
        let [one, two] = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
        assert!(is_file_at(&fd_path(&one), &one));
        assert!(!is_file_at(&fd_path(&one), &two));
        assert!(!is_file_at("/proc/none".as_ref(), &one));
    }

    #[test]
    fn an_image_whose_name_is_not_durable_is_said_to_be_complete() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("gone").join("image");
        let error = Output::sync_folder(&target).expect_err("there is no folder");
        assert!(error.to_string().contains("itself is complete"), "{error}");
    }

    #[test]
    fn an_image_in_use_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("image");
        std::fs::write(&target, [0; 4096]).expect("the folder is ours");
        let user = FileDevice::open(&target, Access::ReadWrite, Duration::ZERO);
        let refused = Output::create(&target, true).expect_err("it is in use");
        assert!(matches!(refused, Error::InUse(_)), "{refused}");
        drop(user);
        Output::create(&target, true).expect("it is free");
    }

    /// Hosts whose file systems have no `RENAME_NOREPLACE` are rare, so this test calls what they
    /// get.
    #[test]
    fn an_image_that_exists_is_not_replaced_without_the_flag_of_rename_either() {
        for rename in [rename_by_link, rename_if_absent] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
            std::fs::write(&from, "new").expect("the folder is ours");
            std::fs::write(&to, "old").expect("the folder is ours");
            let error = rename(&from, &to).expect_err("there is one");
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&to).expect("it is there"), b"old");
            assert_eq!(std::fs::read(&from).expect("it is there"), b"new");
            std::fs::remove_file(&to).expect("it is there");
            rename(&from, &to).expect("the name is free");
            assert_eq!(std::fs::read(&to).expect("it is there"), b"new");
            assert!(!from.exists());
        }
    }

    /// Hosts without `O_TMPFILE` are rare, so this test creates the named file directly.
    #[test]
    fn a_file_with_a_name_of_its_own_goes_with_the_build() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let target = folder.path().join("image");
        let count = || std::fs::read_dir(&folder).expect("it is there").count();
        let output = || {
            let (file, path) = create_named(&target).expect("the folder is ours");
            assert_ne!(path, target);
            Output {
                file,
                target: target.clone(),
                temporary: Some(path),
                replace: false,
                _replaced: None,
                size: 0,
            }
        };
        let (first, second) = (output(), output());
        assert_eq!(count(), 2, "builds of one image do not meet");
        let number = std::fs::metadata(first.temporary.as_ref().expect("it has a name"));
        let number = number.expect("it is there").ino();
        assert!(
            first.own_files().iter().any(|&(_, own)| own == number),
            "it is no source"
        );
        drop(first);
        assert_eq!(count(), 1);
        second.publish().expect("the folder is ours");
        assert!(target.exists());
        assert_eq!(count(), 1, "nothing but the image");
        let late = output().publish().expect_err("the name is taken by now");
        assert!(late.to_string().contains("exists"), "{late}");
        assert_eq!(count(), 1, "nothing but the image");
    }
}
