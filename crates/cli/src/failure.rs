//! Errors of commands: their text and their exit status.

use std::fmt;
use std::io;
use std::process::ExitCode;

use anyhow::{Error, Result};
use pext4_sync::meter;

use crate::output::print_error;
use crate::size;

/// The minimum size of the metadata cache in bytes.
const MIN_CACHE: u64 = 4 << 20;

/// The exit status for an invalid command line.
pub const MISUSE: u8 = 2;

/// The exit status of a command whose output is data and whose reader goes away before the end:
/// that of a process that the signal of the pipe (SIGPIPE) ends. Its data was cut short.
const CUT_SHORT: u8 = 141;

/// An error of the command line, which ends with status [`MISUSE`].
#[derive(Debug)]
pub struct Misuse(pub String);

impl fmt::Display for Misuse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// An error that was printed already. Only the exit status remains.
#[derive(Debug)]
pub struct Reported(pub u8);

impl fmt::Display for Reported {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "status {}", self.0)
    }
}

impl std::error::Error for Reported {}

/// The errors of a command that continues after a read error: they are printed at once, and the
/// command fails at its end.
#[derive(Default)]
pub struct ReadErrors {
    met: bool,
}

impl ReadErrors {
    /// The value of a result. Prints an error and returns `None`.
    pub fn skip<T>(&mut self, answer: Result<T>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        self.met = true;
        print_error(format_args!("pext4: {}", line(&error)));
        None
    }

    /// Ends the command, whose output was `written`. That the reader of the output has gone hides
    /// no error that was met before.
    ///
    /// # Errors
    ///
    /// [`Reported`], if there was a read error; that of the output.
    pub fn end(self, written: Result<()>) -> Result<()> {
        match written {
            Err(error) if !(self.met && is_closed_pipe(&error)) => Err(error),
            _ if self.met => Err(Reported(1).into()),
            _ => Ok(()),
        }
    }
}

/// The error of a command whose output is data. If the reader has closed the pipe, the command ends
/// quietly, but not with the status of success, which would say that all was written.
pub fn of_data(error: Error) -> Error {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    let is_closed = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    match causes.any(is_closed) {
        true => Reported(CUT_SHORT).into(),
        false => error,
    }
}

/// Whether an error only says that the reader of the output has closed the pipe.
fn is_closed_pipe(error: &Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

/// Refuses `--meter`, if it is given, where nothing is metered.
///
/// # Errors
///
/// [`Misuse`].
pub fn check_meter(is_wanted: bool) -> Result<()> {
    match is_wanted && !meter::is_built_in() {
        true => {
            let hint = "this build has no meters; `cargo build --features meter` makes one";
            Err(Misuse(format!("--meter: {hint}")).into())
        }
        false => Ok(()),
    }
}

/// Refuses a size of the metadata cache with which nothing would work.
///
/// # Errors
///
/// [`Misuse`].
pub fn check_cache_size(bytes: u64) -> Result<()> {
    if bytes < MIN_CACHE {
        let least = size::show(MIN_CACHE);
        return Err(Misuse(format!("--cache-size: at least {least} are needed")).into());
    }
    Ok(())
}

/// Prints an error and returns its exit status.
pub fn report(error: &Error) -> ExitCode {
    if error.is::<Reported>() {
        return ExitCode::from(status(error));
    }
    if is_closed_pipe(error) {
        // The reader of the output has seen enough of it.
        return ExitCode::SUCCESS;
    }
    print_error(format_args!("pext4: {}{}", line(error), advice(error)));
    ExitCode::from(status(error))
}

/// Advice on errors whose text by the system does not explain them.
fn advice(error: &Error) -> &'static str {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    let is_too_large = |cause: &io::Error| cause.kind() == io::ErrorKind::FileTooLarge;
    match causes.any(is_too_large) {
        true => {
            "; the limit is not the image's: it is that of the host's file system (of ext4 a block less \
             than 16 TiB), or `ulimit -f`"
        }
        false => "",
    }
}

/// The text of an error and its causes. A cause that the text contains already is left out.
pub fn line(error: &Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |said, cause| match said.as_str() {
            "" => cause,
            _ if said.contains(&cause) => said,
            _ => format!("{said}: {cause}"),
        })
}

/// The exit status of an error.
pub fn status(error: &Error) -> u8 {
    match error.downcast_ref() {
        Some(Reported(status)) => *status,
        None if error.is::<Misuse>() => MISUSE,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{Misuse, ReadErrors, Reported, advice, line, status};
    use anyhow::{Context, anyhow};
    use pext4_edit::EditError;
    use std::io;

    #[test]
    fn misuse_is_told_apart_also_under_a_context() {
        assert_eq!(status(&anyhow!("no such image")), 1);
        let misuse = Err::<(), _>(Misuse("option `x`".to_owned()))
            .context("-o")
            .unwrap_err();
        assert_eq!(status(&misuse), 2);
        assert_eq!(line(&misuse), "-o: option `x`");
    }

    #[test]
    fn a_reader_that_has_gone_hides_no_read_error() {
        let end = |met, written: Result<(), io::ErrorKind>| {
            let written = written.map_err(|kind| io::Error::from(kind).into());
            let ended = ReadErrors { met }.end(written);
            ended.map_err(|error| (status(&error), error.is::<Reported>()))
        };
        let (gone, full) = (io::ErrorKind::BrokenPipe, io::ErrorKind::StorageFull);
        assert_eq!(end(false, Ok(())), Ok(()));
        for (met, written, is_reported) in [
            (true, Ok(()), true),
            (true, Err(gone), true),
            (true, Err(full), false),
            (false, Err(full), false),
        ] {
            assert_eq!(end(met, written), Err((1, is_reported)), "{written:?}");
        }
    }

    #[test]
    fn a_file_too_large_for_the_host_says_whose_limit_that_is() {
        let inner = io::Error::from(io::ErrorKind::FileTooLarge);
        let device = io::Error::new(inner.kind(), format!("big.img: cannot make it: {inner}"));
        let error = anyhow!(device).context("big.img");
        assert!(advice(&error).contains("ulimit -f"));
        assert_eq!(advice(&anyhow!("another")), "");
    }

    #[test]
    fn no_cause_is_said_twice() {
        let inner = io::Error::other("no answer");
        let told = io::Error::new(inner.kind(), format!("device: {inner}"));
        let error = anyhow!(inner).context(told.to_string()).context("image");
        assert_eq!(line(&error), "image: device: no answer");
        let advice = anyhow!("bad magic").context("bad magic; run e2fsck");
        assert_eq!(line(&advice), "bad magic; run e2fsck");
        let missing = io::Error::other("root.img: cannot open it: there is none");
        let opened = anyhow!(EditError::OpenImage(missing)).context("edit");
        assert_eq!(
            line(&opened),
            "edit: root.img: cannot open it: there is none"
        );
        let failed = pext4_image::Error::Io(io::Error::other("no answer"));
        let built = anyhow!(pext4_image::build::Error::Layout {
            image: "root.img".into(),
            cause: failed,
        });
        assert_eq!(line(&built), "root.img: device error: no answer");
    }
}
