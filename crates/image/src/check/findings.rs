//! Findings, and the collector to which all threads of a pass add them.
//!
//! The collector keeps a bounded number of findings of each kind and counts the rest, so that no
//! image can fill memory with findings. The report is sorted, so it does not depend on the order of
//! threads, with four exceptions: which findings of a kind are kept if there are too many, which of
//! two names of a directory is reported as the second, under which of its users a defect of a
//! shared block is reported, and which users of shared blocks are named or counted once a bound is
//! reached. With one thread these are deterministic too.

use std::fmt;

use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber};
use pext4_sync::{Class, Mutex};

use super::catalogue::Kind;

/// The maximum number of findings of one kind that are kept.
const MAX_OF_A_KIND: u64 = 1000;

/// The location of a finding, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Place {
    /// The block group.
    pub group: Option<GroupNumber>,
    /// The inode.
    pub inode: Option<InodeNumber>,
    /// The block of the file system.
    pub block: Option<BlockNumber>,
    /// A path that leads to the inode.
    pub path: Option<Vec<u8>>,
}

impl Place {
    /// No particular location.
    pub(super) fn whole() -> Self {
        Self::default()
    }

    /// In a group.
    pub(super) fn group(group: GroupNumber) -> Self {
        Self {
            group: Some(group),
            ..Self::default()
        }
    }

    /// In a file.
    pub(super) fn inode(inode: InodeNumber) -> Self {
        Self {
            inode: Some(inode),
            ..Self::default()
        }
    }

    /// The same, in this block.
    pub(super) fn block(mut self, block: BlockNumber) -> Self {
        self.block = Some(block);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |name: &str, number: Option<u64>| -> fmt::Result {
            if let Some(number) = number {
                write!(formatter, "{separator}{name} {number}")?;
                separator = ", ";
            }
            Ok(())
        };
        part("group", self.group.map(|group| group.get().into()))?;
        part("inode", self.inode.map(|inode| inode.get().into()))?;
        part("block", self.block.map(BlockNumber::get))
    }
}

/// Something that is wrong or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// Its location.
    pub place: Place,
    /// Details, in words.
    pub text: String,
}

/// Collects findings from many threads.
pub(super) struct Findings {
    inner: Mutex<Inner>,
}

struct Inner {
    kept: Vec<Finding>,
    counts: Box<[u64; Kind::COUNT]>,
}

impl Findings {
    pub(super) fn new() -> Self {
        let inner = Inner {
            kept: Vec::new(),
            counts: Box::new([0; Kind::COUNT]),
        };
        Self {
            inner: Mutex::new(Class::Leaf, inner),
        }
    }

    /// Adds a finding. `text` is called only if the finding is kept.
    pub(super) fn add(&self, kind: Kind, place: Place, text: impl FnOnce() -> String) {
        let mut inner = self.inner.lock();
        inner.counts[kind.index()] += 1;
        if inner.counts[kind.index()] <= MAX_OF_A_KIND {
            inner.kept.push(Finding {
                kind,
                place,
                text: text(),
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inner.lock().counts.iter().all(|&count| count == 0)
    }

    /// Adds an error of a decoder.
    pub(super) fn corrupt(&self, kind: Kind, place: Place, corrupt: &Corrupt) {
        self.add(kind, place, || {
            format!("{}: {}", corrupt.structure(), corrupt.problem())
        });
    }

    /// Takes the findings that were kept, sorted, and the number of findings of each kind.
    pub(super) fn take(&self) -> (Vec<Finding>, Vec<(Kind, u64)>) {
        let mut inner = self.inner.lock();
        let mut kept = std::mem::take(&mut inner.kept);
        kept.sort_unstable();
        let counts = Kind::ALL
            .iter()
            .map(|&kind| (kind, inner.counts[kind.index()]))
            .filter(|(_, count)| *count > 0);
        (kept, counts.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{Findings, Kind, MAX_OF_A_KIND, Place};
    use pext4_ondisk::InodeNumber;

    #[test]
    fn keeps_a_bounded_number_sorted_and_counts_the_rest() {
        let findings = Findings::new();
        for inode in (0..3000).rev() {
            let place = Place::inode(InodeNumber(inode));
            findings.add(Kind::LinkCount, place, String::new);
        }
        findings.add(Kind::SuperblockChecksum, Place::whole(), String::new);
        let (kept, counts) = findings.take();
        assert_eq!(kept.len() as u64, MAX_OF_A_KIND + 1);
        assert_eq!(kept[0].kind, Kind::SuperblockChecksum);
        assert!(kept[1].place.inode < kept[2].place.inode);
        assert_eq!(
            counts,
            [(Kind::SuperblockChecksum, 1), (Kind::LinkCount, 3000)]
        );
    }
}
