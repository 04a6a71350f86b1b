//! Display of names and paths.

use std::fmt;

/// Displays bytes in a message; escapes everything that a terminal might interpret.
#[derive(Debug)]
pub struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                if !is_harmless(letter) {
                    write!(formatter, "{}", letter.escape_default())?;
                } else {
                    write!(formatter, "{letter}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(formatter, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Whether a character only displays itself: no control character, and none that ends the line or
/// changes its direction.
#[must_use]
pub fn is_harmless(letter: char) -> bool {
    let turns = matches!(
        letter,
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let ends_line = matches!(letter, '\u{2028}' | '\u{2029}');
    !letter.is_control() && !turns && !ends_line
}

#[cfg(test)]
mod tests {
    use super::Shown;

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        for (bytes, shown) in [
            (&b"plain"[..], "plain"),
            ("zw\u{f6}lf".as_bytes(), "zw\u{f6}lf"),
            (b"a\x1b[2J", "a\\u{1b}[2J"),
            (b"a\nb\xff", "a\\nb\\xff"),
            ("a\u{202e}b".as_bytes(), "a\\u{202e}b"),
            ("a\u{2067}b".as_bytes(), "a\\u{2067}b"),
            ("a\u{2028}b".as_bytes(), "a\\u{2028}b"),
        ] {
            assert_eq!(Shown(bytes).to_string(), shown);
        }
    }
}
