//! An image that is only read. Its journal is replayed in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pext4_block::{Access, Device, FileDevice};
use pext4_fs::path::AsVolumePath;
use pext4_fs::{Attributes, FileType, MountOptions, Volume};

use crate::error::{EditError, FsContext, ImageContext, Result, check_path, refuse};
use crate::image_tree::{Children, ImageFile, ImageTree};
use crate::tree_writer::{MAX_DEPTH, TOO_DEEP};
use crate::unreadable::{OnSkipped, Unreadable};

/// An opened image.
///
/// ```
/// use std::sync::Arc;
///
/// # use pext4_block::RamDevice;
/// # use pext4_image::mkfs;
/// use pext4_edit::Reader;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Arc::new(RamDevice::new(64 << 20));
/// # mkfs::mkfs(&*device, &mkfs::Options::default())?;
/// // Or `Reader::open` of a file, or `Reader::open_at` of a partition.
/// let reader = Reader::from_device(device)?;
/// let mut names = Vec::new();
/// reader.walk("/", &mut |file| {
///     names.push(String::from_utf8_lossy(&file.path).into_owned());
///     Ok(())
/// })?;
/// assert_eq!(names, ["/", "/lost+found"]);
/// let attributes = reader.volume().paths().link_attributes("/lost+found")?;
/// assert_eq!(attributes.mode, 0o040_700);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    volume: Volume,
    /// The image's file, if it is one.
    file: Option<PathBuf>,
}

/// Threads share a reader.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Reader>();
};

/// A file on a walk.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Visited {
    /// Its path, from the image's root.
    pub path: Vec<u8>,
    /// Its attributes, as of lstat(2).
    pub attributes: Attributes,
}

impl Reader {
    /// Opens an image. If it is being changed, waits for that to end, up to
    /// [`FileDevice::USUAL_WAIT`]; with [`Reader::from_file`] the caller decides how long.
    ///
    /// # Errors
    ///
    /// The image cannot be opened, is still being changed, or is not an ext4 that this version
    /// reads.
    pub fn open(image: impl AsRef<Path>) -> Result<Self> {
        let device = FileDevice::open(image, Access::ReadOnly, FileDevice::USUAL_WAIT);
        Self::from_file(device.map_err(EditError::OpenImage)?)
    }

    /// Opens an image that begins at a byte of a file: 0, or the start of a partition. Waits as
    /// [`Reader::open`].
    ///
    /// # Errors
    ///
    /// As [`Reader::open`]; the file ends before that byte.
    pub fn open_at(file: impl AsRef<Path>, offset: u64) -> Result<Self> {
        if offset == 0 {
            return Self::open(file);
        }
        let device =
            FileDevice::open_range(file, offset, None, Access::ReadOnly, FileDevice::USUAL_WAIT);
        Self::from_file(device.map_err(EditError::OpenImage)?)
    }

    /// Opens an image whose file was opened.
    ///
    /// # Errors
    ///
    /// The image is not an ext4 that this version reads.
    pub fn from_file(device: FileDevice) -> Result<Self> {
        let file = device.path().to_owned();
        let reader = Self::start(Arc::new(device), &file)?;
        Ok(Self {
            file: Some(file),
            ..reader
        })
    }

    /// Opens an image on any device.
    ///
    /// # Errors
    ///
    /// As [`Reader::from_file`].
    pub fn from_device(device: Arc<dyn Device>) -> Result<Self> {
        Self::start(device, Path::new("image"))
    }

    /// Reads a volume that is open, with options that are the caller's: the size of its cache, or
    /// that a damaged journal is not looked at ([`MountOptions::skip_replay`]).
    #[must_use]
    pub fn from_volume(volume: Volume) -> Self {
        Self { volume, file: None }
    }

    fn start(device: Arc<dyn Device>, name: &Path) -> Result<Self> {
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let volume = Volume::open(device, options).with_image(name)?;
        Ok(Self::from_volume(volume))
    }

    /// The file system.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The image's file, for errors.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The image as a source, with errors that name it.
    pub(crate) fn tree(&self) -> ImageTree<'_> {
        ImageTree::of_file(&self.volume, self.file())
    }

    /// Finds a path; a symbolic link at its end is not followed.
    pub(crate) fn find(&self, path: &[u8]) -> Result<ImageFile> {
        check_path(path)?;
        let held = self.volume.paths().resolve_link(path).with_path(path);
        let held = held.in_image(self.file())?;
        Ok(ImageFile::top(held.inode(), path))
    }

    /// Visits a file and everything below it: each directory before its children, names in order.
    ///
    /// # Errors
    ///
    /// The errors of `visit`, which makes one of its own with [`EditError::caller`]; `AtPath` for a
    /// file that cannot be read. Directories that form a cycle are corruption.
    pub fn walk(
        &self,
        path: impl AsVolumePath,
        visit: &mut dyn FnMut(&Visited) -> Result<()>,
    ) -> Result<()> {
        self.visit_each(path, visit, &mut Unreadable::new(None))
    }

    /// As [`Reader::walk`], but goes on past damage: files, names and directories that cannot be
    /// read are not visited, and `on_skipped` is told of each. Returns how many there were.
    ///
    /// # Errors
    ///
    /// The errors of `visit`; the path itself cannot be found.
    pub fn walk_readable(
        &self,
        path: impl AsVolumePath,
        visit: &mut dyn FnMut(&Visited) -> Result<()>,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<u64> {
        let mut unreadable = Unreadable::new(Some(on_skipped));
        self.visit_each(path, visit, &mut unreadable)?;
        Ok(unreadable.skipped)
    }

    fn visit_each(
        &self,
        path: impl AsVolumePath,
        visit: &mut dyn FnMut(&Visited) -> Result<()>,
        unreadable: &mut Unreadable<'_, '_>,
    ) -> Result<()> {
        let image = self.tree();
        let mut visit_one = |file: ImageFile, depth: u32| -> Result<Option<Children>> {
            let Some(attributes) = unreadable.or_skip(image.attributes(&file))? else {
                return Ok(None);
            };
            let is_directory = attributes.file_type == FileType::Directory;
            let visited = Visited {
                path: file.path(),
                attributes,
            };
            visit(&visited)?;
            if !is_directory {
                return Ok(None);
            }
            let checked = check_depth(depth, &file).in_image(self.file());
            if unreadable.or_skip(checked)?.is_none() {
                return Ok(None);
            }
            image.readable_children(&file, unreadable).map(Some)
        };
        // Directories on the way from the top, and what is still to be visited of each.
        let mut open = Vec::from_iter(visit_one(self.find(path.as_volume_path())?, 0)?);
        while let Some(children) = open.last_mut() {
            match children.next() {
                Some((_, file)) => open.extend(visit_one(file, open.len() as u32)?),
                None => drop(open.pop()),
            }
        }
        Ok(())
    }
}

/// Refuses a tree that is deeper than a host accepts.
pub(crate) fn check_depth(depth: u32, directory: &ImageFile) -> Result<()> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    refuse(&directory.path(), TOO_DEEP)
}

/// What is said of an image that the kernel has mounted for writing on a directory, when it is
/// read.
#[must_use]
pub fn mounted_by_kernel(directory: &Path) -> String {
    format!(
        "the kernel has it mounted on {}, and writes to it: what is read here may lack something, or \
         be of different moments",
        directory.display()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_block::RamDevice;
    use pext4_fs::{MountOptions, Volume};
    use pext4_image::mkfs;

    use super::Reader;

    #[test]
    fn a_volume_of_the_caller_is_read() {
        let device = Arc::new(RamDevice::new(16 << 20));
        mkfs::mkfs(&*device, &mkfs::Options::default()).expect("sound");
        let options = MountOptions {
            cache_size: 4 << 20,
            ..MountOptions::default()
        };
        let volume = Volume::open(device, options).expect("a sound image");
        volume.paths().write("/file", "content").expect("room");
        let reader = Reader::from_volume(volume);
        let mut sizes = Vec::new();
        let mut visit = |visited: &super::Visited| {
            sizes.push((visited.path.clone(), visited.attributes.size));
            Ok(())
        };
        reader.walk("/file", &mut visit).expect("it is there");
        assert_eq!(sizes, [(b"/file".to_vec(), 7)]);
    }
}
