//! An image that is only read: nothing is written to it, its journal is replayed in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Access, Device, FileDevice};
use pext4_fs::{Attributes, FileType, MountOptions, Volume};

use crate::error::{At, EditError, Result, check_path};
use crate::plant::MAX_DEPTH;
use crate::progress::Progress;
use crate::source::Source;
use crate::tree::{Image, Place};

/// How long to wait for whoever changes the image.
const PATIENCE: Duration = Duration::from_secs(5);

/// An opened image.
pub struct Reader {
    volume: Volume,
    progress: Arc<Progress>,
}

/// A file on a walk.
#[derive(Clone, Debug)]
pub struct Visited {
    /// Its path, from the image's root.
    pub path: Vec<u8>,
    /// What `lstat` tells.
    pub attributes: Attributes,
}

impl Reader {
    /// Opens an image.
    ///
    /// # Errors
    ///
    /// It cannot be opened, is being changed, or is no ext4 that this version reads.
    pub fn open(image: &Path) -> Result<Self> {
        let device = FileDevice::open(image, Access::ReadOnly, PATIENCE);
        Self::start(Arc::new(device.map_err(EditError::Unopened)?), image)
    }

    /// Opens an image on any device.
    ///
    /// # Errors
    ///
    /// As [`Reader::open`].
    pub fn on(device: Arc<dyn Device>) -> Result<Self> {
        Self::start(device, Path::new("image"))
    }

    fn start(device: Arc<dyn Device>, name: &Path) -> Result<Self> {
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        Ok(Self {
            volume: Volume::open(device, options).of(name)?,
            progress: Arc::default(),
        })
    }

    /// The file system.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// How far copying out is, to be looked at meanwhile. It counts all copies of this reader.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// Finds a path; a symbolic link at its end is not followed.
    pub(crate) fn place(&self, path: &[u8]) -> Result<Place> {
        check_path(path)?;
        let held = self.volume.paths().resolve_link(path).at(path)?;
        Ok(Place {
            inode: held.inode(),
            path: path.to_vec(),
        })
    }

    /// Visits a file and everything below it, each directory before what is in it, names in order.
    ///
    /// # Errors
    ///
    /// What `visit` says; `Inside` for what cannot be read. Directories that form a circle are
    /// corruption.
    pub fn walk(
        &self,
        path: impl AsRef<[u8]>,
        visit: &mut dyn FnMut(&Visited) -> Result<()>,
    ) -> Result<()> {
        let image = Image::new(&self.volume);
        let mut rest = vec![(self.place(path.as_ref())?, 0)];
        while let Some((place, depth)) = rest.pop() {
            let attributes = image.attributes(&place)?;
            let is_directory = attributes.file_type == FileType::Directory;
            let visited = Visited {
                path: place.path.clone(),
                attributes,
            };
            visit(&visited)?;
            if !is_directory {
                continue;
            }
            check_depth(depth, &place.path)?;
            let children = image.children(&place)?;
            rest.extend(
                children
                    .into_iter()
                    .rev()
                    .map(|(_, child)| (child, depth + 1)),
            );
        }
        Ok(())
    }
}

/// Refuses a tree that is too deep for a host.
pub(crate) fn check_depth(depth: u32, path: &[u8]) -> Result<()> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    Err(EditError::Refused {
        path: path.to_vec(),
        problem: format!("more than {MAX_DEPTH} directories in one another"),
    })
}
