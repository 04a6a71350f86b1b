//! One line on standard output, or beside it. `println!` would panic where nobody reads it any more, as in
//! `pext4 build ... | head -1`; here that is an error, which ends a command quietly
//! ([`report`](crate::failure::report)). What is said on standard error is for whoever listens: a server
//! must not end because its log did.

use std::fmt::Display;
use std::io::{self, Write};

/// Says a line, or several.
///
/// # Errors
/// Standard output takes nothing (any more).
pub fn say(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Says a line on standard error, if anybody reads that.
pub fn aside(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
