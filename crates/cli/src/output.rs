//! Lines on standard output and standard error. `println!` would panic if the reader has closed the
//! pipe, as in `pext4 build ... | head -1`; here that is an error, which ends a command quietly
//! ([`report`](crate::failure::report)). Errors of standard error are ignored: a server must not
//! end because its log did.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints one or more lines on standard output.
///
/// # Errors
/// Standard output cannot be written, or is closed.
pub fn print(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Prints a line on standard error. Errors are ignored.
pub fn print_error(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
