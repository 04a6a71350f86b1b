//! Lines on standard output and standard error. `println!` would panic if the reader has closed the
//! pipe, as in `pext4 build ... | head -1`; here that is an error, which ends a command quietly
//! ([`report`](crate::failure::report)). Errors of standard error are ignored: a server must not
//! end because its log did.

use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Prints one or more lines on standard output.
///
/// # Errors
///
/// Standard output cannot be written, or is closed. The error names it.
pub fn print(line: impl Display) -> io::Result<()> {
    writeln!(standard(), "{line}")
}

/// Standard output. Its errors name it.
pub struct StandardOutput(StdoutLock<'static>);

/// Standard output, locked.
pub fn standard() -> StandardOutput {
    StandardOutput(io::stdout().lock())
}

/// The same with a buffer, which must be flushed.
pub fn buffered() -> BufWriter<StandardOutput> {
    BufWriter::new(standard())
}

impl Write for StandardOutput {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(from).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

/// As [`print()`], after work that is done.
///
/// # Errors
///
/// As [`print()`]. The error also says what was done, as in "the image was changed": the status of
/// the command only says that something failed.
pub fn print_result(line: impl Display, done: &str) -> io::Result<()> {
    print(line).map_err(|error| io::Error::new(error.kind(), format!("{error}; {done}")))
}

/// Prints a line on standard error. Errors are ignored.
pub fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
