//! The processes that have locked a file, from `/proc/locks`, for error messages. Processes in
//! another PID namespace are not found, nor those on file systems where the table has other inode
//! numbers than `stat`.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

use crate::file::Access;
use crate::loops::{self, Identity};

/// The number of times that the table is read. The kernel gives it out in pieces and counts where
/// it was, so that a line is lost if an earlier lock is released between two pieces.
const READINGS: usize = 5;

/// Ids of the processes that have locked the file at a path, or the file behind a loop device.
#[must_use]
pub fn holders(path: &Path) -> Vec<u32> {
    let itself = fs::metadata(path).ok().map(|file| name(&file));
    let innermost = loops::innermost_backing(path).and_then(|(file, _)| file.place());
    let innermost = innermost.map(|(device, inode)| name_at(device, inode));
    let names: Vec<_> = [itself, innermost].into_iter().flatten().collect();
    (0..READINGS)
        .map(|_| holders_of(&names, Access::ReadWrite))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Whether a process has locked a file.
#[must_use]
pub fn holds(process: u32, file: &Metadata) -> bool {
    let names = [name(file)];
    (0..READINGS).any(|_| holders_of(&names, Access::ReadWrite).contains(&process))
}

/// Whether a process has a lock of a file that keeps others from this access.
pub(crate) fn is_locked(file: Identity, access: Access) -> bool {
    let Some((device, inode)) = file.place() else {
        return false;
    };
    let names = [name_at(device, inode)];
    (0..READINGS).any(|_| !holders_of(&names, access).is_empty())
}

/// The processes whose locks of these files keep others from this access.
fn holders_of(names: &[String], access: Access) -> Vec<u32> {
    let Ok(table) = fs::read_to_string("/proc/locks") else {
        return Vec::new();
    };
    table
        .lines()
        .filter_map(parse)
        .filter(|lock| lock.is_exclusive || access == Access::ReadWrite)
        .filter(|lock| names.iter().any(|name| name == lock.file))
        .map(|lock| lock.process)
        .collect()
}

/// A file as the table names it: its device's major and minor number, and its inode number.
fn name(file: &Metadata) -> String {
    name_at(file.dev(), file.ino())
}

fn name_at(device: u64, inode: u64) -> String {
    format!("{:02x}:{:02x}:{inode}", major(device), minor(device))
}

/// A lock that is held.
#[derive(Debug, PartialEq, Eq)]
struct Lock<'a> {
    process: u32,
    is_exclusive: bool,
    file: &'a str,
}

/// The lock of a line, if `flock` took it and it is held. The fields: number, kind, strictness,
/// mode, process, file, start, end. A process that waits for a lock has an arrow after the number.
fn parse(line: &str) -> Option<Lock<'_>> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let kind = words.next()?;
    let is_exclusive = words.nth(1)? == "WRITE";
    let process = words.next()?.parse().ok()?;
    let file = words.next()?;
    (kind == "FLOCK" && process > 0).then_some(Lock {
        process,
        is_exclusive,
        file,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::{Lock, holders, parse};
    use crate::{Access, FileDevice};

    #[test]
    fn only_held_locks_of_flock_are_parsed() {
        let line = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:131 0 EOF";
        let parsed = |is_exclusive| Lock {
            process: 1234,
            is_exclusive,
            file: "fe:00:131",
        };
        assert_eq!(parse(line), Some(parsed(true)));
        let shared = line.replace("WRITE", "READ");
        assert_eq!(parse(&shared), Some(parsed(false)));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 1235 fe:00:131 0 EOF",
            "2: POSIX  ADVISORY  READ 7 fe:00:131 0 EOF",
            "3: FLOCK  ADVISORY  WRITE 0 fe:00:131 0 EOF",
            "4: OFDLCK ADVISORY  READ -1 fe:00:131 0 EOF",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_process_that_has_a_file_is_found() {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let path = directory.path().join("image");
        let device = FileDevice::create(&path, 4096).expect("it is made");
        let found = holders(&path);
        // Some file systems number their files differently for the table.
        let number = std::fs::metadata(&path).expect("it is there").ino();
        let table = std::fs::read_to_string("/proc/locks").expect("Linux has it");
        drop(device);
        if table.contains(&format!(":{number} ")) {
            assert_eq!(found, [std::process::id()]);
        } else {
            eprintln!("SKIPPED: the table of locks does not name the file by its number");
        }
        assert!(FileDevice::open(&path, Access::ReadOnly, std::time::Duration::ZERO).is_ok());
    }
}
