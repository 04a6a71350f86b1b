//! The inodes of the file system itself to which the superblock refers, and which need not be among
//! the reserved ones: journal, orphan file, quota files.

use pext4_ondisk::InodeNumber;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::quota::OwnerKind;
use pext4_ondisk::superblock::Superblock;

/// Those that an image has.
#[derive(Debug)]
pub(super) struct SystemInodes {
    /// The journal.
    pub(super) journal: Option<InodeNumber>,
    orphan_file: Option<InodeNumber>,
    /// The quota files that count, in the order of [`OwnerKind::ALL`].
    quotas: [Option<InodeNumber>; 3],
    /// The quota file of projects, which an image has with `project` even where nothing is counted.
    projects: Option<InodeNumber>,
}

impl SystemInodes {
    /// Those of a superblock.
    pub(super) fn of(superblock: &Superblock) -> Self {
        let features = &superblock.features;
        let has_quotas = features.has_read_only_compat(ReadOnlyCompat::QUOTA);
        let has_projects = features.has_read_only_compat(ReadOnlyCompat::PROJECT);
        let projects = named(has_projects, superblock.project_quota_inode);
        Self {
            journal: named(
                features.has_compat(Compat::HAS_JOURNAL),
                superblock.journal_inode,
            ),
            orphan_file: named(
                features.has_compat(Compat::ORPHAN_FILE),
                superblock.orphan_file_inode,
            ),
            quotas: [
                named(has_quotas, superblock.user_quota_inode),
                named(has_quotas, superblock.group_quota_inode),
                projects.filter(|_| has_quotas),
            ],
            projects,
        }
    }

    pub(super) fn contains(&self, number: InodeNumber) -> bool {
        let others = [self.journal, self.orphan_file, self.projects];
        let mut own = self.quotas.iter().chain(&others);
        own.any(|own| *own == Some(number))
    }

    /// The quota file of a kind of owner that counts.
    pub(super) fn quota(&self, kind: OwnerKind) -> Option<InodeNumber> {
        self.quotas[kind as usize]
    }

    /// The kinds of owners whose quota files count, in the order of [`OwnerKind::ALL`]; `None` if
    /// none does.
    pub(super) fn quota_kinds(&self) -> Option<[bool; 3]> {
        let kinds = self.quotas.map(|file| file.is_some());
        kinds.contains(&true).then_some(kinds)
    }
}

/// The inode that a field of the superblock names, if the image has the feature for that.
fn named(is_used: bool, inode: InodeNumber) -> Option<InodeNumber> {
    (is_used && inode.get() != 0).then_some(inode)
}
