//! A copy of an image file beside it, to be renamed into its place.
//!
//! Where the host's file system can share blocks (reflink) the copy is made in an instant and takes
//! no room; else the data is copied and holes stay holes. It gets the owner and the mode of the
//! image. Until it is put in place its name is `.NAME.pext4-edit`; who edits an image holds its
//! lock, so a file of that name is what a killed edit has left, and is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice, temporary_name};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::{EditError, On, Result};
use crate::progress::Progress;

/// Bytes copied at once where the system cannot do it by itself.
const PIECE: usize = 1 << 20;
/// Bytes that the system copies at once: between two such steps the copy can be stopped.
const STEP: u64 = 64 << 20;

/// How a copy came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It shares its blocks with the image (reflink).
    Reflink,
    /// Its data was copied.
    Copy,
}

/// A copy of an image, removed unless it is put in place.
pub(crate) struct Twin {
    /// The image, no symbolic link.
    image: PathBuf,
    temporary: PathBuf,
    device: Arc<FileDevice>,
    made: Made,
    placed: bool,
}

/// Removes a file unless told otherwise.
struct Remover(Option<PathBuf>);

impl Drop for Remover {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // What stays is named in the documentation, and the next edit removes it.
            let _ = fs::remove_file(path);
        }
    }
}

impl Twin {
    /// Copies an image, which is locked for writing.
    ///
    /// # Errors
    ///
    /// It is a block device; the host refuses or is full; it is to stop. Nothing is left then.
    pub(crate) fn new(image: &FileDevice, progress: &Progress) -> Result<Self> {
        let path = fs::canonicalize(image.path()).on(image.path(), "find it")?;
        let from = image.file();
        let facts = from.metadata().on(&path, "look at it")?;
        if !facts.is_file() {
            return Err(EditError::Whole(format!(
                "{}: the edit does not fit into one transaction, and a block device cannot be \
                 replaced by a copy; split the edit, or give the image a larger journal",
                path.display()
            )));
        }
        let name = path.file_name().unwrap_or_default();
        let temporary = path.with_file_name(temporary_name(name, ".pext4-edit"));
        let to = create(&temporary)?;
        let mut remover = Remover(Some(temporary.clone()));
        let made = copy(from, &to, facts.len(), progress);
        progress.check()?;
        let made = made.on(&temporary, "copy the image to it")?;
        take_after(&to, &facts).on(&temporary, "give it the image's owner and mode")?;
        drop(to);
        let device = FileDevice::open(&temporary, Access::ReadWrite, Duration::ZERO)
            .on(&temporary, "open it")?;
        remover.0 = None;
        Ok(Self {
            image: path,
            temporary,
            device: Arc::new(device),
            made,
            placed: false,
        })
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::<FileDevice>::clone(&self.device)
    }

    pub(crate) fn made(&self) -> Made {
        self.made
    }

    /// Puts it in the place of the image, durably.
    ///
    /// # Errors
    ///
    /// The host's, or it is to stop; the image is the old one then, unless only the last flush failed.
    pub(crate) fn place(mut self, progress: &Progress) -> Result<()> {
        let file = self.device.file();
        file.sync_all().on(&self.temporary, "make it durable")?;
        progress.check()?;
        fs::rename(&self.temporary, &self.image).on(&self.image, "put the edited copy here")?;
        self.placed = true;
        let directory = self.image.parent().unwrap_or(Path::new("/"));
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .on(directory, "make the new name durable")
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        if !self.placed {
            drop(Remover(Some(self.temporary.clone())));
        }
    }
}

fn create(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).on(path, "remove what an earlier edit has left");
        }
        _ => {}
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .on(path, "make it")
}

/// Copies all of an image, or what there was time for before it was to stop.
fn copy(from: &File, to: &File, size: u64, progress: &Progress) -> io::Result<Made> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => return Ok(Made::Reflink),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::IO) => {
            return Err(io::Error::other("the host's disk is full or fails"));
        }
        // Whatever the reason: it cannot be shared.
        Err(_) => {}
    }
    to.set_len(size)?;
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        let end = end.min(start.saturating_add(STEP));
        copy_range(from, to, start, end)?;
        at = end;
        if progress.is_stopped() {
            break;
        }
    }
    Ok(Made::Copy)
}

/// The next run of data at or after `at`.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A host that knows no holes has data everywhere.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    Ok(Some((start, end.min(size))))
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut input, mut output) = (start, start);
    while input < end {
        let left = usize::try_from(end - input).unwrap_or(usize::MAX);
        let step = rustix::fs::copy_file_range(from, Some(&mut input), to, Some(&mut output), left);
        match step {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => return Err(io::ErrorKind::StorageFull.into()),
            Err(_) => return copy_by_hand(from, to, input, end),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut piece = vec![0; PIECE];
    let mut at = start;
    while at < end {
        let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
        from.read_exact_at(&mut piece[..length], at)?;
        to.write_all_at(&piece[..length], at)?;
        at += length as u64;
    }
    Ok(())
}

/// The owner, as far as we may, and the mode.
fn take_after(to: &File, facts: &fs::Metadata) -> io::Result<()> {
    let ours = to.metadata()?;
    if (ours.uid(), ours.gid()) != (facts.uid(), facts.gid()) {
        // Nobody but root can give a file away, though to a group of one's own; else the mode must not open more than
        // it did.
        use std::os::unix::fs::fchown;
        let given = fchown(to, Some(facts.uid()), Some(facts.gid()))
            .or_else(|_| fchown(to, None, Some(facts.gid())));
        if given.is_err() && ours.gid() != facts.gid() {
            let mode = facts.mode() & 0o700;
            return to.set_permissions(fs::Permissions::from_mode(mode));
        }
    }
    to.set_permissions(fs::Permissions::from_mode(facts.mode() & 0o7777))
}
