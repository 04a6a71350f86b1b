//! Which settings a directory has: all have those of the volume, but not all compare names alike.
//!
//! Everything that depends on how names are compared is in the settings (in their `format` and
//! `hasher`), so this is the one place that looks at the directory's flags. Flags change only while
//! a directory is empty and its lock is held exclusively.

use pext4_ondisk::casefold::Naming;
use pext4_ondisk::inode::InodeFlags;

use super::blocks::DirectorySettings;
use crate::inode::Inode;

/// The settings of all directories of a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeDirectories {
    folds: bool,
    /// Of those that compare names by their bytes: all but a few.
    plain: DirectorySettings,
    /// Of casefolded ones.
    folded: DirectorySettings,
    /// Of those that are both casefolded and encrypted: their names are shown as they are stored,
    /// and hashed with a key that nobody has.
    keyed: DirectorySettings,
}

impl VolumeDirectories {
    /// Settings by those of directories that compare names by their bytes. Whether others have an
    /// effect is up to the volume (`folds`: the feature `casefold`).
    #[must_use]
    pub fn new(plain: DirectorySettings, folds: bool) -> Self {
        if !folds {
            return Self {
                folds,
                plain,
                folded: plain,
                keyed: plain,
            };
        }
        let mut folded = plain;
        folded.format.naming = Naming::Folded;
        folded.hasher.naming = Naming::Folded;
        Self {
            folds,
            plain,
            folded,
            keyed: DirectorySettings {
                indexing: false,
                ..plain
            },
        }
    }

    /// Those of a directory.
    #[inline]
    #[must_use]
    pub fn of(&self, directory: &Inode) -> &DirectorySettings {
        let flags = directory.flags();
        if flags.contains(InodeFlags::CASEFOLD) {
            return self.of_folded(flags);
        }
        &self.plain
    }

    #[cold]
    fn of_folded(&self, flags: InodeFlags) -> &DirectorySettings {
        match flags.contains(InodeFlags::ENCRYPT) {
            true => &self.keyed,
            false => &self.folded,
        }
    }

    /// Whether directories may be casefolded.
    #[must_use]
    pub fn folds(&self) -> bool {
        self.folds
    }

    /// Those of directories that compare names by their bytes.
    #[must_use]
    pub fn plain(&self) -> &DirectorySettings {
        &self.plain
    }
}
