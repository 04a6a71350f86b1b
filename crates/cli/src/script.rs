//! Splits a script's line into words, with the quoting of a shell.
//!
//! Blanks separate words. Between `'` all bytes are literal; between `"` a backslash quotes `"` and
//! `\`; elsewhere it quotes any byte. `#` at the start of a word begins a comment. Nothing is
//! expanded: no variables, no patterns.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;

/// The maximum length of a script in bytes. All of it is kept in memory.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a script to its end.
///
/// # Errors
///
/// Those of the file; it is longer than any script, as `/dev/zero` is.
pub fn read(file: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        let problem = format!("a script has at most {} MiB", MAX_BYTES >> 20);
        return Err(io::Error::other(problem));
    }
    Ok(text)
}

/// The words of a line.
///
/// # Errors
///
/// A quote that is not closed, or a backslash at the end.
pub fn words(line: &[u8]) -> Result<Vec<OsString>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut rest = line.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b' ' | b'\t' | b'\r' => words.extend(word.take().map(OsString::from_vec)),
            b'#' if word.is_none() => break,
            b'\'' | b'"' => {
                let word = word.get_or_insert_default();
                quoted(byte, &mut rest, word)?;
            }
            b'\\' => {
                let next = rest.next().ok_or("a backslash stands at the end")?;
                word.get_or_insert_default().push(next);
            }
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word.map(OsString::from_vec));
    Ok(words)
}

fn quoted(
    quote: u8,
    rest: &mut impl Iterator<Item = u8>,
    word: &mut Vec<u8>,
) -> Result<(), String> {
    loop {
        let open = || format!("a quote ({}) is not closed", char::from(quote));
        let byte = rest.next().ok_or_else(open)?;
        if byte == quote {
            return Ok(());
        }
        if byte != b'\\' || quote == b'\'' {
            word.push(byte);
            continue;
        }
        let next = rest.next().ok_or_else(open)?;
        if !matches!(next, b'"' | b'\\') {
            word.push(b'\\');
        }
        word.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::{read, words};

    fn split(line: &str) -> Vec<String> {
        let words = words(line.as_bytes()).expect(line);
        words
            .into_iter()
            .map(|word| word.into_string().expect("text"))
            .collect()
    }

    #[test]
    fn a_script_without_an_end_is_not_read_for_ever() {
        assert_eq!(read(&b"rm /a\n"[..]).expect("memory"), b"rm /a\n");
        let told = read(std::io::repeat(0)).expect_err("it has no end");
        assert!(told.to_string().contains("at most 64 MiB"), "{told}");
    }

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        assert_eq!(split("put  a\tb "), ["put", "a", "b"]);
        assert_eq!(
            split(r#"'a b' "c \" d" e\ f g"h"'i'"#),
            ["a b", "c \" d", "e f", "ghi"]
        );
        assert_eq!(split(r#""\n" '\n' """#), ["\\n", "\\n", ""]);
        assert_eq!(split("$HOME *"), ["$HOME", "*"]);
    }

    #[test]
    fn comments_begin_with_a_word() {
        assert!(split("  # all").is_empty());
        assert_eq!(split("rm a#b #c"), ["rm", "a#b"]);
        assert!(split("").is_empty());
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        for line in ["'a", "\"a", "\"a\\", "a\\"] {
            assert!(words(line.as_bytes()).is_err(), "{line}");
        }
    }
}
