//! What a mount shows as its device: the path of the image, and behind it, if the file system does
//! not begin with the file, `?offset=BYTES`, as e2fsprogs writes such places. A path that itself
//! ends so is followed by `?offset=0`, so that a text has one meaning.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::Mount;

const MARK: &[u8] = b"?offset=";

/// Where a file system is: in which file or block device, and from which byte on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The file or block device.
    pub file: PathBuf,
    /// The first byte of the file system in it.
    pub offset: u64,
}

impl Source {
    /// The source of a mount of pext4.
    #[must_use]
    pub fn of(mount: &Mount) -> Self {
        Self::parse(mount.source.as_os_str())
    }

    fn parse(text: &OsStr) -> Self {
        let (file, offset) = split(text.as_bytes()).unwrap_or((text.as_bytes(), 0));
        Self {
            file: Path::new(OsStr::from_bytes(file)).to_owned(),
            offset,
        }
    }

    /// The text that the mount table shows.
    pub(crate) fn text(&self) -> PathBuf {
        let mut text = self.file.as_os_str().as_bytes().to_vec();
        if self.offset > 0 || split(&text).is_some() {
            text.extend_from_slice(MARK);
            text.extend_from_slice(self.offset.to_string().as_bytes());
        }
        OsString::from_vec(text).into()
    }
}

/// The path and the offset of a text that ends with an offset.
fn split(text: &[u8]) -> Option<(&[u8], u64)> {
    let mut windows = text.windows(MARK.len());
    let at = windows.rposition(|window| window == MARK)?;
    let digits = std::str::from_utf8(&text[at + MARK.len()..]).ok()?;
    Some((&text[..at], digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{OsStr, Path, Source};

    fn source(file: &str, offset: u64) -> Source {
        Source {
            file: file.into(),
            offset,
        }
    }

    #[test]
    fn the_text_names_file_and_offset() {
        assert_eq!(source("/disk", 0).text(), Path::new("/disk"));
        assert_eq!(source("/disk", 512).text(), Path::new("/disk?offset=512"));
    }

    #[test]
    fn every_text_has_one_meaning() {
        for file in ["/disk", "/a?offset=7", "/a?offset=7?offset=8", "/?offset=x"] {
            for offset in [0, 1, 1 << 20, u64::MAX] {
                let source = source(file, offset);
                assert_eq!(Source::parse(source.text().as_os_str()), source);
            }
        }
        let old = Source::parse(OsStr::new("/a?offset=18446744073709551616"));
        assert_eq!(old, source("/a?offset=18446744073709551616", 0));
    }
}
