//! Extended attributes in the records of pax archives.
//!
//! star, GNU tar and bsdtar write `SCHILY.xattr.NAME=VALUE`. A key ends at its first `=`, so GNU
//! tar writes `%3D` for a `=` in a name, and `%25` for `%`; it decodes only these two, and so does
//! this module. bsdtar writes each attribute a second time as `LIBARCHIVE.xattr.NAME=VALUE`, with
//! unusual bytes of the name as `%XX` and the value in base64 (libarchive's tar(5)). bsdtar uses
//! the encoded name in both records: of such a pair, only the second one is used.
//!
//! GNU tar writes the label of a file as `RHT.security.selinux=LABEL` if labels are requested: the
//! text without the NUL that Linux stores after it. A record of the attribute itself takes
//! precedence.
//!
//! The value of a record `SCHILY.xattr.` may be empty: this means an attribute with an empty value,
//! and does not delete the key, as an empty value does elsewhere in pax.

use std::collections::BTreeMap;

/// The prefix of keys with plain values.
const PLAIN: &[u8] = b"SCHILY.xattr.";
/// The prefix of keys with base64 values.
const ENCODED: &[u8] = b"LIBARCHIVE.xattr.";
/// The key of a label in GNU tar's form, and the attribute for it.
const LABEL: &[u8] = b"RHT.security.selinux";
const LABEL_NAME: &[u8] = b"security.selinux";

/// The error of a value that is no base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value in a LIBARCHIVE.xattr record is no base64")]
pub struct NotBase64;

/// An attribute's full name, and its value if it can be decoded.
pub type Named = (Vec<u8>, Result<Vec<u8>, NotBase64>);

/// The records of an archive's entry that concern attributes.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Plain records by the key without its prefix.
    plain: BTreeMap<Vec<u8>, Vec<u8>>,
    encoded: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The text of a label; empty if there is none.
    label: Vec<u8>,
}

impl Records {
    /// Sets the value of a key; false if the key does not concern attributes. Of several values of
    /// one key, the last one counts.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> bool {
        if key == LABEL {
            self.label = value.to_vec();
            return true;
        }
        let (records, name) = if let Some(name) = key.strip_prefix(PLAIN) {
            (&mut self.plain, name)
        } else if let Some(name) = key.strip_prefix(ENCODED) {
            (&mut self.encoded, name)
        } else {
            return false;
        };
        records.insert(name.to_vec(), value.to_vec());
        true
    }

    /// The number of records, and the bytes of their keys and values.
    #[must_use]
    pub fn extent(&self) -> (usize, usize) {
        let all = self.plain.iter().chain(&self.encoded);
        all.fold((0, self.label.len()), |(count, bytes), (name, value)| {
            (count + 1, bytes + name.len() + value.len())
        })
    }

    /// The attributes of the records, by full name. An attribute with both forms of records is
    /// returned once.
    pub fn attributes(&self) -> impl Iterator<Item = Named> {
        let encoded = self.encoded.iter().map(|(name, value)| {
            let value = decode_base64(value).ok_or(NotBase64);
            (decode_percent(name, |_| true), value)
        });
        let plain = self.plain.iter().filter_map(|(name, value)| {
            let is_twin = self.encoded.contains_key(name);
            (!is_twin).then(|| (decode_name(name), Ok(value.clone())))
        });
        // By the decoded name: the same one may have both forms of records.
        let mut all: BTreeMap<_, _> = plain.chain(encoded).collect();
        if !self.label.is_empty() {
            let value = all.entry(LABEL_NAME.to_vec());
            value.or_insert_with(|| Ok(terminated(&self.label)));
        }
        all.into_iter()
    }
}

/// The key of the record for the attribute with this full name.
#[must_use]
pub fn key(name: &[u8]) -> Vec<u8> {
    let mut key = PLAIN.to_vec();
    for &byte in name {
        match byte {
            b'%' => key.extend(b"%25"),
            b'=' => key.extend(b"%3D"),
            byte => key.push(byte),
        }
    }
    key
}

/// A text followed by one NUL, as Linux stores labels.
fn terminated(text: &[u8]) -> Vec<u8> {
    let end = text.strip_suffix(b"\0").unwrap_or(text);
    [end, b"\0"].concat()
}

fn decode_name(name: &[u8]) -> Vec<u8> {
    decode_percent(name, |code| matches!(code, b"25" | b"3D"))
}

/// Decodes those `%XX` for whose two digits `is_meant` is true.
fn decode_percent(text: &[u8], is_meant: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let code = behind
            .first_chunk()
            .filter(|code| byte == b'%' && is_meant(*code));
        match code.and_then(byte_of) {
            Some(byte) => {
                decoded.push(byte);
                rest = &behind[2..];
            }
            None => {
                decoded.push(byte);
                rest = behind;
            }
        }
    }
    decoded
}

fn byte_of(digits: &[u8; 2]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(digits[0])? << 4 | digit(digits[1])?;
    u8::try_from(value).ok()
}

/// Decodes base64, with or without padding.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|&byte| byte != b'=');
    let digits = &text[..end.map_or(0, |last| last + 1)];
    let mut decoded = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let bits = group.iter().try_fold(0u32, |bits, &digit| {
            Some(bits << 6 | u32::from(sextet(digit)?))
        })?;
        match group.len() {
            4 => decoded.extend_from_slice(&bits.to_be_bytes()[1..]),
            3 => decoded.extend_from_slice(&(bits << 6).to_be_bytes()[1..3]),
            2 => decoded.extend_from_slice(&(bits << 12).to_be_bytes()[1..2]),
            _ => return None,
        }
    }
    Some(decoded)
}

fn sextet(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Named, Records, decode_base64, key};

    fn attributes(records: &[(&[u8], &[u8])]) -> Vec<Named> {
        let mut taken = Records::default();
        for (key, value) in records {
            assert!(taken.set(key, value));
        }
        taken.attributes().collect()
    }

    #[test]
    fn names_come_back_from_their_keys() {
        for name in [
            &b"user.plain"[..],
            b"user.a=b",
            b"user.100%",
            b"user.%3D",
            b"user.%25=%3d\n\xFF",
        ] {
            let key = key(name);
            assert!(!key.contains(&b'='), "{}", key.escape_ascii());
            let value = b"v=\0".to_vec();
            assert_eq!(attributes(&[(&key, &value)]), [(name.to_vec(), Ok(value))]);
        }
    }

    #[test]
    fn of_plain_names_only_what_gnu_tar_writes_is_decoded() {
        let key = b"SCHILY.xattr.user.q%41%3d%2";
        let expected = (b"user.q%41%3d%2".to_vec(), Ok(b"1".to_vec()));
        assert_eq!(attributes(&[(key, b"1")]), [expected]);
        assert!(!Records::default().set(b"SCHILY.xattr", b""));
        assert!(!Records::default().set(b"path", b"x"));
    }

    #[test]
    fn an_attribute_in_both_forms_comes_once() {
        // As bsdtar writes `user.a b`, `user.p%q` and an empty value.
        let found = attributes(&[
            (b"LIBARCHIVE.xattr.user.a%20b", b"dw"),
            (b"SCHILY.xattr.user.a%20b", b"w"),
            (b"LIBARCHIVE.xattr.user.p%25q", b"dgA="),
            (b"SCHILY.xattr.user.p%25q", b"v\0"),
            (b"LIBARCHIVE.xattr.user.empty", b""),
            (b"SCHILY.xattr.user.empty", b""),
            (b"SCHILY.xattr.user.own", b"x"),
        ]);
        let expected = [
            (&b"user.a b"[..], &b"w"[..]),
            (b"user.empty", b""),
            (b"user.own", b"x"),
            (b"user.p%q", b"v\0"),
        ];
        let expected = expected.map(|(name, value)| (name.to_vec(), Ok(value.to_vec())));
        assert_eq!(found, expected);
        let raw = attributes(&[
            (b"LIBARCHIVE.xattr.user.a%20b", b"dw"),
            (b"SCHILY.xattr.user.a b", b"other"),
        ]);
        assert_eq!(raw, [(b"user.a b".to_vec(), Ok(b"w".to_vec()))]);
    }

    #[test]
    fn a_label_is_an_attribute_unless_that_is_there() {
        let kept = (b"security.selinux".to_vec(), Ok(b"u:r:t:s0\0".to_vec()));
        for label in [&b"u:r:t:s0"[..], b"u:r:t:s0\0"] {
            let key: &[u8] = b"RHT.security.selinux";
            assert_eq!(attributes(&[(key, label)]), std::slice::from_ref(&kept));
            let own: (&[u8], &[u8]) = (b"SCHILY.xattr.security.selinux", b"own\0");
            let expected = (b"security.selinux".to_vec(), Ok(b"own\0".to_vec()));
            for records in [[(key, label), own], [own, (key, label)]] {
                assert_eq!(attributes(&records), std::slice::from_ref(&expected));
            }
            assert_eq!(attributes(&[(key, label), (key, b"")]), []);
        }
    }

    #[test]
    fn base64_is_read_with_and_without_padding() {
        for (text, bytes) in [
            (&b""[..], &b""[..]),
            (b"AA", b"\0"),
            (b"AA==", b"\0"),
            (b"dgA", b"v\0"),
            (b"Zm9v", b"foo"),
            (b"Zm9vYg==", b"foob"),
            (b"+/+/", b"\xFB\xFF\xBF"),
        ] {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes));
        }
        for text in [&b"A"[..], b"d*g=", b"Zm9vA", b"Zm=v", b"Zm 9v"] {
            assert_eq!(decode_base64(text), None, "{}", text.escape_ascii());
        }
    }
}
