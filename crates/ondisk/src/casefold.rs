//! How a directory compares and hashes names: by their bytes or, if it is casefolded, by their
//! folded form, in which names that differ only in case or in how accents are composed are equal.
//!
//! The encoding is that of the kernel and e2fsprogs, `utf8-12.1`, and the only one. Folding is full
//! case folding (Unicode's CF) of decomposed characters, in the canonical order (NFD); then
//! characters without an effect on what is shown (`Default_Ignorable_Code_Point`) are dropped. For
//! characters that Unicode 12.1 had, neither folding nor decomposition ever changes, so the tables
//! of a later version serve; those that came later stand for themselves and order no marks. A name
//! that is no UTF-8 is *opaque*: it stands for itself as a whole, and so equals no other name. `.`
//! and `..` are always compared by their bytes.
//!
//! The stored name keeps its case; no folded name is ever written. [`Naming`] is the rule of one
//! directory and is part of the [`Format`](crate::directory::Format) and the
//! [`Hasher`](crate::dirhash::Hasher) with which it is read, so that both agree in all places.
//!
//! `assigned` has numbers from Unicode's character database (Unicode License v3).

mod assigned;

use std::borrow::Cow;

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

use assigned::is_assigned;

/// The number of `utf8-12.1` in the superblock (`s_encoding`).
pub const UTF8_12_1: u16 = 1;
/// The flag in the superblock (`s_encoding_flags`) by which opaque names are refused in casefolded
/// directories.
pub const STRICT: u16 = 1;

/// How a directory compares and hashes names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// By their bytes.
    Exact,
    /// By their folded form.
    Folded,
}

impl Naming {
    /// The bytes that stand for a name: two names of a directory are equal if these are, and the
    /// hash of a name is computed from them.
    #[inline]
    #[must_use]
    pub fn key(self, name: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Exact => Cow::Borrowed(name),
            Self::Folded => fold(name),
        }
    }

    /// A name that is looked for in a directory of this kind.
    #[inline]
    #[must_use]
    pub fn wanted(self, name: &[u8]) -> Wanted<'_> {
        Wanted {
            name,
            key: match self {
                Self::Exact => None,
                Self::Folded => Some(fold(name)),
            },
        }
    }

    /// Whether two names are one in a directory of this kind.
    #[must_use]
    pub fn is_same(self, one: &[u8], other: &[u8]) -> bool {
        one == other || self.wanted(one).is(other)
    }
}

/// A name that is looked for, folded once for all names with which it is compared.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    name: &'a [u8],
    /// Its folded form, if the directory folds names.
    key: Option<Cow<'a, [u8]>>,
}

impl Wanted<'_> {
    /// The bytes that stand for it, as by [`Naming::key`].
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.as_deref().unwrap_or(self.name)
    }

    /// Whether a name of the directory is this one. The last bytes are compared first, since names
    /// in one directory often begin alike.
    #[inline]
    #[must_use]
    pub fn is(&self, own: &[u8]) -> bool {
        match &self.key {
            None => {
                own.len() == self.name.len() && own.last() == self.name.last() && own == self.name
            }
            Some(key) => own == self.name || is_folded_to(own, key),
        }
    }
}

#[cold]
fn is_folded_to(own: &[u8], key: &[u8]) -> bool {
    !is_dot(own) && *fold(own) == *key
}

fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Whether a casefolded directory with a strict encoding may have this name.
#[must_use]
pub fn is_encoded(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok()
}

/// Whether a name that is not `.` or `..` looks like one of them when it is folded. A directory
/// without an index would show another program the directory itself in its place, so none is made.
#[must_use]
pub fn hides_behind_dots(name: &[u8]) -> bool {
    !is_dot(name) && is_dot(&fold(name))
}

/// The folded form of a name; an opaque name is its own.
#[must_use]
pub fn fold(name: &[u8]) -> Cow<'_, [u8]> {
    if name.is_ascii() {
        return if name.iter().any(u8::is_ascii_uppercase) {
            Cow::Owned(name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(name)
        };
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return Cow::Borrowed(name);
    };
    let mut folded = String::with_capacity(name.len());
    let mut rest = text;
    while let Some(at) = rest.find(|character| !is_assigned(character)) {
        fold_assigned(&rest[..at], &mut folded);
        let mut behind = rest[at..].chars();
        folded.extend(behind.next());
        rest = behind.as_str();
    }
    fold_assigned(rest, &mut folded);
    folded.retain(|character| !is_ignorable(character));
    Cow::Owned(folded.into_bytes())
}

/// Each character is decomposed for itself: some marks (U+0345) are letters once they are folded,
/// and letters keep their place.
fn fold_assigned(text: &str, into: &mut String) {
    let decomposed = text
        .chars()
        .flat_map(|character| std::iter::once(character).nfd());
    into.extend(decomposed.default_case_fold().nfd());
}

/// Unicode's `Default_Ignorable_Code_Point`.
fn is_ignorable(character: char) -> bool {
    matches!(
        u32::from(character),
        0xAD | 0x34F
            | 0x61C
            | 0x115F..=0x1160
            | 0x17B4..=0x17B5
            | 0x180B..=0x180E
            | 0x200B..=0x200F
            | 0x202A..=0x202E
            | 0x2060..=0x206F
            | 0x3164
            | 0xFE00..=0xFE0F
            | 0xFEFF
            | 0xFFA0
            | 0xFFF0..=0xFFF8
            | 0x1BCA0..=0x1BCA3
            | 0x1D173..=0x1D17A
            | 0xE0000..=0xE0FFF
    )
}

#[cfg(test)]
mod tests;
