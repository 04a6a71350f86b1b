//! The errors of edits and copies: one line that says where, what, and what may help.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pext4_block::Stopped;
use pext4_fs::{CommitOutcome, Refusal, Volume};
pub(crate) use pext4_ondisk::shown::Shown;
use pext4_tar::Malformed;
use thiserror::Error;

use crate::image_tree::ImageFile;
use crate::mode::InvalidMode;

/// The result of an edit.
pub type Result<T> = std::result::Result<T, EditError>;

/// Why an edit, a walk or a copy failed. The image has not changed, unless it is a
/// [`EditError::Commit`] that says otherwise.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EditError {
    /// A file system error that concerns the image as a whole.
    #[error("{}: {source}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// The error of the file system.
        source: pext4_fs::Error,
    },
    /// The commit of an edit failed; `outcome` tells whether the image has changed.
    #[error("{}: {source}{}", path.display(), consequence(*outcome))]
    Commit {
        /// The image.
        path: PathBuf,
        /// The state of the image.
        outcome: CommitOutcome,
        /// The error of the file system.
        source: pext4_fs::Error,
    },
    /// The image's file cannot be opened, or is in use (`ResourceBusy`). The error names the file.
    #[error("{0}")]
    OpenImage(#[source] io::Error),
    /// A file system error at a path in the image.
    #[error("{}: {source}{}", place(image.as_deref(), path), advice(source))]
    AtPath {
        /// The image, if it is a file.
        image: Option<PathBuf>,
        /// The path in the image.
        path: Vec<u8>,
        /// The error of the file system.
        source: pext4_fs::Error,
    },
    /// A system call on a file of the host failed.
    #[error("{}: cannot {action}: {source}", Shown(path.as_os_str().as_bytes()))]
    Host {
        /// The file.
        path: PathBuf,
        /// What was attempted, as in "cannot {action}".
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// A malformed tar, or one with an entry that no image can get.
    #[error("tar: {0}")]
    Tar(Malformed),
    /// An entry of a tar that could not be made, with the reason.
    #[error("tar: {}: {source}", Shown(entry))]
    TarEntry {
        /// The name of the entry.
        entry: Vec<u8>,
        /// Why, with the path in the image.
        source: Box<EditError>,
    },
    /// A change that is refused at a path in the image.
    #[error("{}: {problem}", place(image.as_deref(), path))]
    RefusedAtPath {
        /// The image, if it is a file.
        image: Option<PathBuf>,
        /// The path.
        path: Vec<u8>,
        /// Why.
        problem: String,
    },
    /// An edit that is refused as a whole.
    #[error("{0}")]
    Refused(String),
    /// A text is no change of permissions.
    #[error(transparent)]
    InvalidMode(#[from] InvalidMode),
    /// A change of this session failed before, so none of its changes can be committed.
    #[error("a change failed before, so nothing is changed: begin again with a new session")]
    ChangeFailed,
    /// [`Progress::stop`](crate::Progress::stop) was called.
    #[error("interrupted; nothing was changed and nothing left behind")]
    Interrupted,
    /// An error of the caller's own code, as of a visitor of [`Reader::walk`](crate::Reader::walk).
    #[error(transparent)]
    Caller(Box<dyn std::error::Error + Send + Sync>),
}

impl From<Stopped> for EditError {
    fn from(_: Stopped) -> Self {
        Self::Interrupted
    }
}

impl EditError {
    /// An error of the caller's own, to end a walk with.
    pub fn caller(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Caller(error.into())
    }

    /// The kind of what caused it, which is that of the error of the system that it becomes.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Image { source, .. }
            | Self::Commit { source, .. }
            | Self::AtPath { source, .. } => source.kind(),
            Self::OpenImage(source) | Self::Host { source, .. } => source.kind(),
            Self::TarEntry { source, .. } => source.kind(),
            Self::Tar(_) => io::ErrorKind::InvalidData,
            Self::RefusedAtPath { .. } | Self::Refused(_) | Self::InvalidMode(_) => {
                io::ErrorKind::InvalidInput
            }
            Self::Interrupted => io::ErrorKind::Interrupted,
            Self::ChangeFailed => io::ErrorKind::Other,
            Self::Caller(error) => {
                let error = error.downcast_ref::<io::Error>();
                error.map_or(io::ErrorKind::Other, io::Error::kind)
            }
        }
    }

    /// Adds the image to an error at a path, unless it states one: that of the innermost caller,
    /// which knows it best.
    pub(crate) fn in_image(mut self, file: Option<&Path>) -> Self {
        self.add_image(file);
        self
    }

    fn add_image(&mut self, file: Option<&Path>) {
        match self {
            Self::AtPath { image, .. } | Self::RefusedAtPath { image, .. } if image.is_none() => {
                *image = file.map(Path::to_owned);
            }
            Self::TarEntry { source, .. } => source.add_image(file),
            _ => {}
        }
    }

    /// The error with the name of the entry of a tar that it is about, if it is about a path.
    pub(crate) fn of_entry(self, entry: &[u8]) -> Self {
        match self {
            Self::AtPath { .. } | Self::RefusedAtPath { .. } => Self::TarEntry {
                entry: entry.to_vec(),
                source: Box::new(self),
            },
            other => other,
        }
    }
}

/// Keeps the kind of what caused it; `error.get_ref()` and a downcast give the error back.
impl From<EditError> for io::Error {
    fn from(error: EditError) -> Self {
        Self::new(error.kind(), error)
    }
}

fn consequence(outcome: CommitOutcome) -> &'static str {
    match outcome {
        CommitOutcome::NotCommitted => "",
        CommitOutcome::Abandoned => {
            "; nothing was changed, but the next mount may have an empty journal to replay"
        }
        CommitOutcome::Unknown => "; whether the edit was made shows when the image is next opened",
        CommitOutcome::Committed => "; the edit is made as soon as the image is opened for writing",
    }
}

/// What helps to understand an error of the file system.
fn advice(source: &pext4_fs::Error) -> &'static str {
    match source.is(Refusal::NotPermitted) {
        true => " (`pext4 stat` shows whether a flag forbids it, such as immutable)",
        false => "",
    }
}

/// A path in an image, as `IMAGE:/path`: a host may have the same path.
fn place(image: Option<&Path>, path: &[u8]) -> String {
    let path = plain(path);
    let Some(image) = image else {
        return Shown(&path).to_string();
    };
    let image = Shown(image.as_os_str().as_bytes());
    let slash = if path.starts_with(b"/") { "" } else { "/" };
    format!("{image}:{slash}{}", Shown(&path))
}

/// A path without the `.` and the slashes that say nothing, which archives and scripts bring.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut plain: Vec<u8> = Vec::with_capacity(path.len());
    for &byte in path {
        plain.push(byte);
        let needless = match () {
            () if plain.ends_with(b"/./") => 2,
            () if plain.ends_with(b"//") => 1,
            () => 0,
        };
        plain.truncate(plain.len() - needless);
    }
    plain
}

/// Adds the image or the path in it to an error of the file system.
pub(crate) trait FsContext<T> {
    /// Turns an error into [`EditError::AtPath`].
    fn with_path(self, path: &[u8]) -> Result<T>;
    /// As [`Self::with_path`], with the path of a file.
    fn with_file(self, file: &ImageFile) -> Result<T>;
    /// Turns an error into [`EditError::Image`].
    fn with_image(self, image: &Path) -> Result<T>;
}

impl<T> FsContext<T> for pext4_fs::Result<T> {
    fn with_path(self, path: &[u8]) -> Result<T> {
        self.map_err(|source| EditError::AtPath {
            image: None,
            path: path.to_vec(),
            source,
        })
    }

    fn with_file(self, file: &ImageFile) -> Result<T> {
        self.or_else(|error| Err(error).with_path(&file.path()))
    }

    fn with_image(self, image: &Path) -> Result<T> {
        self.map_err(|source| EditError::Image {
            path: image.to_owned(),
            source,
        })
    }
}

/// Adds the file of the image to errors at a path in it.
pub(crate) trait ImageContext {
    /// As [`EditError::in_image`].
    fn in_image(self, file: Option<&Path>) -> Self;
}

impl<T> ImageContext for Result<T> {
    fn in_image(self, file: Option<&Path>) -> Self {
        self.map_err(|error| error.in_image(file))
    }
}

/// Adds the host's file to an error of the system.
pub(crate) trait HostContext<T> {
    /// Turns an error into [`EditError::Host`]. `action` completes "cannot ...".
    fn with_host_file(self, path: &Path, action: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> HostContext<T> for std::result::Result<T, E> {
    fn with_host_file(self, path: &Path, action: &'static str) -> Result<T> {
        self.map_err(|source| EditError::Host {
            path: path.to_owned(),
            action,
            source: source.into(),
        })
    }
}

/// Adds the path to an error of setting an extended attribute; if a block of the image is too small
/// for all attributes of the file, also says so.
pub(crate) fn of_attribute<T>(
    done: pext4_fs::Result<T>,
    volume: &Volume,
    path: &[u8],
) -> Result<T> {
    match done {
        Err(error) if error.is(Refusal::AttributesFull) => {
            let size = volume.statfs().block_size;
            let problem = format!(
                "{error}: what its inode cannot hold shares one block of the image, of {size} bytes"
            );
            refuse(path, problem)
        }
        done => done.with_path(path),
    }
}

/// Fails with [`EditError::RefusedAtPath`].
pub(crate) fn refuse<T>(path: &[u8], problem: impl Into<String>) -> Result<T> {
    Err(EditError::RefusedAtPath {
        image: None,
        path: path.to_vec(),
        problem: problem.into(),
    })
}

/// Refuses an empty path. POSIX has no file of that name. If an empty path meant the root, a
/// variable that a script has not set would change everything.
pub(crate) fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        let problem = "an empty path leads nowhere; `/` is the root";
        return Err(EditError::Refused(problem.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{EditError, Refusal, io};

    #[test]
    fn an_error_is_found_again_in_one_of_the_system() {
        let missing = EditError::AtPath {
            image: None,
            path: b"/file".to_vec(),
            source: Refusal::NotFound.into(),
        };
        let missing = io::Error::from(missing);
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let found = missing.get_ref().and_then(|error| error.downcast_ref());
        assert!(matches!(found, Some(EditError::AtPath { .. })));
        let callers = EditError::caller(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(io::Error::from(callers).kind(), io::ErrorKind::BrokenPipe);
    }
}
