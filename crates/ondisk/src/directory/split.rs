//! Dividing a full leaf of an indexed directory in two.

use super::{Entry, FileType, Format, entries, record_length, write_leaf};
use crate::corrupt::Corrupt;
use crate::number::InodeNumber;

/// Where a leaf was divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The lowest hash in the new leaf.
    pub hash: u32,
    /// Whether the old leaf ends with names of that same hash.
    pub continued: bool,
}

impl Split {
    /// What the index holds for the new leaf: the hash, with its low bit marking a continuation.
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

/// Moves the upper half, by hash and in bytes, of the entries of `old` into `new`, and packs both.
/// The place is moved to a boundary between two hashes where one is near, so that runs of equal
/// hashes stay in one leaf if they can. `None`, and both blocks as they were, where there are
/// fewer than two entries.
///
/// # Errors
/// [`Corrupt`] where a record cannot be true; both blocks are as they were.
///
/// # Panics
/// Where the two blocks differ in size.
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

/// The first entry of the upper half: the one nearest to the middle in bytes that begins a new
/// hash, unless that would leave less than a quarter on one side.
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
