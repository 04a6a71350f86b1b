//! Splits a full leaf of an indexed directory in two.

use super::{Entry, FileType, Format, entries, record_length, write_leaf};
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// The place at which a leaf was split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The lowest hash in the new leaf.
    pub hash: u32,
    /// Whether the old leaf ends with names of that same hash.
    pub continued: bool,
}

impl Split {
    /// The hash in the index entry of the new leaf; its low bit marks a continuation.
    #[must_use]
    pub fn index_hash(&self) -> u32 {
        self.hash | u32::from(self.continued)
    }
}

struct Owned {
    hash: u32,
    inode: InodeNumber,
    file_type: Option<FileType>,
    name: Box<[u8]>,
}

impl Owned {
    fn as_entry(&self) -> Entry<'_> {
        Entry {
            inode: self.inode,
            file_type: self.file_type,
            name: &self.name,
        }
    }
}

/// Moves the entries with the higher hashes, about half of the bytes, from `old` to `new`, and
/// packs both leaves. Prefers a nearby boundary between two hashes, so that runs of equal hashes
/// stay in one leaf if possible. With fewer than two entries, returns `None` and changes nothing.
///
/// # Errors
///
/// [`Corrupt`] if a record is impossible; both blocks are unchanged.
///
/// # Panics
///
/// If the two blocks differ in size.
pub fn split_by_hash(
    old: &mut [u8],
    new: &mut [u8],
    format: Format,
    hash: impl Fn(&[u8]) -> u32,
) -> Result<Option<Split>, Corrupt> {
    assert_eq!(
        old.len(),
        new.len(),
        "leaves of one directory have one size"
    );
    let mut all = Vec::new();
    for entry in entries(old, format) {
        let Entry {
            inode,
            file_type,
            name,
        } = entry?;
        all.push(Owned {
            hash: hash(name),
            inode,
            file_type,
            name: name.into(),
        });
    }
    all.sort_by_key(|entry| entry.hash);
    let Some(at) = choose(&all) else {
        return Ok(None);
    };
    let split = Split {
        hash: all[at].hash,
        continued: all[at - 1].hash == all[at].hash,
    };
    let (low, high) = all.split_at(at);
    let fits = write_leaf(old, format, low.iter().map(Owned::as_entry))
        && write_leaf(new, format, high.iter().map(Owned::as_entry));
    assert!(fits, "what was in one block fits into two");
    Ok(Some(split))
}

/// Chooses the first entry of the upper half: the nearest to the middle in bytes that begins a new
/// hash, unless one side would get less than a quarter.
fn choose(all: &[Owned]) -> Option<usize> {
    let total: usize = all
        .iter()
        .map(|entry| record_length(entry.name.len()))
        .sum();
    let mut below = 0;
    let mut candidates = Vec::new();
    for (index, entry) in all.iter().enumerate() {
        if index > 0 {
            let begins = all[index - 1].hash != entry.hash;
            let balanced = below >= total / 4 && below <= total - total / 4;
            candidates.push((!(begins && balanced), below.abs_diff(total / 2), index));
        }
        below += record_length(entry.name.len());
    }
    candidates.into_iter().min().map(|(_, _, index)| index)
}
