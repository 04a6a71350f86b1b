//! A copy of an image file beside it, to be renamed into its place.
//!
//! If the host's file system can share blocks (reflink), the copy takes no time and no space; else
//! the data is copied and holes stay holes. The copy gets the owner and the mode of the image.
//! Until it is renamed into place its name is `.NAME.pext4-edit`. An edit holds the lock of its
//! image, so an existing file of that name was left by a killed edit, and is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice, copy_permissions, leads_to, temporary_name};
use pext4_fs::CommitOutcome;
use rustix::io::Errno;

use crate::error::{EditError, HostContext, Result};
use crate::host_data::next_data;
use crate::progress::Progress;

/// Bytes copied at a time if the system has no `copy_file_range` for these files.
const PIECE: usize = 1 << 20;
/// Bytes that the system copies at a time. Between two such steps the copy can be stopped.
const STEP: u64 = 64 << 20;

/// How an image was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneMethod {
    /// It shares its blocks with the image (reflink).
    Reflink,
    /// Its data was copied.
    Copy,
}

/// A copy of an image, which is removed on drop unless it was renamed into place.
pub(crate) struct ImageClone {
    /// The image's path, with symbolic links resolved.
    image: PathBuf,
    /// The image that was copied.
    original: File,
    temporary: PathBuf,
    device: Arc<FileDevice>,
    method: CloneMethod,
    is_in_place: bool,
}

/// Removes a file on drop, if there is one.
struct Remover(Option<PathBuf>);

impl Drop for Remover {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // The documentation names a file that cannot be removed, and the next edit removes it.
            let _ = fs::remove_file(path);
        }
    }
}

impl ImageClone {
    /// Copies an image, which is locked for writing.
    ///
    /// # Errors
    ///
    /// The image is a block device; an error of the host; [`EditError::Interrupted`]. The copy is
    /// removed then.
    pub(crate) fn new(image: &FileDevice, progress: &Progress) -> Result<Self> {
        let path = fs::canonicalize(image.path()).with_host_file(image.path(), "find it")?;
        let from = image.file();
        let metadata = from.metadata().with_host_file(&path, "look at it")?;
        check_same(&path, from)?;
        if !metadata.is_file() {
            return Err(EditError::Refused(format!(
                "{}: the edit does not fit into one transaction, and a block device cannot be \
                 replaced by a copy; split the edit, or give the image a larger journal",
                path.display()
            )));
        }
        let name = path.file_name().unwrap_or_default();
        let temporary = path.with_file_name(temporary_name(name, ".pext4-edit"));
        let to = create(&temporary)?;
        let mut remover = Remover(Some(temporary.clone()));
        let copied = copy(from, &to, metadata.len(), progress);
        progress.check()?;
        let method = copied.with_host_file(&temporary, "copy the image to it")?;
        copy_owner_and_permissions(&path, &to, &metadata)
            .with_host_file(&temporary, "give it the image's owner and mode")?;
        drop(to);
        let device = open_like(image, &temporary).with_host_file(&temporary, "open it")?;
        remover.0 = None;
        let original = from.try_clone().with_host_file(&path, "keep it open")?;
        Ok(Self {
            image: path,
            original,
            temporary,
            device: Arc::new(device),
            method,
            is_in_place: false,
        })
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::<FileDevice>::clone(&self.device)
    }

    /// Whether this device and inode number are those of the copy.
    pub(crate) fn is_stored_in(&self, device: u64, inode: u64) -> bool {
        self.device.is_stored_in(device, inode)
    }

    pub(crate) fn method(&self) -> CloneMethod {
        self.method
    }

    /// Renames the copy into the place of the image, durably.
    ///
    /// # Errors
    ///
    /// Errors of the host, or [`EditError::Interrupted`]. The image is the old one then, unless
    /// only the last flush failed: then it is an [`EditError::Commit`] with an unknown outcome.
    pub(crate) fn rename_into_place(mut self, progress: &Progress) -> Result<()> {
        let file = self.device.file();
        file.sync_all()
            .with_host_file(&self.temporary, "make it durable")?;
        progress.check()?;
        check_same(&self.temporary, file)?;
        check_same(&self.image, &self.original)?;
        fs::rename(&self.temporary, &self.image)
            .with_host_file(&self.image, "put the edited copy here")?;
        self.is_in_place = true;
        let directory = self.image.parent().unwrap_or(Path::new("/"));
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| EditError::Commit {
                path: self.image.clone(),
                outcome: CommitOutcome::Unknown,
                source: io::Error::new(
                    source.kind(),
                    format!("cannot make the new name durable: {source}"),
                )
                .into(),
            })
    }
}

impl Drop for ImageClone {
    fn drop(&mut self) {
        if !self.is_in_place {
            drop(Remover(Some(self.temporary.clone())));
        }
    }
}

fn create(path: &Path) -> Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_host_file(path, "remove what an earlier edit has left");
        }
        _ => {}
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_host_file(path, "make it")
}

/// Copies an image. If `progress` is stopped, it returns early with a part of the copy, which the
/// caller must check for.
fn copy(from: &File, to: &File, size: u64, progress: &Progress) -> io::Result<CloneMethod> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => return Ok(CloneMethod::Reflink),
        Err(Errno::NOSPC | Errno::DQUOT | Errno::IO) => {
            return Err(io::Error::other("the host's disk is full or fails"));
        }
        // The files cannot share blocks, for whatever reason.
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
    Ok(CloneMethod::Copy)
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
            Err(_) => return copy_in_pieces(from, to, input, end),
        }
    }
    Ok(())
}

/// Fails if a path does not lead to this open file any more: somebody has moved or replaced it.
fn check_same(path: &Path, file: &File) -> Result<()> {
    if leads_to(path, file).with_host_file(path, "find it again")? {
        return Ok(());
    }
    Err(EditError::Refused(format!(
        "{}: another program has moved or replaced it since it was opened; nothing was changed",
        path.display()
    )))
}

/// Opens the copy; if the image is a range of its file, then that range of the copy.
fn open_like(image: &FileDevice, copy: &Path) -> io::Result<FileDevice> {
    let device = FileDevice::open(copy, Access::ReadWrite, Duration::ZERO)?;
    match image.range() {
        None => Ok(device),
        Some(range) => device.into_range(range.start, Some(range.end - range.start)),
    }
}

fn copy_in_pieces(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
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

/// Gives the copy the permissions of the image, and its owner as far as this user may.
fn copy_owner_and_permissions(image: &Path, to: &File, metadata: &fs::Metadata) -> io::Result<()> {
    let ours = to.metadata()?;
    if (ours.uid(), ours.gid()) != (metadata.uid(), metadata.gid()) {
        // Only root can change the owner, but others can set a group that they are members of. If
        // neither works, the mode must not grant another group what it granted the image's.
        use std::os::unix::fs::fchown;
        let given = fchown(to, Some(metadata.uid()), Some(metadata.gid()))
            .or_else(|_| fchown(to, None, Some(metadata.gid())));
        if given.is_err() && ours.gid() != metadata.gid() {
            let mode = metadata.mode() & 0o700;
            return to.set_permissions(fs::Permissions::from_mode(mode));
        }
    }
    copy_permissions(image, to)
}
