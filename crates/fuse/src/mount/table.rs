//! What is mounted, by `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::FILE_SYSTEM_TYPE;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Minor number of its device, by which the kernel names a FUSE connection.
    pub device_minor: u32,
    /// The directory.
    pub directory: PathBuf,
    /// The type.
    pub file_system_type: String,
    /// What stands for the device: the image's path, for ours.
    pub source: PathBuf,
    /// Whether nothing can be written.
    pub read_only: bool,
}

impl Mount {
    /// Whether a server of ours is behind it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.file_system_type == FILE_SYSTEM_TYPE
    }
}

/// All mounts that this process sees, the latest last.
///
/// # Errors
/// The table cannot be read.
pub fn mounts() -> io::Result<Vec<Mount>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// Our mount that is on top of `directory`, a path without links.
///
/// # Errors
/// The table cannot be read.
pub(super) fn ours_on(directory: &Path) -> io::Result<Option<Mount>> {
    let top = mounts()?
        .into_iter()
        .rfind(|mount| mount.directory == directory);
    Ok(top.filter(Mount::is_ours))
}

/// A line: id, parent, major:minor, root, directory, options, optional fields, `-`, type, source,
/// options.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let directory = fields.nth(1)?;
    let read_only = fields
        .next()?
        .split(|&byte| byte == b',')
        .any(|option| option == b"ro");
    fields.find(|field| *field == b"-")?;
    Some(Mount {
        device_minor: device.split_once(':')?.1.parse().ok()?,
        directory: unescape(directory),
        file_system_type: String::from_utf8_lossy(fields.next()?).into_owned(),
        source: unescape(fields.next()?),
        read_only,
    })
}

/// The table writes blanks, line ends and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = (first == b'\\')
            .then(|| behind.first_chunk::<3>())
            .flatten();
        match escaped.and_then(octal) {
            Some(byte) => {
                plain.push(byte);
                rest = &behind[3..];
            }
            None => {
                plain.push(first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::{Path, parse, unescape};

    #[test]
    fn a_line_is_understood_with_and_without_optional_fields() {
        let line = b"36 35 0:42 / /mnt/my\\040disk rw,nosuid shared:7 - fuse.pext4 /a\\011b rw";
        let mount = parse(line).expect("a line of the table");
        assert_eq!(mount.device_minor, 42);
        assert_eq!(mount.directory, Path::new("/mnt/my disk"));
        assert!(mount.is_ours() && !mount.read_only);
        assert_eq!(mount.source, Path::new("/a\tb"));
        let line = b"22 1 254:0 / / ro,relatime - ext4 /dev/root rw";
        let mount = parse(line).expect("a line of the table");
        assert_eq!(mount.source, Path::new("/dev/root"));
        assert!(!mount.is_ours() && mount.read_only);
        for junk in [
            &b""[..],
            b"36 35",
            b"36 35 0:42 / /mnt rw",
            b"1 2 x / / rw - a b",
        ] {
            assert_eq!(parse(junk), None);
        }
    }

    #[test]
    fn a_backslash_that_begins_no_number_stays() {
        assert_eq!(unescape(b"a\\134b\\"), Path::new("a\\b\\"));
        assert_eq!(unescape(b"\\9x\\777"), Path::new("\\9x\\777"));
    }
}
