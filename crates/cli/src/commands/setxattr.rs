//! `pext4 setxattr`: extended attributes of files in an image.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Error, Result};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use pext4_edit::{Change, EditError, EditSession, change, check_attribute_name};
use pext4_ondisk::shown::Shown;

use crate::editing::{Verb, path};

/// The arguments behind the image.
#[derive(Args)]
pub struct Arguments {
    /// The file; a symbolic link is followed
    path: OsString,
    /// The attribute, as in user.note or security.capability
    #[arg(value_parser = OsStringValueParser::new().try_map(name))]
    name: OsString,
    /// The value: text, or bytes in hexadecimal behind 0x
    #[arg(
        required_unless_present = "remove",
        value_parser = OsStringValueParser::new().try_map(value)
    )]
    value: Option<Value>,
    /// Remove the attribute
    #[arg(short = 'x', long, conflicts_with = "value")]
    remove: bool,
}

/// The bytes of a value.
#[derive(Clone)]
struct Value(Vec<u8>);

fn name(name: OsString) -> Result<OsString, String> {
    check_attribute_name(name.as_bytes()).map(|()| name)
}

fn value(text: OsString) -> Result<Value, &'static str> {
    let bytes = bytes(text.as_bytes()).ok_or("the value is no hexadecimal")?;
    Ok(Value(bytes))
}

impl Verb for Arguments {
    fn apply(&self, session: &mut EditSession) -> Result<()> {
        let (path, name) = (path(&self.path), path(&self.name));
        let shown = format!("{}: attribute {}", Shown(&path), Shown(&name));
        let change = match &self.value {
            None => Change::RemoveXattr(change::RemoveXattr { path, name }),
            Some(Value(value)) => Change::SetXattr(change::SetXattr {
                path,
                name,
                value: value.clone(),
            }),
        };
        session.apply(&change).map_err(|error| match error {
            EditError::AtPath { image, source, .. } => {
                let image = image.map(|image| format!("{}:", image.display()));
                Error::new(source).context(image.unwrap_or_default() + &shown)
            }
            error => error.into(),
        })
    }
}

/// The bytes that a value stands for.
fn bytes(value: &[u8]) -> Option<Vec<u8>> {
    let Some(digits) = value.strip_prefix(b"0x") else {
        return Some(value.to_vec());
    };
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        let digits = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(text, 16).ok())?
    };
    digits.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn values_are_text_or_hexadecimal() {
        assert_eq!(bytes(b"text").as_deref(), Some(&b"text"[..]));
        assert_eq!(bytes(b"0x00fF").as_deref(), Some(&[0, 255][..]));
        assert_eq!(bytes(b"0x").as_deref(), Some(&[][..]));
        assert_eq!(bytes(b"0x1"), None);
        assert_eq!(bytes(b"0x+1"), None);
    }
}
