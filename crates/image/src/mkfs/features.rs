//! The features of a new file system: the defaults of its type, changed by the names that are
//! given, and checked against each other.

use pext4_ondisk::feature::{Compat, Feature, Features, Incompat, ReadOnlyCompat};

use super::plan::impossible;
use crate::error::{Error, Result};

/// The file system type. All types have the same format, with different features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystem {
    /// No journal, extents or checksums.
    Ext2,
    /// ext2 with a journal.
    Ext3,
    /// With the default features of mke2fs.
    #[default]
    Ext4,
}

impl FileSystem {
    /// The defaults of `mke2fs.conf(5)`.
    fn features(self) -> Features {
        let ext2 = Features {
            compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
            incompat: Incompat::FILETYPE,
            read_only_compat: ReadOnlyCompat::SPARSE_SUPER | ReadOnlyCompat::LARGE_FILE,
        };
        match self {
            Self::Ext2 => ext2,
            Self::Ext3 => Features {
                compat: ext2.compat | Compat::HAS_JOURNAL,
                ..ext2
            },
            Self::Ext4 => Features {
                compat: ext2.compat | Compat::HAS_JOURNAL | Compat::ORPHAN_FILE,
                incompat: ext2.incompat
                    | Incompat::EXTENTS
                    | Incompat::SIXTY_FOUR_BIT
                    | Incompat::FLEX_BG
                    | Incompat::CSUM_SEED,
                read_only_compat: ext2.read_only_compat
                    | ReadOnlyCompat::HUGE_FILE
                    | ReadOnlyCompat::DIR_NLINK
                    | ReadOnlyCompat::EXTRA_ISIZE
                    | ReadOnlyCompat::METADATA_CSUM,
            },
        }
    }
}

/// The default features of a type, changed by `names`, with those that they need.
pub(super) fn features(file_system: FileSystem, names: &[String]) -> Result<Features> {
    let mut features = named(file_system, names)?;
    resolve_features(&mut features)?;
    Ok(features)
}

/// The default features of a type, changed by `names`, in their order. They may not suit each
/// other.
pub(crate) fn named(file_system: FileSystem, names: &[String]) -> Result<Features> {
    let mut features = file_system.features();
    for name in names.iter().map(|name| name.trim()) {
        let (name, on) = match name.strip_prefix('^') {
            Some(name) => (name, false),
            None => (name, true),
        };
        match name {
            "" => continue,
            "none" if on => {
                features = Features::default();
                continue;
            }
            // The default must not stand in the way of what is asked for.
            "meta_bg" if on => features.compat.remove(Compat::RESIZE_INODE),
            "sparse_super" if !on => features.compat.remove(Compat::RESIZE_INODE),
            _ => {}
        }
        let feature =
            Feature::parse(name).ok_or_else(|| impossible(format!("unknown feature {name}")))?;
        features.set(feature, on);
    }
    Ok(features)
}

/// All features that mkfs supports.
fn supported() -> Features {
    let usual = FileSystem::Ext4.features();
    Features {
        compat: usual.compat | Compat::STABLE_INODES | Compat::SPARSE_SUPER2 | Compat::FAST_COMMIT,
        incompat: usual.incompat
            | Incompat::META_BG
            | Incompat::MMP
            | Incompat::EA_INODE
            | Incompat::INLINE_DATA
            | Incompat::LARGEDIR
            | Incompat::ENCRYPT
            | Incompat::CASEFOLD,
        read_only_compat: usual.read_only_compat
            | ReadOnlyCompat::GDT_CSUM
            | ReadOnlyCompat::QUOTA
            | ReadOnlyCompat::PROJECT
            | ReadOnlyCompat::VERITY,
    }
}

/// Adds features that others need, removes those that need a missing one, and fails for unsupported
/// ones.
fn resolve_features(features: &mut Features) -> Result<()> {
    if features.has_read_only_compat(ReadOnlyCompat::METADATA_CSUM) {
        // The other regime of checksums, which has only those of descriptors.
        features.read_only_compat.remove(ReadOnlyCompat::GDT_CSUM);
    } else {
        features.incompat.remove(Incompat::CSUM_SEED);
    }
    if features
        .incompat
        .intersects(Incompat::INLINE_DATA | Incompat::EA_INODE)
    {
        // Both store data in extended attributes.
        features.compat.insert(Compat::EXT_ATTR);
    }
    if !features.has_compat(Compat::HAS_JOURNAL) {
        features.compat.remove(Compat::ORPHAN_FILE);
    }
    check_supported(features)?;
    check_together(features)
}

fn check_supported(features: &Features) -> Result<()> {
    let supported = supported();
    let other = Features {
        compat: features.compat.difference(supported.compat),
        incompat: features.incompat.difference(supported.incompat),
        read_only_compat: features
            .read_only_compat
            .difference(supported.read_only_compat),
    };
    if other.names().is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "this version does not make images with the features: {}",
        other.names().join(", ")
    )))
}

/// Fails for features that need a missing one, or exclude each other.
fn check_together(features: &Features) -> Result<()> {
    if features.has_incompat(Incompat::SIXTY_FOUR_BIT) && !features.has_incompat(Incompat::EXTENTS)
    {
        return Err(impossible(
            "64bit needs extents: turn off both, or none of them",
        ));
    }
    if features.has_compat(Compat::FAST_COMMIT) && !features.has_compat(Compat::HAS_JOURNAL) {
        return Err(impossible("fast_commit needs a journal (has_journal)"));
    }
    if !features.has_compat(Compat::RESIZE_INODE) {
        return Ok(());
    }
    if features.has_incompat(Incompat::META_BG) {
        return Err(impossible(
            "resize_inode and meta_bg exclude each other: turn one of them off",
        ));
    }
    if !features.has_read_only_compat(ReadOnlyCompat::SPARSE_SUPER) {
        // Its pointers could not reach so many copies.
        return Err(impossible(
            "resize_inode needs sparse_super: turn off both, or none of them",
        ));
    }
    Ok(())
}
