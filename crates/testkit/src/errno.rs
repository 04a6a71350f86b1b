//! The names of Linux's error numbers, as far as the tests use them.

use std::fmt;

/// A refusal of a subject: only the number is compared, the text is for messages.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The errno of Linux.
    pub errno: i32,
    /// The subject's own message.
    pub text: String,
}

impl Failure {
    /// A refusal with only its number.
    #[must_use]
    pub fn new(errno: i32) -> Self {
        Self {
            errno,
            text: String::new(),
        }
    }
}

impl PartialEq for Failure {
    fn eq(&self, other: &Self) -> bool {
        self.errno == other.errno
    }
}

impl Eq for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", name(self.errno))?;
        if !self.text.is_empty() {
            write!(formatter, " ({})", self.text)?;
        }
        Ok(())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self {
            errno: error.raw_os_error().unwrap_or(EIO),
            text: error.to_string(),
        }
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::from(std::io::Error::from(error))
    }
}

impl From<pext4_fs::Error> for Failure {
    fn from(error: pext4_fs::Error) -> Self {
        Self {
            errno: error.errno(),
            text: error.to_string(),
        }
    }
}

macro_rules! numbers {
    ($($name:ident = $number:literal),* $(,)?) => {
        $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: i32 = $number;)*

        /// The name of an error number.
        #[must_use]
        pub fn name(errno: i32) -> String {
            match errno {
                $($number => stringify!($name).to_owned(),)*
                other => format!("errno {other}"),
            }
        }
    };
}

numbers! {
    EPERM = 1, ENOENT = 2, EIO = 5, ENXIO = 6, E2BIG = 7, EBADF = 9, EACCES = 13, EBUSY = 16,
    EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, EFBIG = 27,
    ENOSPC = 28, EROFS = 30, EMLINK = 31, ERANGE = 34, ENAMETOOLONG = 36, ENOTEMPTY = 39,
    ELOOP = 40, ENODATA = 61, EBADMSG = 74, EOPNOTSUPP = 95, ESTALE = 116, EUCLEAN = 117,
    EDQUOT = 122,
}

/// The names of several error numbers.
#[must_use]
pub fn names(errnos: &[i32]) -> String {
    errnos
        .iter()
        .map(|&errno| name(errno))
        .collect::<Vec<_>>()
        .join(" or ")
}
