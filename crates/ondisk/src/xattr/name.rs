//! Names of attributes: a prefix that is stored as a number, and the rest.

use crate::directory::FileType;

/// The number of `user.`.
const INDEX_USER: u8 = 1;

/// The number of `system.`; inline data is the attribute `system.data`.
pub const INDEX_SYSTEM: u8 = 7;

/// Longest full name in bytes (`XATTR_NAME_MAX`).
pub const MAX_FULL_NAME: usize = 255;

/// The number of `system.richacl`, which nothing uses.
const INDEX_RICHACL: u8 = 8;

/// Names that consist of a prefix only, with their numbers.
const WHOLE: [(u8, &[u8]); 3] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (INDEX_RICHACL, b"system.richacl"),
];

/// Prefixes that a name follows, with their numbers.
const PREFIXES: [(u8, &[u8]); 5] = [
    (INDEX_USER, b"user."),
    (4, b"trusted."),
    (6, b"security."),
    (INDEX_SYSTEM, b"system."),
    (10, b"gnu."),
];

/// Splits a full name (`user.x`) into the number of its prefix and the rest; `None` if the prefix
/// has no number, nothing follows it, or a NUL byte does.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    if let Some((index, _)) = WHOLE.iter().find(|(_, whole)| *whole == full) {
        return Some((*index, b""));
    }
    PREFIXES.iter().find_map(|(index, prefix)| {
        let rest = full.strip_prefix(*prefix)?;
        (!rest.is_empty() && !rest.contains(&0)).then_some((*index, rest))
    })
}

/// Whether files of a kind have attributes with this number. Linux has `user.` on files and
/// directories only: elsewhere no call sets or reads such attributes.
#[must_use]
pub fn is_placed(kind: FileType, index: u8) -> bool {
    index != INDEX_USER || matches!(kind, FileType::Regular | FileType::Directory)
}

/// Whether callers see attributes with this number: not ext4's own (inline data, keys).
#[must_use]
pub fn is_visible(index: u8) -> bool {
    index != INDEX_SYSTEM && index != INDEX_RICHACL
}

/// Whether a full name is only the prefix of names that callers see.
#[must_use]
pub fn is_bare_prefix(full: &[u8]) -> bool {
    let mut prefixes = PREFIXES.iter().filter(|(index, _)| is_visible(*index));
    prefixes.any(|(_, prefix)| *prefix == full)
}

/// The full name from a number and the rest; `None` if no prefix has the number.
#[must_use]
pub fn full_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let prefix = WHOLE
        .iter()
        .chain(&PREFIXES)
        .find(|(number, _)| *number == index)?
        .1;
    Some([prefix, rest].concat())
}

/// The full name by which callers get an attribute; `None` if no call can name it: one that is
/// hidden ([`is_visible`]), one of an unknown prefix, or one that [`is_unnameable`].
#[must_use]
pub fn callable_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let full = full_name(index, rest).filter(|_| is_visible(index))?;
    let is_split_so = split_name(&full) == Some((index, rest));
    (is_split_so && full.len() <= MAX_FULL_NAME).then_some(full)
}

/// Whether an attribute that callers would see has a name that no call takes: a prefix that nothing
/// follows, an access control list whose name goes on, or too many bytes. Nothing makes them.
#[must_use]
pub fn is_unnameable(index: u8, rest: &[u8]) -> bool {
    is_visible(index) && full_name(index, rest).is_some() && callable_name(index, rest).is_none()
}
