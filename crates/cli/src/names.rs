//! Output of file names, which are any bytes but zero and slash, and may come from a hostile image.
//!
//! A terminal must not interpret them, so bytes that are no printable text are escaped, as in
//! `\x1b`. JSON output has the text of a name, and its bytes in hexadecimal if it is not UTF-8.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use pext4_ondisk::shown::is_harmless;
use serde::Serialize;

/// A name for a terminal.
pub fn show(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => shown.push_str("\\\\"),
                _ if is_harmless(letter) => shown.push(letter),
                _ => {
                    let mut bytes = [0; 4];
                    escape(letter.encode_utf8(&mut bytes).as_bytes(), &mut shown);
                }
            }
        }
        escape(chunk.invalid(), &mut shown);
    }
    shown
}

fn escape(bytes: &[u8], shown: &mut String) {
    for byte in bytes {
        write!(shown, "\\x{byte:02x}").expect("writing to a string cannot fail");
    }
}

/// Bytes in hexadecimal, if they are not UTF-8.
pub fn hexadecimal_unless_text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes)
        .is_err()
        .then(|| hexadecimal(bytes))
}

/// The name of an image file in a report for programs.
#[derive(Debug, Serialize)]
pub struct ImageName {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_hex: Option<String>,
}

impl ImageName {
    pub fn of(image: &Path) -> Self {
        let bytes = image.as_os_str().as_bytes();
        Self {
            image: text(bytes),
            image_hex: hexadecimal_unless_text(bytes),
        }
    }
}

/// The path of what was written, in a report for programs.
#[derive(Debug, Serialize)]
pub struct PathName {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
}

impl PathName {
    pub fn of(path: &Path) -> Self {
        let bytes = path.as_os_str().as_bytes();
        Self {
            path: text(bytes),
            path_hex: hexadecimal_unless_text(bytes),
        }
    }
}

/// Bytes in hexadecimal.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

/// Bytes as text. Invalid UTF-8 is replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::{ImageName, hexadecimal_unless_text, show};

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(show("plain \u{e9}".as_bytes()), "plain \u{e9}");
        assert_eq!(show(b"\x1b[2Jred"), "\\x1b[2Jred");
        assert_eq!(show(b"line\nend"), "line\\x0aend");
        assert_eq!(show(b"back\\slash"), "back\\\\slash");
        assert_eq!(show(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(show("a\u{202e}b".as_bytes()), "a\\xe2\\x80\\xaeb");
    }

    #[test]
    fn programs_get_bytes_that_are_no_text() {
        assert_eq!(hexadecimal_unless_text(b"text"), None);
        assert_eq!(
            hexadecimal_unless_text(b"\xff\x00").as_deref(),
            Some("ff00")
        );
    }

    #[test]
    fn so_do_they_of_the_name_of_an_image() {
        let of = |name: &[u8]| {
            let name = ImageName::of(Path::new(OsStr::from_bytes(name)));
            serde_json::to_string(&name).expect("two texts")
        };
        assert_eq!(of(b"root.img"), r#"{"image":"root.img"}"#);
        let expected = "{\"image\":\"a\u{fffd}\",\"image_hex\":\"61ff\"}";
        assert_eq!(of(b"a\xff"), expected);
    }
}
