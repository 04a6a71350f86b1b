//! A clone of an image beside it, which replaces the image atomically.
//!
//! If the host's file system supports reflinks, the clone shares all blocks; otherwise data is
//! copied and holes stay holes. What is copied is the locked file, and only that one is replaced: if
//! another program has moved it or put another file in its place, the clone fails. The clone is
//! removed when it is dropped before it replaces the image.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use pext4_block::{Access, Device, FileDevice, copy_permissions, leads_to, temporary_name};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tempfile::NamedTempFile;

use super::progress::Progress;
use crate::error::{Error, Result};

/// The size of one copy request in bytes.
const STEP: u64 = 64 << 20;

/// A clone that will replace its image.
pub(super) struct ImageClone {
    file: NamedTempFile,
    device: FileDevice,
    image: PathBuf,
}

impl ImageClone {
    /// Copies the first `kept` bytes of an image, which is locked for writing, to a file of
    /// `length` bytes, with the same owner and mode.
    pub fn create(
        locked: &FileDevice,
        kept: u64,
        length: u64,
        progress: &Progress,
    ) -> Result<Self> {
        let image = fs::canonicalize(locked.path())?;
        let source = locked.file();
        check_same(&image, source)?;
        let metadata = source.metadata()?;
        if metadata.nlink() > 1 {
            return Err(Error::Impossible(format!(
                "the file has {} names (hard links), and a clone would replace it under one of them \
                 only: --in-place works on the file itself",
                metadata.nlink()
            )));
        }
        let filled = fill(&image, source, &metadata, kept, length, progress);
        let file = filled.map_err(|error| match error {
            Error::Io(source) => {
                let text = format!(
                    "making a clone beside the image: {source}; --in-place works on the image itself"
                );
                io::Error::new(source.kind(), text).into()
            }
            error => error,
        })?;
        let device = FileDevice::open(file.path(), Access::ReadWrite, std::time::Duration::ZERO)?;
        Ok(Self {
            file,
            device,
            image,
        })
    }

    /// The copy.
    pub fn device(&self) -> &FileDevice {
        &self.device
    }

    /// Replaces the image, of which this is a clone, durably, unless a stop was requested.
    pub fn put_in_place(self, locked: &FileDevice, progress: &Progress) -> Result<()> {
        self.device.flush()?;
        progress.check()?;
        self.file.as_file().sync_all()?;
        check_same(self.file.path(), self.file.as_file())?;
        check_same(&self.image, locked.file())?;
        let folder = self.image.parent().unwrap_or(Path::new("/")).to_owned();
        self.file
            .persist(&self.image)
            .map_err(|failed| failed.error)?;
        let is_durable = File::open(folder).and_then(|folder| folder.sync_all());
        is_durable.map_err(|cause| {
            let text = format!(
                "the resize is made, so do not repeat it: only its folder could not be synced: {cause}"
            );
            io::Error::new(cause.kind(), text).into()
        })
    }
}

/// Fails if a path does not lead to this open file any more.
fn check_same(path: &Path, file: &File) -> Result<()> {
    if leads_to(path, file)? {
        return Ok(());
    }
    Err(Error::Impossible(format!(
        "{}: another program has moved or replaced it since it was opened; nothing was changed",
        path.display()
    )))
}

/// Creates the file beside the image, with its owner, its mode and its first `kept` bytes.
fn fill(
    image: &Path,
    source: &File,
    metadata: &Metadata,
    kept: u64,
    length: u64,
    progress: &Progress,
) -> Result<NamedTempFile> {
    let folder = image.parent().unwrap_or(Path::new("/"));
    let name = image.file_name().unwrap_or_default();
    let file = tempfile::Builder::new()
        .prefix(&temporary_name(name, ".resize-"))
        .tempfile_in(folder)?;
    let kept = kept.min(metadata.len());
    progress.begin(true, kept);
    copy(source, file.as_file(), kept, progress)?;
    file.as_file().set_len(length)?;
    fchown(file.as_file(), Some(metadata.uid()), Some(metadata.gid()))?;
    copy_permissions(image, file.as_file())?;
    Ok(file)
}

/// Copies the first `length` bytes: with a reflink of the whole file, else the data ranges.
fn copy(source: &File, to: &File, length: u64, progress: &Progress) -> Result<()> {
    match rustix::fs::ioctl_ficlone(to, source) {
        Ok(()) => return Ok(()),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {}
        Err(errno) => return Err(io::Error::from(errno).into()),
    }
    let mut at = 0;
    while at < length {
        let Some(start) = seek(source, SeekFrom::Data(at))? else {
            break;
        };
        progress.add(start - at);
        let end = seek(source, SeekFrom::Hole(start))?.unwrap_or(length);
        copy_range(source, to, start, end.min(length), progress)?;
        at = end;
    }
    Ok(())
}

/// The offset of the next data or hole; `None` behind the last data.
fn seek(file: &File, to: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn copy_range(source: &File, to: &File, start: u64, end: u64, progress: &Progress) -> Result<()> {
    let (mut from_at, mut to_at) = (start, start);
    while from_at < end {
        progress.check()?;
        let length = usize::try_from((end - from_at).min(STEP)).expect("at length a step");
        let copied =
            rustix::fs::copy_file_range(source, Some(&mut from_at), to, Some(&mut to_at), length);
        match copied {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(copied) => progress.add(copied as u64),
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return copy_through_memory(source, to, from_at, end, progress);
            }
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    Ok(())
}

fn copy_through_memory(
    source: &File,
    to: &File,
    start: u64,
    end: u64,
    progress: &Progress,
) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        progress.check()?;
        let step =
            usize::try_from((end - at).min(buffer.len() as u64)).expect("a buffer at length");
        source.read_exact_at(&mut buffer[..step], at)?;
        to.write_all_at(&buffer[..step], at)?;
        progress.add(step as u64);
        at += step as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use pext4_block::{Access, FileDevice};

    use super::{ImageClone, Progress, Result};

    /// Puts another file in the place of an image.
    fn replace(image: &Path) {
        let other = image.with_extension("other");
        fs::write(&other, b"other").expect("there is room");
        fs::rename(other, image).expect("they are neighbours");
    }

    #[test]
    fn a_file_that_somebody_has_put_in_the_place_of_the_image_stays() {
        let folder = tempfile::tempdir().expect("there is room for a directory");
        let image = folder.path().join("image");
        let progress = Progress::default();
        let clone_of = |locked: &FileDevice| ImageClone::create(locked, 4096, 4096, &progress);
        let replaced = |made: Result<()>| {
            let error = made.expect_err("it is another file").to_string();
            assert!(error.contains("moved or replaced it"), "{error}");
            assert_eq!(fs::read(&image).expect("it is there"), b"other");
            let names = fs::read_dir(folder.path()).expect("it is there").count();
            assert_eq!(names, 1, "nothing was left behind");
        };
        let open = || {
            fs::write(&image, [7; 4096]).expect("there is room");
            FileDevice::open(&image, Access::ReadWrite, Duration::ZERO).expect("nobody uses it")
        };
        let locked = open();
        replace(&image);
        replaced(clone_of(&locked).map(drop));

        let locked = open();
        let clone = clone_of(&locked).expect("there is room");
        replace(&image);
        replaced(clone.put_in_place(&locked, &progress));

        let locked = open();
        let clone = clone_of(&locked).expect("there is room");
        clone
            .put_in_place(&locked, &progress)
            .expect("it is the same file");
        assert_eq!(fs::read(&image).expect("it is there"), [7; 4096]);
    }
}
