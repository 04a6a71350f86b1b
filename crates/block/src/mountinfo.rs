//! The mounts of the system, from `/proc/self/mountinfo`. Paths are bytes there, with blanks as
//! octal numbers; a line that cannot be parsed is left out.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Major and minor number of its device. The minor one is also the name of a FUSE connection.
    pub device: (u32, u32),
    /// The directory that it is mounted on.
    pub directory: PathBuf,
    /// The file system type.
    pub file_system_type: String,
    /// The device, or for a FUSE mount the text that its server gave.
    pub source: PathBuf,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// The user whose server it has, of a FUSE mount.
    pub user: Option<u32>,
}

/// All mounts that this process sees, the latest last.
///
/// # Errors
///
/// The table cannot be read.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(parse_all(&std::fs::read("/proc/self/mountinfo")?))
}

/// All mounts that another process sees, the latest last.
///
/// # Errors
///
/// The process has ended, or may not be looked at.
pub fn mounts_of(process: u32) -> io::Result<Vec<Mount>> {
    let table = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(parse_all(&table))
}

fn parse_all(table: &[u8]) -> Vec<Mount> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect()
}

/// A line: id, parent, major:minor, root, directory, options, optional fields, `-`, type, source,
/// options.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = device_number(fields.nth(2)?)?;
    let directory = fields.nth(1)?;
    let read_only = fields
        .next()?
        .split(|&byte| byte == b',')
        .any(|option| option == b"ro");
    fields.find(|field| *field == b"-")?;
    Some(Mount {
        device,
        directory: unescape(directory),
        file_system_type: String::from_utf8_lossy(fields.next()?).into_owned(),
        source: unescape(fields.next()?),
        read_only,
        user: fields.next().and_then(user),
    })
}

/// The user in the options of a FUSE file system.
fn user(options: &[u8]) -> Option<u32> {
    let mut options = options.split(|&byte| byte == b',');
    let number = options.find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Parses a device number `MAJOR:MINOR`.
pub(crate) fn device_number(text: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(text).ok()?.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::path::Path;

    use super::{parse, parse_all, unescape};

    #[test]
    fn a_line_is_understood_with_and_without_optional_fields() {
        let line = b"36 35 0:42 / /mnt/my\\040disk rw,nosuid shared:7 - fuse.pext4 /a\\011b rw,user_id=1000,group_id=3";
        let mount = parse(line).expect("a line of the table");
        assert_eq!(mount.device, (0, 42));
        assert_eq!(mount.directory, Path::new("/mnt/my disk"));
        assert_eq!(mount.file_system_type, "fuse.pext4");
        assert!(!mount.read_only);
        assert_eq!(mount.source, Path::new("/a\tb"));
        assert_eq!(mount.user, Some(1000));
        let line = b"22 1 254:0 / / ro,relatime - ext4 /dev/root rw";
        let mount = parse(line).expect("a line of the table");
        assert_eq!(mount.source, Path::new("/dev/root"));
        assert_eq!(mount.user, None);
        assert!(mount.read_only);
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
    fn a_path_in_another_encoding_hides_no_other() {
        let table =
            b"1 0 8:1 / /caf\xe9 rw - ext4 /dev/sda1 rw\n2 0 7:0 / /mnt rw - ext4 /dev/loop0 rw\n";
        let mounts = parse_all(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[1].directory, Path::new("/mnt"));
    }

    #[test]
    fn a_backslash_that_begins_no_number_stays() {
        assert_eq!(unescape(b"a\\134b\\"), Path::new("a\\b\\"));
        assert_eq!(unescape(b"\\9x\\777"), Path::new("\\9x\\777"));
    }
}
