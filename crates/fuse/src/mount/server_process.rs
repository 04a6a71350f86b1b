//! Which process serves a mount, and which files it has locked for that.
//!
//! The mount table has the path under which the image was opened. Meanwhile the image may have been
//! renamed or removed, and another file may have its name. Recent versions of Linux show in `/proc`
//! the connection to which an open `/dev/fuse` belongs, and with it the server, if the caller may
//! look at that process; on others nothing is found here.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pext4_block::holders::holds;

use super::{DEVICE, Mount};

/// The field of the connection in a file of `/proc/PID/fdinfo`.
const CONNECTION: &str = "fuse_connection:";

/// The server of a mount.
#[derive(Debug)]
pub struct ServerProcess {
    process: u32,
    /// The files that it has locked: the image and, if that is a loop device, what is behind it.
    files: Vec<Metadata>,
}

impl ServerProcess {
    /// The server of a mount, if it can be seen. The processes that probably are it come first.
    #[must_use]
    pub fn of(mount: &Mount, likely: &[u32]) -> Option<Self> {
        let (_, connection) = mount.device;
        let mut processes = likely.iter().copied().chain(super::processes());
        let process = processes.find(|&process| serves(process, connection))?;
        let files = open_files(process)
            .filter(|file| info(file).is_some_and(|info| info.contains("FLOCK")))
            .filter_map(|file| fs::metadata(file).ok());
        Some(Self {
            process,
            files: files.collect(),
        })
    }

    /// Whether the file at a path is one of those that the server has locked.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        let id = |file: &Metadata| (file.dev(), file.ino());
        let there = fs::metadata(path).map(|there| id(&there));
        there.is_ok_and(|there| self.files.iter().any(|file| id(file) == there))
    }

    /// Whether the server has unlocked its files, as it does when it has closed them.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.files.iter().any(|file| holds(self.process, file))
    }
}

fn serves(process: u32, connection: u32) -> bool {
    let devices = open_files(process)
        .filter(|file| fs::read_link(file).is_ok_and(|link| link == Path::new(DEVICE)));
    let mut shown = devices.filter_map(|file| connection_in(&info(&file)?));
    shown.any(|number| number == connection)
}

fn connection_in(info: &str) -> Option<u32> {
    let mut lines = info.lines();
    let number = lines.find_map(|line| line.strip_prefix(CONNECTION))?;
    number.trim().parse().ok()
}

/// The links to the open files of a process; none if it may not be looked at.
fn open_files(process: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter();
    entries
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
}

/// What the system shows of an open file, given its link.
fn info(file: &Path) -> Option<String> {
    let process = file.parent()?.parent()?;
    fs::read_to_string(process.join("fdinfo").join(file.file_name()?)).ok()
}

#[cfg(test)]
mod tests {
    use super::connection_in;

    #[test]
    fn the_connection_is_one_of_several_fields() {
        let info = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t39\n";
        assert_eq!(connection_in(info), Some(39));
        assert_eq!(connection_in("pos:\t0\nflags:\t02100002\n"), None);
        assert_eq!(connection_in("fuse_connection:\t\n"), None);
    }
}
