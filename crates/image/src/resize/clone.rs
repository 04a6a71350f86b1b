//! A clone of an image beside it, which replaces the image atomically.
//!
//! If the host's file system supports reflinks, the clone shares all blocks; otherwise data is
//! copied and holes stay holes. The clone is removed when it is dropped before it replaces the
//! image.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use pext4_block::{Access, Device, FileDevice, copy_permissions, temporary_name};
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
    /// Copies the first `kept` bytes of `image` to a file of `length` bytes, with the same owner
    /// and mode.
    pub fn create(image: &Path, kept: u64, length: u64, progress: &Progress) -> Result<Self> {
        let image = fs::canonicalize(image)?;
        let source = File::open(&image)?;
        let metadata = source.metadata()?;
        if metadata.nlink() > 1 {
            return Err(Error::Impossible(format!(
                "the file has {} names (hard links), and a clone would replace it under one of them \
                 only: --in-place works on the file itself",
                metadata.nlink()
            )));
        }
        let filled = fill(&image, &source, &metadata, kept, length, progress);
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

    /// Replaces the image durably, unless a stop was requested.
    pub fn put_in_place(self, progress: &Progress) -> Result<()> {
        self.device.flush()?;
        progress.check()?;
        self.file.as_file().sync_all()?;
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
