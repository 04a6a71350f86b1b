//! What can go wrong while an image is built: each error names the path it is about.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pext4_ondisk::shown::Shown;
use thiserror::Error as ThisError;

/// The result of building.
pub type Result<T> = std::result::Result<T, Error>;

/// Why no image was built. Nothing is left under the image's name then, and what was there before
/// is as it was.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// Something that the image is made from cannot be read.
    #[error("{}: cannot {action}: {cause}", shown(path))]
    Source {
        /// What it is.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// Something was read that cannot be put into the image, or makes no sense.
    #[error("{}: {}", shown(path), Shown(problem.as_bytes()))]
    Unsound {
        /// Where it was found.
        path: PathBuf,
        /// What is wrong with it, and what would help.
        problem: String,
    },
    /// A file is not what it was when its size and times were read.
    #[error("{}: it changed while it was read", shown(path))]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The image cannot be written.
    #[error("{}: cannot {action}: {cause}", shown(path))]
    Output {
        /// The image, or the file beside it that becomes the image.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// What was asked for cannot be made; the text says what would do.
    #[error("{0}")]
    Impossible(String),
    /// The caller asked to stop.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
}

fn shown(path: &Path) -> Shown<'_> {
    Shown(path.as_os_str().as_bytes())
}

impl Error {
    pub(super) fn source(
        path: impl AsRef<Path>,
        action: &'static str,
        cause: impl Into<io::Error>,
    ) -> Self {
        Self::Source {
            path: path.as_ref().to_owned(),
            action,
            cause: cause.into(),
        }
    }

    pub(super) fn output(
        path: impl AsRef<Path>,
        action: &'static str,
        cause: impl Into<io::Error>,
    ) -> Self {
        Self::Output {
            path: path.as_ref().to_owned(),
            action,
            cause: cause.into(),
        }
    }

    pub(super) fn unsound(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Self::Unsound {
            path: path.as_ref().to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn impossible(text: impl Into<String>) -> Self {
        Self::Impossible(text.into())
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Self::Impossible(error.to_string())
    }
}
