//! Why an edit is refused: one line that says where, what, and what may help.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) use pext4_ondisk::shown::Shown;
use thiserror::Error;

/// The result of an edit.
pub type Result<T> = std::result::Result<T, EditError>;

/// Why an edit, a look or a copy failed. The image is what it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EditError {
    /// The image as a whole.
    #[error("{}: {source}", path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// What the file system says.
        source: pext4_fs::Error,
    },
    /// The image's file cannot be opened, or is in use (`ResourceBusy`); the error names it.
    #[error("{0}")]
    Unopened(io::Error),
    /// A path in the image.
    #[error("{}: {source}", Shown(path))]
    Inside {
        /// The path in the image.
        path: Vec<u8>,
        /// What the file system says.
        source: pext4_fs::Error,
    },
    /// A file of the host.
    #[error("{}: cannot {action}: {source}", Shown(path.as_os_str().as_bytes()))]
    Host {
        /// The file.
        path: PathBuf,
        /// What was to be done with it.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A tar that is none, or that asks for what no image gets.
    #[error("tar: {}{problem}", place(entry))]
    Tar {
        /// The entry; empty for the archive as a whole.
        entry: Vec<u8>,
        /// What is wrong.
        problem: String,
    },
    /// Something that is refused, with the path in the image.
    #[error("{}: {problem}", Shown(path))]
    Refused {
        /// The path.
        path: Vec<u8>,
        /// Why.
        problem: String,
    },
    /// Something that is refused as a whole.
    #[error("{0}")]
    Whole(String),
    /// It was asked to stop.
    #[error("interrupted; nothing was changed and nothing left behind")]
    Interrupted,
}

fn place(entry: &[u8]) -> String {
    match entry {
        b"" => String::new(),
        _ => format!("{}: ", Shown(entry)),
    }
}

/// Puts the path of the image's file system error beside it.
pub(crate) trait At<T> {
    /// An error in the image, at this path.
    fn at(self, path: &[u8]) -> Result<T>;
    /// An error of the image as a whole.
    fn of(self, image: &Path) -> Result<T>;
}

impl<T> At<T> for pext4_fs::Result<T> {
    fn at(self, path: &[u8]) -> Result<T> {
        self.map_err(|source| EditError::Inside {
            path: path.to_vec(),
            source,
        })
    }

    fn of(self, image: &Path) -> Result<T> {
        self.map_err(|source| EditError::Image {
            path: image.to_owned(),
            source,
        })
    }
}

/// Puts the host's file beside an error of the system.
pub(crate) trait On<T> {
    /// An error of the host, with the file and what was to be done.
    fn on(self, path: &Path, action: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> On<T> for std::result::Result<T, E> {
    fn on(self, path: &Path, action: &'static str) -> Result<T> {
        self.map_err(|source| EditError::Host {
            path: path.to_owned(),
            action,
            source: source.into(),
        })
    }
}

/// A refusal with the path in the image.
pub(crate) fn refuse<T>(path: &[u8], problem: impl Into<String>) -> Result<T> {
    Err(EditError::Refused {
        path: path.to_vec(),
        problem: problem.into(),
    })
}

/// Refuses an empty path. POSIX has no file of that name; taken for the root, a variable that a script
/// has not set would change everything.
pub(crate) fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        let problem = "an empty path leads nowhere; `/` is the root";
        return Err(EditError::Whole(problem.to_owned()));
    }
    Ok(())
}
