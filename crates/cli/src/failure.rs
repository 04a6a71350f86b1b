//! How a command ends that did not do what it was asked for.

use std::fmt;
use std::io;
use std::process::ExitCode;

use anyhow::{Error, Result};

use crate::say::aside;

/// The status of a command line that makes no sense.
pub const MISUSE: u8 = 2;

/// The command line asks for something that makes no sense: status [`MISUSE`].
#[derive(Debug)]
pub struct Misuse(pub String);

impl fmt::Display for Misuse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// What was wrong has been said; only a status is left to pass on.
#[derive(Debug)]
pub struct Told(pub u8);

impl fmt::Display for Told {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "status {}", self.0)
    }
}

impl std::error::Error for Told {}

/// A command that goes on where something cannot be read: it tells that at once, and fails at its end.
#[derive(Default)]
pub struct Troubles {
    met: bool,
}

impl Troubles {
    /// The answer, if there is one; why there is none is told.
    pub fn pass_over<T>(&mut self, answer: Result<T>) -> Option<T> {
        let error = match answer {
            Ok(answer) => return Some(answer),
            Err(error) => error,
        };
        self.met = true;
        aside(format_args!("pext4: {}", line(&error)));
        None
    }

    /// The end of the command.
    ///
    /// # Errors
    /// [`Told`], if there was something.
    pub fn end(self) -> Result<()> {
        if self.met {
            return Err(Told(1).into());
        }
        Ok(())
    }
}

/// Says what was wrong and gives the exit status.
pub fn report(error: &Error) -> ExitCode {
    if error.is::<Told>() {
        return ExitCode::from(status(error));
    }
    let pipe = error.downcast_ref::<io::Error>().map(io::Error::kind);
    if pipe == Some(io::ErrorKind::BrokenPipe) {
        // Whoever read our output has had enough.
        return ExitCode::SUCCESS;
    }
    aside(format_args!("pext4: {}{}", line(error), advice(error)));
    ExitCode::from(status(error))
}

/// What may help where the system's own words do not say it.
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

/// The error and its causes; a cause that the text before it has said already is not said again.
fn line(error: &Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |said, cause| match said.as_str() {
            "" => cause,
            _ if said.contains(&cause) => said,
            _ => format!("{said}: {cause}"),
        })
}

/// The exit status that an error means.
pub fn status(error: &Error) -> u8 {
    match error.downcast_ref() {
        Some(Told(status)) => *status,
        None if error.is::<Misuse>() => MISUSE,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{Misuse, advice, line, status};
    use anyhow::{Context, anyhow};
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
    }
}
