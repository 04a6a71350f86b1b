//! Splits a line that people write into words, with the quoting of a shell.
//!
//! Blanks separate words. Between `'` all bytes are literal; between `"` a backslash quotes `"` and
//! `\`; elsewhere it quotes any byte. `#` at the start of a word begins a comment. Nothing is
//! expanded: no variables, no patterns.

/// The words of a line.
///
/// # Errors
///
/// A quote that is not closed, or a backslash at the end.
pub fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut rest = line.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b' ' | b'\t' | b'\r' => words.extend(word.take()),
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
    words.extend(word);
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
    use super::words;

    fn split(line: &str) -> Vec<String> {
        let words = words(line.as_bytes()).expect(line);
        words
            .into_iter()
            .map(|word| String::from_utf8(word).expect("text"))
            .collect()
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
