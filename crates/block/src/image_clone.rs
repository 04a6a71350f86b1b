//! A clone of an image file beside it, which replaces the image atomically.
//!
//! If the host's file system can share blocks (reflink), the clone takes no time and no space; else
//! data is copied and holes stay holes. It gets the permissions of the image, and its owner and
//! extended attributes as far as this user may. What is copied is the open file, which the caller
//! has locked, and only that one is replaced: if another program has moved it or put another file
//! in its place, the clone fails.
//!
//! Until it is put in place its name is that of [`temporary_name()`] with the caller's mark. The
//! caller holds the lock of the image, so an existing file of that name was left by a killed
//! process, and is removed. A clone that is dropped before it is put in place is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::host_attributes::copy_attributes;
use crate::{Access, FileDevice, copy_owner_and_permissions, leads_to, next_data, temporary_name};

/// Bytes copied at a time if the system has no `copy_file_range` for these files.
const PIECE: usize = 1 << 20;
/// Bytes that the system copies at a time. Between two such steps the copy can be stopped.
const STEP: u64 = 64 << 20;

/// How an image was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloneMethod {
    /// It shares its blocks with the image (reflink).
    Reflink,
    /// Its data was copied.
    Copy,
}

/// Why a clone could not be made or put in place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CloneError {
    /// A system call on the image or the clone failed. The image is unchanged.
    #[error("{}: cannot {action}: {source}", path.display())]
    Host {
        /// The image or the clone.
        path: PathBuf,
        /// What was attempted, as in "cannot {action}".
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The path does not lead to the open file any more. The image is unchanged.
    #[error(
        "{}: another program has moved or replaced it since it was opened; nothing was changed",
        .0.display()
    )]
    Replaced(PathBuf),
    /// Only a part of the file is locked ([`FileDevice::locks_whole_file`]). A clone replaces all
    /// of it, and would undo what others write to the rest meanwhile. The image is unchanged.
    #[error(
        "{}: only a part of the file is locked, and a clone would replace all of it: lock all of \
         it (`FileDevice::open`, then `FileDevice::into_range`)",
        .0.display()
    )]
    PartlyLocked(PathBuf),
    /// The clone is in the place of the image, but its new name may not be durable.
    #[error("cannot make the new name durable: {0}")]
    NotDurable(#[source] io::Error),
}

/// A clone of an image, which is removed on drop unless it was put in place.
#[derive(Debug)]
pub struct ImageClone {
    /// The image's path, with symbolic links resolved.
    image: PathBuf,
    /// The image that was copied.
    original: File,
    file: File,
    method: CloneMethod,
    temporary: Temporary,
}

/// The name of a file that is removed on drop; `None` once it has another name.
#[derive(Debug)]
struct Temporary(Option<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // The documentation names a file that cannot be removed, and the next clone removes it.
            let _ = fs::remove_file(path);
        }
    }
}

impl ImageClone {
    /// Copies the first `kept` bytes of an image, which is locked for writing, to a file of
    /// `length` bytes, whose temporary name ends in `mark`. `passed` is called with the number of
    /// bytes that were copied, or passed over as a hole, since the last call; an error of it stops
    /// the copy.
    ///
    /// # Errors
    ///
    /// [`CloneError::Host`], [`CloneError::Replaced`], [`CloneError::PartlyLocked`]. Nothing is
    /// left behind.
    pub fn new(
        locked: &FileDevice,
        mark: &str,
        kept: u64,
        length: u64,
        passed: &dyn Fn(u64) -> io::Result<()>,
    ) -> Result<Self, CloneError> {
        if !locked.locks_whole_file() {
            return Err(CloneError::PartlyLocked(locked.path().to_owned()));
        }
        let found = fs::canonicalize(locked.path());
        let image = found.map_err(host(locked.path(), "find it"))?;
        let source = locked.file();
        let metadata = source.metadata().map_err(host(&image, "look at it"))?;
        check_same(&image, source)?;
        let original = source.try_clone().map_err(host(&image, "keep it open"))?;
        let name = image.file_name().unwrap_or_default();
        let path = image.with_file_name(temporary_name(name, mark));
        let file = create(&path)?;
        let temporary = Temporary(Some(path.clone()));
        let method = copy(source, &file, kept.min(metadata.len()), passed)
            .map_err(host(&path, "copy the image to it"))?;
        file.set_len(length)
            .map_err(host(&path, "give it its size"))?;
        // Before it may be another user's.
        copy_attributes(source, &file);
        copy_owner_and_permissions(&image, &file)
            .map_err(host(&path, "give it the image's owner and mode"))?;
        Ok(Self {
            image,
            original,
            file,
            method,
            temporary,
        })
    }

    /// The path of the image, with symbolic links resolved.
    #[must_use]
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The temporary path of the clone.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.temporary.0.as_deref().unwrap_or(&self.image)
    }

    /// Opens the clone for writing; if `like`, the image, is a range of its file, then that range
    /// of the clone.
    ///
    /// # Errors
    ///
    /// The clone cannot be opened, or is shorter than the range.
    pub fn open_device(&self, like: &FileDevice) -> io::Result<FileDevice> {
        let device = FileDevice::open(self.path(), Access::ReadWrite, Duration::ZERO)?;
        match like.range() {
            None => Ok(device),
            Some(range) => device.into_range(range.start, Some(range.end - range.start)),
        }
    }

    /// How the image was copied.
    #[must_use]
    pub fn method(&self) -> CloneMethod {
        self.method
    }

    /// Makes what was written to the clone durable.
    ///
    /// # Errors
    ///
    /// [`CloneError::Host`].
    pub fn sync(&self) -> Result<(), CloneError> {
        let synced = self.file.sync_all();
        synced.map_err(host(self.path(), "make it durable"))
    }

    /// Puts the clone in the place of the image, durably. It must be [synced](Self::sync).
    ///
    /// # Errors
    ///
    /// See [`CloneError`].
    pub fn put_in_place(mut self) -> Result<(), CloneError> {
        check_same(self.path(), &self.file)?;
        check_same(&self.image, &self.original)?;
        fs::rename(self.path(), &self.image)
            .map_err(host(&self.image, "put the clone in its place"))?;
        self.temporary.0 = None;
        let folder = self.image.parent().unwrap_or(Path::new("/"));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(CloneError::NotDurable)
    }
}

fn host(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> CloneError {
    let path = path.to_owned();
    move |source| CloneError::Host {
        path,
        action,
        source,
    }
}

/// Fails if a path does not lead to this open file any more.
fn check_same(path: &Path, file: &File) -> Result<(), CloneError> {
    match leads_to(path, file).map_err(host(path, "find it again"))? {
        true => Ok(()),
        false => Err(CloneError::Replaced(path.to_owned())),
    }
}

fn create(path: &Path) -> Result<File, CloneError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(host(path, "remove what an earlier clone has left")(error));
        }
        _ => {}
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(host(path, "make it"))
}

/// Copies the first `length` bytes, or all of the file if it can share its blocks.
fn copy(
    from: &File,
    to: &File,
    length: u64,
    passed: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<CloneMethod> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => return Ok(CloneMethod::Reflink),
        Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(errno.into()),
        // The files cannot share blocks, for whatever reason.
        Err(_) => {}
    }
    let mut at = 0;
    while let Some(data) = next_data(from, at, length)? {
        passed(data.start - at)?;
        at = data.start;
        while at < data.end {
            let end = data.end.min(at.saturating_add(STEP));
            copy_range(from, to, at, end, passed)?;
            at = end;
        }
    }
    passed(length - at)?;
    Ok(CloneMethod::Copy)
}

fn copy_range(
    from: &File,
    to: &File,
    start: u64,
    end: u64,
    passed: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    let (mut input, mut output) = (start, start);
    while input < end {
        let left = usize::try_from(end - input).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut input), to, Some(&mut output), left) {
            // Before the end some file systems copy nothing and report no error.
            Ok(0) => return copy_through_memory(from, to, input, end, passed),
            Ok(copied) => passed(copied as u64)?,
            Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => return Err(errno.into()),
            Err(_) => return copy_through_memory(from, to, input, end, passed),
        }
    }
    Ok(())
}

fn copy_through_memory(
    from: &File,
    to: &File,
    start: u64,
    end: u64,
    passed: &dyn Fn(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = start;
    while at < end {
        let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
        from.read_exact_at(&mut piece[..length], at)?;
        to.write_all_at(&piece[..length], at)?;
        at += length as u64;
        passed(length as u64)?;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::io;
    use std::os::unix::fs::{FileExt, PermissionsExt};
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use tempfile::TempDir;

    use super::{CloneError, ImageClone, PIECE};
    use crate::{Access, FileDevice};

    const LENGTH: u64 = 3 << 20;

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("room for a directory");
        let image = folder.path().join("image");
        (folder, image)
    }

    /// An image with data, a hole, and data.
    fn open(image: &Path) -> FileDevice {
        let file = fs::File::create(image).expect("room");
        file.set_len(LENGTH).expect("room");
        file.write_all_at(&[7; 8192], 0).expect("room");
        file.write_all_at(&[8; 4096], 2 << 20).expect("room");
        fs::set_permissions(image, fs::Permissions::from_mode(0o640)).expect("it is ours");
        FileDevice::open(image, Access::ReadWrite, Duration::ZERO).expect("nobody uses it")
    }

    fn clone_of(locked: &FileDevice) -> Result<ImageClone, CloneError> {
        ImageClone::new(locked, ".mark", LENGTH, LENGTH, &|_| Ok(()))
    }

    fn names(folder: &TempDir) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder.path()).expect("it is there");
        entries
            .map(|entry| entry.expect("it is there").file_name().into())
            .collect()
    }

    #[test]
    fn a_clone_is_as_the_image_and_replaces_it() {
        let (folder, image) = folder();
        let locked = open(&image);
        let before = fs::read(&image).expect("it is there");
        // What a killed process has left.
        fs::write(folder.path().join(".image.mark"), b"half a clone").expect("room");
        let passed = Cell::new(0);
        let count = |bytes| {
            passed.set(passed.get() + bytes);
            Ok(())
        };
        let clone = ImageClone::new(&locked, ".mark", 2 << 20, LENGTH + 1, &count);
        let clone = clone.expect("there is room");
        if clone.method() == super::CloneMethod::Copy {
            assert_eq!(passed.get(), 2 << 20);
            let copied = fs::read(clone.path()).expect("it is there");
            assert_eq!(copied[..2 << 20], before[..2 << 20]);
            assert!(copied[2 << 20..].iter().all(|&byte| byte == 0));
        }
        clone.sync().expect("it is a file");
        clone.put_in_place().expect("it is the same file");
        let metadata = fs::metadata(&image).expect("it is there");
        assert_eq!(metadata.len(), LENGTH + 1);
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
        assert_eq!(names(&folder), [Path::new("image")]);
    }

    /// Only root may set the second and the third.
    #[test]
    fn a_clone_has_the_extended_attributes_of_the_image() {
        let (_folder, image) = folder();
        let locked = open(&image);
        let mut names = vec!["user.pext4", "trusted.pext4", "security.pext4"];
        let set = |name: &&str| setxattr(&image, *name, name.as_bytes(), XattrFlags::empty());
        names.retain(|name| set(name).is_ok());
        if names.is_empty() {
            return eprintln!("SKIPPED: no extended attributes here");
        }
        let clone = clone_of(&locked).expect("there is room");
        clone.put_in_place().expect("it is the same file");
        for name in names {
            let mut value = [0; 100];
            let length = getxattr(&image, name, &mut value[..]).expect("it has the attribute");
            assert_eq!(value[..length], *name.as_bytes());
        }
    }

    #[test]
    fn a_file_that_somebody_has_put_in_the_place_of_the_image_stays() {
        let (folder, image) = folder();
        let replace = || {
            let other = image.with_extension("other");
            fs::write(&other, b"other").expect("there is room");
            fs::rename(other, &image).expect("they are neighbours");
        };
        let check = |made: Result<(), CloneError>| {
            let error = made.expect_err("it is another file");
            assert!(matches!(error, CloneError::Replaced(_)), "{error}");
            assert_eq!(fs::read(&image).expect("it is there"), b"other");
            assert_eq!(names(&folder), [Path::new("image")]);
        };
        let locked = open(&image);
        replace();
        check(clone_of(&locked).map(drop));
        fs::remove_file(&image).expect("it is ours");
        let locked = open(&image);
        let clone = clone_of(&locked).expect("there is room");
        replace();
        check(clone.put_in_place());
    }

    #[test]
    fn a_clone_of_a_range_is_opened_as_that_range() {
        let (_folder, image) = folder();
        let locked = open(&image)
            .into_range(4096, Some(8192))
            .expect("it is inside");
        let clone = clone_of(&locked).expect("there is room");
        let device = clone.open_device(&locked).expect("nobody uses it");
        assert_eq!(device.range(), Some(4096..12288));
    }

    /// Others may write to the rest of the file meanwhile.
    #[test]
    fn a_file_of_which_only_a_part_is_locked_is_not_replaced() {
        let (folder, image) = folder();
        drop(open(&image));
        let part = FileDevice::open_range(&image, 4096, None, Access::ReadWrite, Duration::ZERO);
        let part = part.expect("nobody uses it");
        let error = clone_of(&part).expect_err("it could be replaced");
        assert!(matches!(error, CloneError::PartlyLocked(_)), "{error}");
        assert_eq!(names(&folder), [Path::new("image")]);
    }

    #[test]
    fn a_copy_that_is_stopped_leaves_nothing() {
        let (folder, image) = folder();
        let locked = open(&image);
        let stop = |_| Err(io::Error::other("stopped"));
        match ImageClone::new(&locked, ".mark", LENGTH, LENGTH, &stop) {
            Ok(clone) => assert_eq!(clone.method(), super::CloneMethod::Reflink),
            Err(error) => assert!(error.to_string().ends_with("stopped"), "{error}"),
        }
        assert_eq!(names(&folder), [Path::new("image")]);
    }

    #[test]
    fn what_the_system_cannot_copy_goes_through_memory() {
        let [from, to] = [(); 2].map(|()| tempfile::tempfile().expect("a temporary file"));
        let content: Vec<u8> = (0..PIECE + 5000).map(|at| (at % 251) as u8).collect();
        from.write_all_at(&content, 0).expect("room");
        let end = content.len() as u64;
        super::copy_through_memory(&from, &to, 10, end, &|_| Ok(())).expect("room");
        let mut copied = vec![0; content.len()];
        to.read_exact_at(&mut copied, 0).expect("it is as long");
        assert_eq!(copied[10..], content[10..]);
        assert_eq!(copied[..10], [0; 10]);
    }
}
