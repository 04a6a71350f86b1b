//! Access control lists as text, as archives store them: `user::rw-,user:1000:r--,mask::r--`.
//!
//! Archives store them in the records `SCHILY.acl.access` and `SCHILY.acl.default` (star's manual,
//! libarchive's tar(5); the long and the short form of acl(5)). An entry ends at a comma or at the
//! end of the line. A `#` begins a comment that ends with its line, such as getfacl's
//! `#effective:r--`. star and bsdtar write a fourth part, the numeric id. An image stores only
//! numeric ids, so a name without a number is refused. `mask` and `other`, which have no name, may
//! have one colon, as star and Solaris write them. A list that is not valid is refused as well, and
//! one with two entries for one user or group.

use std::fmt::Write as _;

use super::{Acl, Entry, GROUP, GROUP_OBJECT, MASK, NO_ID, OTHER, Problem, USER, USER_OBJECT};

/// Parses a list, with entries in any order; `None` if the text has no entries.
///
/// # Errors
///
/// The first problem of the text or the list.
pub fn parse(text: &[u8]) -> Result<Option<Acl>, Problem> {
    let text = std::str::from_utf8(text).map_err(|_| Problem::NotText)?;
    let mut entries = Vec::new();
    for line in text.split('\n') {
        let line = line.split('#').next().unwrap_or_default();
        for part in line.split(',').map(str::trim) {
            if !part.is_empty() {
                entries.push(entry(part)?);
            }
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    entries.sort_unstable_by_key(|entry| (entry.tag, entry.id));
    // Linux takes such a list from a call, but acl(5) has none, and it is hardly meant.
    let same = |pair: &[Entry]| (pair[0].tag, pair[0].id) == (pair[1].tag, pair[1].id);
    if entries.windows(2).any(same) {
        return Err(Problem::Twice);
    }
    Acl::new(entries).map(Some)
}

/// The list as text with numeric ids, which every reader of such texts accepts.
#[must_use]
pub fn text(list: &Acl) -> String {
    let mut text = String::new();
    for entry in list.entries() {
        let kind = match entry.tag {
            USER_OBJECT | USER => "user",
            GROUP_OBJECT | GROUP => "group",
            MASK => "mask",
            _ => "other",
        };
        let comma = if text.is_empty() { "" } else { "," };
        let letters = letters(entry.permissions);
        // Writing to a string cannot fail.
        let _ = match entry.is_named() {
            true => write!(text, "{comma}{kind}:{}:{letters}", entry.id),
            false => write!(text, "{comma}{kind}::{letters}"),
        };
    }
    text
}

fn entry(text: &str) -> Result<Entry, Problem> {
    let unsound = || Problem::Entry(text.to_owned());
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    let (kind, name, letters, number) = match parts[..] {
        [kind, name, letters] => (kind, name, letters, ""),
        [kind, name, letters, number] => (kind, name, letters, number),
        [kind @ ("mask" | "m" | "other" | "o"), letters] => (kind, "", letters, ""),
        _ => return Err(unsound()),
    };
    let tag = match (kind, name.is_empty()) {
        ("user" | "u", true) => USER_OBJECT,
        ("user" | "u", false) => USER,
        ("group" | "g", true) => GROUP_OBJECT,
        ("group" | "g", false) => GROUP,
        ("mask" | "m", true) => MASK,
        ("other" | "o", true) => OTHER,
        _ => return Err(unsound()),
    };
    let id = match (tag, number) {
        (USER | GROUP, "") => id(name).ok_or_else(|| Problem::Named(name.to_owned()))?,
        (USER | GROUP, number) => id(number).ok_or_else(unsound)?,
        (_, "") => NO_ID,
        _ => return Err(unsound()),
    };
    Ok(Entry {
        tag,
        permissions: permissions(letters).ok_or_else(unsound)?,
        id,
    })
}

fn id(number: &str) -> Option<u32> {
    number.parse().ok().filter(|id| *id != NO_ID)
}

fn permissions(letters: &str) -> Option<u16> {
    letters.chars().try_fold(0, |permissions, letter| {
        let bit = match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return None,
        };
        Some(permissions | bit)
    })
}

fn letters(permissions: u16) -> String {
    let letter = |(bit, letter)| if permissions & bit != 0 { letter } else { '-' };
    [(4, 'r'), (2, 'w'), (1, 'x')].map(letter).iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{Problem, parse};

    const STORED: [u8; 28] = [
        1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0, 0, 0,
    ];

    #[test]
    fn text_says_what_is_stored() {
        let plain = "user::rw-,user:1000:r--,group::r--,mask::r--,other::---";
        for text in [
            plain,
            "mask::r\nother::\nuser:lisa:r--:1000 # a comment, with: all\n\nuser::rw-\ngroup::r--",
            "user::rw-,user:1000:r--,group::r--,mask:r--,other:---",
            "u::rw-\nu:1000:r--\t#effective:---\ng::r--\nm::r--\no::---\n",
            // A number takes precedence over a name, whatever the name looks like.
            "user::rw-,user:77:r--:1000,group::r--,mask::r--,other::---",
        ] {
            let list = parse(text.as_bytes()).expect(text).expect(text);
            assert_eq!(list.to_disk(), STORED, "{text}");
            assert_eq!(list.mode_bits(), 0o640, "{text}");
            assert_eq!(super::text(&list), plain);
        }
    }

    #[test]
    fn the_mask_is_what_a_mode_shows_of_the_group() {
        for (text, mode) in [
            ("user::rwx,group::r--,other::--x", 0o741),
            (
                "user::rw-,user:1:rwx,group::---,mask::r-x,other::r--",
                0o654,
            ),
            (
                "user::rw-,group:1:rwx,group::rwx,mask::---,other::r--",
                0o604,
            ),
        ] {
            let list = parse(text.as_bytes()).expect(text).expect(text);
            assert_eq!(list.mode_bits(), mode, "{text}");
        }
    }

    #[test]
    fn nothing_is_no_list_and_nonsense_is_refused() {
        for text in [&b""[..], b"\n,\n", b"# nothing"] {
            assert_eq!(parse(text), Ok(None));
        }
        for text in [
            &b"\xFF"[..],
            b":",
            b"::::",
            b"user::rwx:1:2",
            b"user::rwx:1",
            b"user",
            b"user:rwx",
            b"mask:1",
            b"mask:1:r",
            b"user:-1:r",
            b"user:99999999999:r",
            b"user:lisa:r:4294967295",
        ] {
            assert!(parse(text).is_err(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_list_that_linux_would_not_take_is_refused() {
        let base = "user::rwx,group::r-x,other::r-x";
        for (more, problem) in [
            (",other::r--", Problem::Twice),
            (",mask::r-x,user:1:r--,user:1:rwx", Problem::Twice),
            (",mask::r-x,user:1:r--,user:lisa:rwx:1", Problem::Twice),
            (",user:1000:rwx", Problem::Missing("mask::")),
            (",group:wheel:rwx", Problem::Named("wheel".to_owned())),
        ] {
            let text = format!("{base}{more}");
            assert_eq!(parse(text.as_bytes()), Err(problem), "{text}");
        }
        let told = parse(b"user::rwx,group::r-x");
        assert_eq!(told, Err(Problem::Missing("other::")));
        let told = parse(b"user:\x1b[31m:rwx").unwrap_err().to_string();
        assert!(told.contains("`\\u{1b}[31m`"), "{told}");
    }
}
