//! `pext4` as a helper of `mount(8)`, for `mount -t pext4` and for fstab, and of `umount(8)`
//! ([`umount`]).
//!
//! `mount(8)` uses two forms of the command line. `/sbin/mount.pext4` and `/sbin/mount.fuse.pext4`,
//! links to this program, are called with
//! `SOURCE DIR [-sfnv] [-N namespace] [-o options] [-t type]`. Without such a link, a mount of the
//! type `fuse.pext4` goes through `/sbin/mount.fuse`, which has a shell run
//! `pext4 SOURCE DIR -o options`. No command has a slash in its name, so a first word with a slash
//! is a source; so is one without, if a file has that name and no command does.
//!
//! Both forms mount in the background and end with the statuses of `mount(8)`. A helper cannot see
//! whether `suid` and `dev` were requested, since `mount(8)` passes on only what differs from its
//! defaults. So for root they are in effect, as with every other file system, unless `nosuid` and
//! `nodev` are given.

mod umount;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Error, Result};
use clap::{CommandFactory, Parser};
use pext4_fuse::{OptionError, Options};

use crate::CommandLine;
use crate::commands::mount;
use crate::failure;
use crate::output::print;

/// The statuses of `mount(8)` and `umount(8)` for an invalid command line and for a failure.
const USAGE: u8 = 1;
const FAILURE: u8 = 32;

/// The options that `mount(8)` implies by default if root mounts.
const DEFAULTS: &str = "suid,dev";

/// Mount an ext4 image, as mount(8) asks for it
#[derive(Debug, Parser)]
#[command(name = "mount.pext4")]
struct Line {
    /// The image or block device
    source: PathBuf,
    /// The directory
    directory: PathBuf,
    /// Options
    #[arg(short = 'o', value_name = "OPTION,...", allow_hyphen_values = true)]
    options: Vec<String>,
    /// Ignore options that are not known
    #[arg(short = 's')]
    sloppy: bool,
    /// Do everything but mount
    #[arg(short = 'f')]
    fake: bool,
    /// Write no mtab; there is none
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Say what was mounted
    #[arg(short = 'v')]
    verbose: bool,
    /// The mount namespace in which source and directory are
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,
    /// The type, which is this one
    #[arg(short = 't', value_name = "TYPE")]
    _kind: Option<String>,
}

/// The same line as `/sbin/mount.fuse` writes it, or a person who knows other FUSE file systems.
#[derive(Debug, Parser)]
#[command(name = "pext4")]
struct Program {
    #[command(flatten)]
    mount: mount::Arguments,
}

/// Mounts or unmounts if the words are a call by `mount(8)` or `umount(8)`, and returns the status.
/// `None` for every other command line.
pub fn run(words: &[OsString]) -> Option<ExitCode> {
    let name = Path::new(words.first()?).file_name()?;
    let ended = if name.as_bytes().starts_with(b"mount.") {
        Line::try_parse_from(words).map(|line| line.run())
    } else if name.as_bytes().starts_with(b"umount.") {
        umount::Line::try_parse_from(words).map(|line| line.run())
    } else if is_program(words) {
        Program::try_parse_from(words).map(|program| program.run())
    } else {
        return None;
    };
    Some(match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            failure::report(&error);
            ExitCode::from(status(&error))
        }
        Err(error) => {
            // If the output is closed, the message is lost.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
        }
    })
}

/// Whether a source does not exist, and the options say that this is no error.
fn may_be_missing<'a>(source: &Path, mut options: impl Iterator<Item = &'a str>) -> bool {
    let metadata = source.metadata();
    let is_missing = metadata.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    is_missing && options.any(|option| option == "nofail")
}

/// Whether the words begin with a source, not with the name of a command.
fn is_program(words: &[OsString]) -> bool {
    match words.get(1) {
        None => false,
        Some(first) if is_path(first) => true,
        // A source without a directory would be a misspelt command.
        Some(first) => words.len() > 2 && !is_command(first) && Path::new(first).is_file(),
    }
}

fn is_path(word: &OsStr) -> bool {
    word.as_bytes().contains(&b'/')
}

fn is_command(word: &OsStr) -> bool {
    word == "help" || CommandLine::command().find_subcommand(word).is_some()
}

fn status(error: &Error) -> u8 {
    if failure::status(error) == failure::MISUSE {
        USAGE
    } else {
        FAILURE
    }
}

impl Program {
    fn run(&self) -> Result<()> {
        match may_be_missing(self.mount.image(), self.mount.option_words()) {
            true => Ok(()),
            false => mount::run(&self.mount),
        }
    }
}

impl Line {
    fn run(&self) -> Result<()> {
        let options = self.options();
        if may_be_missing(&self.source, self.words()) {
            return Ok(());
        }
        let arguments = mount::Arguments::of(
            self.source.clone(),
            self.directory.clone(),
            options,
            self.namespace.clone(),
        );
        if self.fake {
            return mount::check(&arguments);
        }
        mount::run(&arguments)?;
        if self.verbose {
            let (source, directory) = (self.source.display(), self.directory.display());
            // The mount succeeded even if nobody reads this.
            let _ = print(format!("pext4: {source} mounted on {directory}"));
        }
        Ok(())
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        self.options.iter().flat_map(|list| list.split(','))
    }

    /// The options for the mount. With `-s` unknown ones are left out.
    fn options(&self) -> Vec<String> {
        let is_root = rustix::process::geteuid().is_root();
        let defaults = is_root.then(|| DEFAULTS.to_owned());
        let known = self.words().filter(|word| !self.sloppy || is_known(word));
        defaults
            .into_iter()
            .chain(known.map(str::to_owned))
            .collect()
    }
}

fn is_known(option: &str) -> bool {
    !matches!(
        Options::default().apply(option),
        Err(OptionError::Unknown(_))
    )
}

#[cfg(test)]
mod tests {
    use super::{Line, OsString, Program, is_path, run, status};
    use crate::failure::{Misuse, Reported};
    use anyhow::anyhow;
    use clap::{CommandFactory, Parser};

    fn line(words: &[&str]) -> Line {
        Line::try_parse_from([&["/sbin/mount.pext4"], words].concat()).expect("a line of mount(8)")
    }

    #[test]
    fn the_command_lines_are_consistent() {
        Line::command().debug_assert();
        Program::command().debug_assert();
    }

    #[test]
    fn all_that_mount_may_say_is_understood() {
        let words = [
            "/a b",
            "/d",
            "-s",
            "-f",
            "-n",
            "-v",
            "-o",
            "rw,user",
            "-N",
            "/proc/7/fd/4",
        ];
        let line = line(&[&words[..], &["-t", "fuse.pext4"]].concat());
        assert!(line.sloppy && line.fake && line.verbose);
        assert_eq!(line.source, std::path::Path::new("/a b"));
        assert_eq!(line.namespace, Some("/proc/7/fd/4".into()));
    }

    #[test]
    fn a_sloppy_mount_leaves_out_what_nobody_knows() {
        let strict = line(&["/a", "/d", "-o", "ro,bogus,commit=x"]).options();
        assert!(strict.contains(&"bogus".to_owned()), "{strict:?}");
        let sloppy = line(&["/a", "/d", "-s", "-o", "ro,bogus,commit=x"]).options();
        assert!(!sloppy.contains(&"bogus".to_owned()), "{sloppy:?}");
        assert!(
            sloppy.contains(&"commit=x".to_owned()),
            "a wrong value is no unknown option"
        );
    }

    #[test]
    fn statuses_are_those_of_mount() {
        assert_eq!(status(&anyhow!("no such image")), 32);
        assert_eq!(status(&Misuse("-o".to_owned()).into()), 1);
        for (of_server, expected) in [(1, 32), (2, 1)] {
            assert_eq!(status(&Reported(of_server).into()), expected);
        }
    }

    #[test]
    fn other_command_lines_are_left_alone() {
        for words in [
            &["pext4"][..],
            &["pext4", "ls", "/a"],
            &["/sbin/mount/pext4", "-V"],
        ] {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            assert!(run(&words).is_none(), "{words:?}");
        }
        assert!(is_path("./image".as_ref()) && !is_path("image".as_ref()));
    }
}
