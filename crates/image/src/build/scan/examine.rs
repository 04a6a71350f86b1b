//! What a scan asks the system about one name: attributes, target, extended attributes, holes.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Scan;
use super::entry::{self, AttributePath, ScannedEntry};
use super::jobs::OpenDirectory;
use crate::build::error::{Error, Result};

/// Files of so many bytes are opened to look for holes, even if the host has allocated all of them.
/// Opening a small file costs more than its holes would save.
const PROBED_BYTES: u64 = 64 << 10;

impl Scan<'_> {
    /// The entry of a name and the device of its file; `None` if it is excluded. `is_cwd`: `open`
    /// is the thread's working directory.
    pub(super) fn examine(
        &self,
        open: &OpenDirectory,
        name: &CStr,
        is_cwd: bool,
        buffers: &mut entry::Buffers,
    ) -> Result<Option<(ScannedEntry, u64)>> {
        let rules = self.options.rules;
        let path = rules
            .needs_paths()
            .then(|| entry::joined(&open.path, name.to_bytes()));
        let is_excluded = |is_directory| {
            let excludes = |path: &Vec<u8>| rules.excludes(path, || is_directory);
            path.as_ref().is_some_and(excludes)
        };
        // What is excluded whatever it is need not even be accessible.
        if is_excluded(false) {
            return Ok(None);
        }
        let failed = |action| {
            move |errno: Errno| {
                Error::source(self.shown(&open.path, name.to_bytes()), action, errno)
            }
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let directory = if is_cwd { CWD } else { open.fd.as_fd() };
        // Not statx(2), which not every version of `fakeroot` shows as it shows other calls.
        let stat =
            rustix::fs::statat(directory, name, flags).map_err(failed("read its attributes"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory && is_excluded(true) {
            return Ok(None);
        }
        let (device, number) = entry::key(&stat);
        if self.options.leave_out.contains(&(device, number)) {
            return Ok(None);
        }
        let mut found = ScannedEntry::from_stat(&stat);
        match kind {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&open.fd, name, Vec::new())
                    .map_err(failed("read where it leads"))?;
                found.metadata.size = target.as_bytes().len() as u64;
                found.extras().target = Some(target.into_bytes().into_boxed_slice());
            }
            FileType::RegularFile => self.inspect_file(open, name, &stat, &mut found)?,
            _ => {}
        }
        let shown = || self.shown(&open.path, name.to_bytes());
        let attribute_path = match is_cwd {
            true => AttributePath::Relative(name),
            false => AttributePath::Full(entry::Context {
                source: &self.source.path,
                folder: &open.path,
                fd: &open.fd,
                name,
            }),
        };
        let attributes = buffers
            .attributes(&attribute_path, rules)
            .map_err(|errno| Error::source(shown(), "read its extended attributes", errno))?;
        found.set_attributes(attributes);
        Ok(Some((found, device)))
    }

    /// Finds the holes of a file. With `skip_unreadable`, also checks that the file can be opened.
    fn inspect_file(
        &self,
        open: &OpenDirectory,
        name: &CStr,
        stat: &rustix::fs::Stat,
        found: &mut ScannedEntry,
    ) -> Result<()> {
        let size = entry::size_of(stat);
        // Space that was allocated and never written is a hole to who asks for holes.
        let is_sparse = size > 0 && stat.st_blocks.saturating_mul(512) < stat.st_size;
        let may_have_holes = is_sparse || size >= PROBED_BYTES;
        if !may_have_holes && !self.options.skip_unreadable {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let failed =
            |errno: Errno| Error::source(self.shown(&open.path, name.to_bytes()), "open it", errno);
        let fd = rustix::fs::openat(&open.fd, name, flags, Mode::empty()).map_err(failed)?;
        if may_have_holes {
            let file = File::from(fd);
            let segments = entry::segments(&file, size).map_err(|cause| {
                Error::source(
                    self.shown(&open.path, name.to_bytes()),
                    "find its holes",
                    cause,
                )
            })?;
            if segments.is_some() {
                found.extras().segments = segments;
            }
        }
        Ok(())
    }
}
