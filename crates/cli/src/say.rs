//! One line on standard output. `println!` would panic where nobody reads it any more, as in
//! `pext4 build ... | head -1`; here that is an error, which ends a command quietly
//! ([`report`](crate::failure::report)).

use std::fmt::Display;
use std::io::{self, Write};

/// Says a line, or several.
///
/// # Errors
/// Standard output takes nothing (any more).
pub fn say(line: impl Display) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
