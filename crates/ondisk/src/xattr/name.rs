//! Names of attributes: a prefix that is stored as a number, and the rest.

/// The number of `system.`, under which inline data lies as `system.data`.
pub const INDEX_SYSTEM: u8 = 7;

/// The number of `system.richacl`, which nothing uses.
const INDEX_RICHACL: u8 = 8;

/// Names that are a prefix and nothing else.
const WHOLE: [(u8, &[u8]); 3] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (INDEX_RICHACL, b"system.richacl"),
];

/// Prefixes that a name follows.
const PREFIXES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (4, b"trusted."),
    (6, b"security."),
    (INDEX_SYSTEM, b"system."),
    (10, b"gnu."),
];

/// The number and the rest of a full name (`user.x`); `None` if no number stands for its prefix or
/// nothing follows it.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    if let Some((index, _)) = WHOLE.iter().find(|(_, whole)| *whole == full) {
        return Some((*index, b""));
    }
    PREFIXES.iter().find_map(|(index, prefix)| {
        let rest = full.strip_prefix(*prefix)?;
        (!rest.is_empty()).then_some((*index, rest))
    })
}

/// Whether callers see attributes under this number: not those of ext4 itself (inline data, keys).
#[must_use]
pub fn is_visible(index: u8) -> bool {
    index != INDEX_SYSTEM && index != INDEX_RICHACL
}

/// Whether a full name is the prefix of names that callers see, with nothing behind it.
#[must_use]
pub fn is_bare_prefix(full: &[u8]) -> bool {
    let mut prefixes = PREFIXES.iter().filter(|(index, _)| is_visible(*index));
    prefixes.any(|(_, prefix)| *prefix == full)
}

/// The full name from its number and the rest; `None` for numbers that stand for no prefix.
#[must_use]
pub fn full_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let prefix = WHOLE
        .iter()
        .chain(&PREFIXES)
        .find(|(number, _)| *number == index)?
        .1;
    Some([prefix, rest].concat())
}
