//! Errors of a build. Each names the path that it is about.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pext4_block::Stopped;
use pext4_ondisk::shown::Shown;
use thiserror::Error as ThisError;

/// The result of a build.
pub type Result<T> = std::result::Result<T, Error>;

/// Why no image was built. A failed build leaves nothing under the image's name, and an existing
/// image is unchanged, except if only the folder could not be synced afterwards: then the image is
/// complete.
#[derive(Debug, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// A source cannot be read.
    #[error("{}: cannot {action}: {cause}", shown(path))]
    Source {
        /// The path of the file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// A source contains something that is invalid or cannot be stored in the image.
    #[error("{}: {}", shown(path), Shown(problem.as_bytes()))]
    Unsound {
        /// The path where it was found.
        path: PathBuf,
        /// The problem, and how to avoid it.
        problem: String,
    },
    /// A file was modified after its size and times were read.
    #[error("{}: it changed while it was read", shown(path))]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The image cannot be written.
    #[error("{}: cannot {action}: {cause}", shown(path))]
    Output {
        /// The image, or the temporary file that becomes the image.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
    /// The image that was to be replaced is in use: its kind is `ResourceBusy`, and the text names
    /// it.
    #[error(transparent)]
    InUse(io::Error),
    /// The request cannot be satisfied. The text names the image and says what would work instead.
    #[error("{0}")]
    Impossible(String),
    /// The file system of the image cannot be laid out.
    #[error("{}: {cause}", shown(image))]
    Layout {
        /// The image.
        image: PathBuf,
        /// Why not.
        #[source]
        cause: crate::Error,
    },
    /// The caller asked to stop.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
}

fn shown(path: &Path) -> Shown<'_> {
    Shown(path.as_os_str().as_bytes())
}

impl From<Stopped> for Error {
    fn from(_: Stopped) -> Self {
        Self::Interrupted
    }
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

    /// An error that does not name the image yet: see [`Self::in_image`].
    pub(super) fn impossible(text: impl Into<String>) -> Self {
        Self::Impossible(text.into())
    }

    /// An error of the layout of this image. [`Self::in_image`] names it where this does not.
    pub(super) fn layout(image: &Path, cause: crate::Error) -> Self {
        match cause {
            crate::Error::Impossible(text) => Self::Impossible(text),
            crate::Error::Interrupted => Self::Interrupted,
            cause => Self::Layout {
                image: image.to_owned(),
                cause,
            },
        }
    }

    /// The kind of what caused it, which is that of the error of the system that it becomes.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Source { cause, .. } | Self::Output { cause, .. } | Self::InUse(cause) => {
                cause.kind()
            }
            Self::Unsound { .. } => io::ErrorKind::InvalidData,
            Self::Changed { .. } => io::ErrorKind::Other,
            Self::Impossible(_) => io::ErrorKind::InvalidInput,
            Self::Layout { cause, .. } => cause.kind(),
            Self::Interrupted => io::ErrorKind::Interrupted,
        }
    }

    /// Names the image in an error of which no source is the cause: what plans an image does not
    /// know its name.
    pub(super) fn in_image(self, image: &Path) -> Self {
        match self {
            Self::Impossible(text) => Self::Impossible(format!("{}: {text}", shown(image))),
            error => error,
        }
    }
}

/// Keeps the kind of what caused it; `error.get_ref()` and a downcast give the error back.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

/// A text of a user that is not what it should be. The message shows the text and the right form.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("{0}")]
pub struct ParseError(pub(super) String);

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;
    use std::path::Path;

    use super::Error;

    #[test]
    fn an_error_of_the_layout_keeps_who_is_to_blame() {
        let layout = |cause| Error::layout(Path::new("x.img"), cause);
        let error = layout(crate::Error::Io(io::ErrorKind::StorageFull.into()));
        let cause = error.source().expect("the layout's");
        assert_eq!(error.to_string(), format!("x.img: {cause}"));
        let kept = cause.downcast_ref::<crate::Error>();
        assert!(matches!(kept, Some(crate::Error::Io(_))), "{cause}");
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::StorageFull);
        let stopped = layout(crate::Error::Interrupted);
        assert!(matches!(stopped, Error::Interrupted));
        let refused = layout(crate::Error::Impossible("too small".to_owned()));
        let refused = refused.in_image(Path::new("x.img"));
        assert!(matches!(refused, Error::Impossible(text) if text == "x.img: too small"));
    }
}
