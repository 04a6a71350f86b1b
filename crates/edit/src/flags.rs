//! Flags of inodes as `chattr` takes them: `+i`, `-i`, `+ad-A`, `=d`.
//!
//! The letters are those of chattr(1), without the flags that request what ext4 does not do (`c`,
//! `m`, `t`, `C`) and those that this version cannot change (`j`, `x`). Unless they are named, `=`
//! leaves two flags: `e`, which says how the file is stored, and `F`, which only an empty directory
//! can get or lose.

use std::str::FromStr;

use pext4_ondisk::inode::InodeFlags;
use thiserror::Error;

/// The letters, and what they stand for.
const LETTERS: [(char, InodeFlags); 12] = [
    ('a', InodeFlags::APPEND),
    ('A', InodeFlags::NOATIME),
    ('d', InodeFlags::NODUMP),
    ('D', InodeFlags::DIRSYNC),
    ('e', InodeFlags::EXTENTS),
    ('F', InodeFlags::CASEFOLD),
    ('i', InodeFlags::IMMUTABLE),
    ('P', InodeFlags::PROJINHERIT),
    ('s', InodeFlags::SECRM),
    ('S', InodeFlags::SYNC),
    ('T', InodeFlags::TOPDIR),
    ('u', InodeFlags::UNRM),
];

/// Whether an inode with these flags is encrypted. A directory's stored names may then be any
/// bytes.
pub(crate) fn is_encrypted(flags: u32) -> bool {
    InodeFlags::from_bits_retain(flags).contains(InodeFlags::ENCRYPT)
}

/// Whether an inode has flags that say more than how it is stored: those that no archive keeps.
pub(crate) fn has_more_than_storage(flags: u32) -> bool {
    let stated = InodeFlags::USER_MODIFIABLE | InodeFlags::JOURNAL_DATA | InodeFlags::VERITY;
    let stated = stated.difference(InodeFlags::EXTENTS);
    InodeFlags::from_bits_retain(flags).intersects(stated)
}

/// A change of an inode's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagChange {
    clauses: Vec<Clause>,
}

/// A text is no [`FlagChange`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` changes no flags: it is like +i, -i or =d, with letters of aAdDeFiPsSTu")]
pub struct InvalidFlags {
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clause {
    Add(InodeFlags),
    Remove(InodeFlags),
    Set(InodeFlags),
}

impl FlagChange {
    /// The flags after the change. Files do not get those that only directories have, as on Linux.
    pub(crate) fn apply(&self, flags: InodeFlags, is_directory: bool) -> InodeFlags {
        let possible = match is_directory {
            true => InodeFlags::all(),
            false => InodeFlags::all().difference(InodeFlags::OF_DIRECTORIES),
        };
        let change = |before: InodeFlags, clause: &Clause| match *clause {
            Clause::Add(flags) => before.union(flags.intersection(possible)),
            Clause::Remove(flags) => before.difference(flags),
            Clause::Set(flags) => before
                .difference(replaced())
                .union(flags.intersection(possible)),
        };
        self.clauses.iter().fold(flags, change)
    }
}

/// The flags that `=` takes away.
fn replaced() -> InodeFlags {
    let all = LETTERS.iter().map(|(_, flag)| *flag);
    all.fold(InodeFlags::empty(), InodeFlags::union)
        .difference(InodeFlags::EXTENTS | InodeFlags::CASEFOLD)
}

impl FromStr for FlagChange {
    type Err = InvalidFlags;

    fn from_str(text: &str) -> Result<Self, InvalidFlags> {
        parse(text).ok_or_else(|| InvalidFlags {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<FlagChange> {
    let mut clauses = Vec::new();
    let mut rest = text;
    while let Some(operation) = rest.chars().next() {
        let letters = rest.get(1..)?;
        let end = letters.find(['+', '-', '=']).unwrap_or(letters.len());
        let flags = flags(&letters[..end])?;
        clauses.push(match operation {
            '+' => Clause::Add(flags),
            '-' => Clause::Remove(flags),
            '=' => Clause::Set(flags),
            _ => return None,
        });
        // Only `=` alone says something: that no flags remain.
        if end == 0 && operation != '=' {
            return None;
        }
        rest = &letters[end..];
    }
    (!clauses.is_empty()).then_some(FlagChange { clauses })
}

fn flags(letters: &str) -> Option<InodeFlags> {
    letters
        .chars()
        .try_fold(InodeFlags::empty(), |flags, wanted| {
            let known = LETTERS.iter().find(|(letter, _)| *letter == wanted);
            known.map(|(_, flag)| flags.union(*flag))
        })
}

#[cfg(test)]
mod tests {
    use super::{FlagChange, InodeFlags};

    fn after(text: &str, before: InodeFlags, is_directory: bool) -> InodeFlags {
        let change: FlagChange = text.parse().expect(text);
        change.apply(before, is_directory)
    }

    #[test]
    fn flags_are_added_removed_and_replaced() {
        let folded = after("=d", InodeFlags::CASEFOLD, true);
        assert_eq!(folded, InodeFlags::CASEFOLD | InodeFlags::NODUMP);
        let before = InodeFlags::EXTENTS | InodeFlags::NOATIME | InodeFlags::INDEX;
        let kept = InodeFlags::EXTENTS | InodeFlags::INDEX;
        for (text, expected) in [
            ("+i", before | InodeFlags::IMMUTABLE),
            ("-A", kept),
            ("-i", before),
            ("+da-A", kept | InodeFlags::NODUMP | InodeFlags::APPEND),
            ("=S", kept | InodeFlags::SYNC),
            ("=", kept),
            ("=+a", kept | InodeFlags::APPEND),
            ("-e", InodeFlags::NOATIME | InodeFlags::INDEX),
        ] {
            assert_eq!(after(text, before, false), expected, "{text}");
        }
    }

    #[test]
    fn only_directories_have_the_flags_of_directories() {
        for (text, expected) in [
            ("+TD", InodeFlags::TOPDIR | InodeFlags::DIRSYNC),
            ("=P", InodeFlags::PROJINHERIT),
            ("+F", InodeFlags::CASEFOLD),
            ("=F", InodeFlags::CASEFOLD),
        ] {
            assert_eq!(after(text, InodeFlags::empty(), true), expected);
            assert_eq!(after(text, InodeFlags::empty(), false), InodeFlags::empty());
        }
    }

    #[test]
    fn other_texts_are_no_change() {
        for text in [
            "", "i", "+", "-", "+-a", "+x", "+j", "+i ", "+\u{e9}", "\u{e9}", "a=", "0644",
        ] {
            assert!(text.parse::<FlagChange>().is_err(), "{text}");
        }
    }
}
