//! `pext4` as the helper of `umount(8)`, under the names `/sbin/umount.fuse.pext4` and
//! `/sbin/umount.fuse`.
//!
//! Without a helper `umount(8)` returns when the directory is free. The server then still writes
//! the rest of its journal home, and a program that uses the image at once (e2fsck, a mount by the
//! kernel) would change it together with the server. The helper returns when the image is closed.
//!
//! `umount(8)` calls it with `DIR [-flnrv] [-N namespace] [-t type]`. Given an absolute path, it
//! asks only `statfs(2)` for the type, which names no server, and so looks for a helper of `fuse`.
//! Under that name mounts of other servers arrive as well; for these, `umount -i` does what
//! `umount(8)` does without a helper.
//!
//! The helper runs as the user who called `umount(8)`. An ordinary user ends the mounts that he
//! made through `fusermount3`, and those that a line of `fstab` permits through `umount -i`, which
//! is set-user-id root.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result};
use clap::Parser;
use pext4_fuse::mount::{MountError, UnmountMode, unmount_by};

use super::FAILURE;
use crate::commands::mount::enter_namespace;
use crate::commands::umount::{end, find};
use crate::failure::Reported;
use crate::output::{print, print_error};

/// Unmount an ext4 image, as umount(8) asks for it
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.pext4")]
pub struct Line {
    /// The directory, or the image
    directory: PathBuf,
    /// Abort the connection to the server first; what the kernel has not sent to it is lost
    #[arg(short = 'f')]
    by_force: bool,
    /// Detach the directory at once, also while it is in use, and do not wait
    #[arg(short = 'l')]
    lazily: bool,
    /// Write no mtab; there is none
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Make a mount in use read-only; this is not done for an image, and the call fails
    #[arg(short = 'r')]
    read_only: bool,
    /// Say what was unmounted
    #[arg(short = 'v')]
    verbose: bool,
    /// The mount namespace in which the directory is
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
    /// The type, which is this one
    #[arg(short = 't', value_name = "TYPE")]
    _kind: Option<String>,
}

impl Line {
    /// Unmounts, and waits until the image is closed unless `-l` was given.
    ///
    /// # Errors
    ///
    /// The directory is in use, or is no mount; the image is not clean afterwards.
    pub fn run(&self) -> Result<()> {
        enter_namespace(self.namespace.as_deref())?;
        let mount = match find(&self.directory) {
            Ok(mount) => mount,
            // It is returned only if there is no such program.
            Err(_) => return Err(self.without_helper(&self.directory).exec().into()),
        };
        let mode = UnmountMode {
            lazily: self.lazily,
            by_force: self.by_force,
        };
        if let Some(elsewhere) = end(&mount, mode, |dir| self.detach(dir, mode))? {
            // To umount(8) the directory is what counts, and that is free.
            print_error(format_args!("pext4: {elsewhere}"));
        }
        if self.verbose {
            // The unmount succeeded even if nobody reads this.
            let _ = print(format!("pext4: {} unmounted", self.directory.display()));
        }
        Ok(())
    }

    fn detach(&self, directory: &Path, mode: UnmountMode) -> Result<()> {
        let refused = match unmount_by(directory, mode) {
            // The user did not make this mount.
            Err(error @ (MountError::Helper(_) | MountError::NoHelper)) => error,
            result => return result.context("cannot unmount"),
        };
        // It prints its errors itself.
        match self.without_helper(directory).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Reported(FAILURE).into()),
            Err(_) => Err(Error::new(refused).context("cannot unmount")),
        }
    }

    /// The same call of `umount(8)`, which uses no helper.
    fn without_helper(&self, directory: &Path) -> Command {
        let mut command = Command::new("umount");
        command.arg("-i").stdin(Stdio::null());
        for (is_given, option) in [
            (self.by_force, "-f"),
            (self.lazily, "-l"),
            (self.no_mtab, "-n"),
            (self.read_only, "-r"),
            (self.verbose, "-v"),
        ] {
            if is_given {
                command.arg(option);
            }
        }
        command.arg("--").arg(directory);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use clap::{CommandFactory, Parser};

    #[test]
    fn all_that_umount_may_say_is_understood() {
        Line::command().debug_assert();
        let words = ["umount.fuse.pext4", "/d", "-flnrv"];
        let more = ["-N", "/proc/7/fd/4", "-t", "fuse.pext4"];
        let line = Line::try_parse_from([&words[..], &more].concat()).expect("a line of umount");
        assert!(line.by_force && line.lazily && line.verbose);
        assert_eq!(line.namespace, Some("/proc/7/fd/4".into()));
        let words = ["umount.fuse.pext4", "/d", "-n", "-l"];
        let line = Line::try_parse_from(words).expect("a line of umount");
        assert!(line.lazily && !line.by_force && !line.verbose);
    }
}
