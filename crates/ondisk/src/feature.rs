//! The three sets of feature bits and their names.
//!
//! An unknown compatible bit has no effect, an unknown incompatible one forbids opening, an unknown
//! read-only-compatible one forbids writing. Bits without a name are kept in all three sets, so
//! that a superblock is written back as it was read. Names are those of mke2fs, tune2fs and
//! dumpe2fs; an unknown bit is called `FEATURE_I17` (C, I or R, then the bit's number). Values: the
//! kernel's `Documentation/filesystems/ext4/super.rst`.

use bitflags::bitflags;

bitflags! {
    /// `s_feature_compat`: a program without these features may ignore them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Compat: u32 {
        /// Blocks are preallocated for directories.
        const DIR_PREALLOC = 0x1;
        /// AFS server inodes.
        const IMAGIC_INODES = 0x2;
        /// A journal exists.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes exist.
        const EXT_ATTR = 0x8;
        /// Inode 7 reserves descriptor blocks for growth.
        const RESIZE_INODE = 0x10;
        /// Directories may have a hash index.
        const DIR_INDEX = 0x20;
        /// Never finished upstream.
        const LAZY_BG = 0x40;
        /// Never merged upstream.
        const EXCLUDE_BITMAP = 0x100;
        /// Only two groups hold superblock copies.
        const SPARSE_SUPER2 = 0x200;
        /// The journal has a fast-commit area.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and UUID must not change.
        const STABLE_INODES = 0x800;
        /// Orphans are kept in a file.
        const ORPHAN_FILE = 0x1000;
    }
}

bitflags! {
    /// `s_feature_incompat`: a program without these features must not open the file system.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Incompat: u32 {
        /// Never merged upstream.
        const COMPRESSION = 0x1;
        /// Directory entries have the kind of file.
        const FILETYPE = 0x2;
        /// The journal needs replay.
        const RECOVER = 0x4;
        /// This is an external journal, not a file system.
        const JOURNAL_DEV = 0x8;
        /// Group descriptors are in the groups that they describe.
        const META_BG = 0x10;
        /// Files may be mapped by extents.
        const EXTENTS = 0x40;
        /// Block numbers have more than 32 bits.
        const SIXTY_FOUR_BIT = 0x80;
        /// Multiple mount protection.
        const MMP = 0x100;
        /// Bitmaps and inode tables may be in any group.
        const FLEX_BG = 0x200;
        /// Large attribute values are stored in inodes.
        const EA_INODE = 0x400;
        /// Data in directory entries (Lustre only).
        const DIRDATA = 0x1000;
        /// The checksum seed is stored, not derived from the UUID.
        const CSUM_SEED = 0x2000;
        /// Directories over 2 GiB or with three index levels.
        const LARGEDIR = 0x4000;
        /// Small files are stored in their inodes.
        const INLINE_DATA = 0x8000;
        /// Encrypted files may exist.
        const ENCRYPT = 0x10000;
        /// Directories that fold case may exist.
        const CASEFOLD = 0x20000;
    }
}

bitflags! {
    /// `s_feature_ro_compat`: a program without these features must not write to the file system.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct ReadOnlyCompat: u32 {
        /// Superblock copies only in groups 0, 1 and powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x1;
        /// Files over 2 GiB exist.
        const LARGE_FILE = 0x2;
        /// Block counts of inodes have 48 bits.
        const HUGE_FILE = 0x8;
        /// Group descriptors carry a crc16 (`uninit_bg`).
        const GDT_CSUM = 0x10;
        /// A directory's link count may have overflowed to 1.
        const DIR_NLINK = 0x20;
        /// Inodes have the larger fixed part.
        const EXTRA_ISIZE = 0x40;
        /// Never merged upstream.
        const HAS_SNAPSHOT = 0x80;
        /// Quota files are hidden inodes.
        const QUOTA = 0x100;
        /// Space is allocated in clusters of several blocks.
        const BIGALLOC = 0x200;
        /// All metadata carries crc32c.
        const METADATA_CSUM = 0x400;
        /// Never merged upstream.
        const REPLICA = 0x800;
        /// The file system must not be mounted writable.
        const READONLY = 0x1000;
        /// Inodes have project numbers.
        const PROJECT = 0x2000;
        /// Blocks may belong to several files: read-only deduplication.
        const SHARED_BLOCKS = 0x4000;
        /// Verity files may exist.
        const VERITY = 0x8000;
        /// The orphan file may hold entries.
        const ORPHAN_PRESENT = 0x10000;
    }
}

/// The features of one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Features that may be ignored.
    pub compat: Compat,
    /// Features that reading requires.
    pub incompat: Incompat,
    /// Features that writing requires.
    pub read_only_compat: ReadOnlyCompat,
}

/// One feature bit of any set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A bit of the compatible set.
    Compat(Compat),
    /// A bit of the incompatible set.
    Incompat(Incompat),
    /// A bit of the read-only-compatible set.
    ReadOnlyCompat(ReadOnlyCompat),
}

/// Names as the standard tools print them, each with the other spellings that they accept.
const COMPAT_NAMES: &[(Compat, &[&str])] = &[
    (Compat::DIR_PREALLOC, &["dir_prealloc"]),
    (Compat::IMAGIC_INODES, &["imagic_inodes"]),
    (Compat::HAS_JOURNAL, &["has_journal"]),
    (Compat::EXT_ATTR, &["ext_attr"]),
    (Compat::RESIZE_INODE, &["resize_inode"]),
    (Compat::DIR_INDEX, &["dir_index"]),
    (Compat::LAZY_BG, &["lazy_bg"]),
    (
        Compat::EXCLUDE_BITMAP,
        &["snapshot_bitmap", "exclude_bitmap"],
    ),
    (Compat::SPARSE_SUPER2, &["sparse_super2"]),
    (Compat::FAST_COMMIT, &["fast_commit"]),
    (Compat::STABLE_INODES, &["stable_inodes"]),
    (Compat::ORPHAN_FILE, &["orphan_file"]),
];

const INCOMPAT_NAMES: &[(Incompat, &[&str])] = &[
    (Incompat::COMPRESSION, &["compression"]),
    (Incompat::FILETYPE, &["filetype"]),
    (Incompat::RECOVER, &["needs_recovery", "recover"]),
    (Incompat::JOURNAL_DEV, &["journal_dev"]),
    (Incompat::META_BG, &["meta_bg"]),
    (Incompat::EXTENTS, &["extent", "extents"]),
    (Incompat::SIXTY_FOUR_BIT, &["64bit"]),
    (Incompat::MMP, &["mmp"]),
    (Incompat::FLEX_BG, &["flex_bg"]),
    (Incompat::EA_INODE, &["ea_inode"]),
    (Incompat::DIRDATA, &["dirdata"]),
    (Incompat::CSUM_SEED, &["metadata_csum_seed", "csum_seed"]),
    (Incompat::LARGEDIR, &["large_dir", "largedir"]),
    (Incompat::INLINE_DATA, &["inline_data"]),
    (Incompat::ENCRYPT, &["encrypt"]),
    (Incompat::CASEFOLD, &["casefold"]),
];

const READ_ONLY_COMPAT_NAMES: &[(ReadOnlyCompat, &[&str])] = &[
    (ReadOnlyCompat::SPARSE_SUPER, &["sparse_super"]),
    (ReadOnlyCompat::LARGE_FILE, &["large_file"]),
    (ReadOnlyCompat::HUGE_FILE, &["huge_file"]),
    (
        ReadOnlyCompat::GDT_CSUM,
        &["uninit_bg", "gdt_csum", "uninit_groups"],
    ),
    (ReadOnlyCompat::DIR_NLINK, &["dir_nlink"]),
    (ReadOnlyCompat::EXTRA_ISIZE, &["extra_isize"]),
    (ReadOnlyCompat::HAS_SNAPSHOT, &["snapshot", "has_snapshot"]),
    (ReadOnlyCompat::QUOTA, &["quota"]),
    (ReadOnlyCompat::BIGALLOC, &["bigalloc"]),
    (ReadOnlyCompat::METADATA_CSUM, &["metadata_csum"]),
    (ReadOnlyCompat::REPLICA, &["replica"]),
    (ReadOnlyCompat::READONLY, &["read-only", "readonly"]),
    (ReadOnlyCompat::PROJECT, &["project"]),
    (ReadOnlyCompat::SHARED_BLOCKS, &["shared_blocks"]),
    (ReadOnlyCompat::VERITY, &["verity"]),
    (ReadOnlyCompat::ORPHAN_PRESENT, &["orphan_present"]),
];

impl Features {
    /// Whether all of these compatible bits are set.
    #[must_use]
    pub const fn has_compat(&self, bits: Compat) -> bool {
        self.compat.contains(bits)
    }

    /// Whether all of these incompatible bits are set.
    #[must_use]
    pub const fn has_incompat(&self, bits: Incompat) -> bool {
        self.incompat.contains(bits)
    }

    /// Whether all of these read-only-compatible bits are set.
    #[must_use]
    pub const fn has_read_only_compat(&self, bits: ReadOnlyCompat) -> bool {
        self.read_only_compat.contains(bits)
    }

    /// Sets or clears one feature.
    pub fn set(&mut self, feature: Feature, on: bool) {
        match feature {
            Feature::Compat(bits) => self.compat.set(bits, on),
            Feature::Incompat(bits) => self.incompat.set(bits, on),
            Feature::ReadOnlyCompat(bits) => self.read_only_compat.set(bits, on),
        }
    }

    /// The names of all set bits, in the order of the standard tools.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = names_of(self.compat.bits(), 'C', COMPAT_NAMES);
        names.extend(names_of(self.incompat.bits(), 'I', INCOMPAT_NAMES));
        names.extend(names_of(
            self.read_only_compat.bits(),
            'R',
            READ_ONLY_COMPAT_NAMES,
        ));
        names
    }
}

impl Compat {
    /// The names of the set bits.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), 'C', COMPAT_NAMES)
    }
}

impl Incompat {
    /// The names of the set bits.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), 'I', INCOMPAT_NAMES)
    }
}

impl ReadOnlyCompat {
    /// The names of the set bits.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), 'R', READ_ONLY_COMPAT_NAMES)
    }
}

impl Feature {
    /// The feature with a name of the standard tools, or of the form `FEATURE_I17`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(bits) = bits_named(name, 'C', COMPAT_NAMES) {
            return Some(Self::Compat(Compat::from_bits_retain(bits)));
        }
        if let Some(bits) = bits_named(name, 'I', INCOMPAT_NAMES) {
            return Some(Self::Incompat(Incompat::from_bits_retain(bits)));
        }
        bits_named(name, 'R', READ_ONLY_COMPAT_NAMES)
            .map(|bits| Self::ReadOnlyCompat(ReadOnlyCompat::from_bits_retain(bits)))
    }
}

fn names_of<B: bitflags::Flags<Bits = u32>>(
    bits: u32,
    set: char,
    table: &[(B, &[&str])],
) -> Vec<String> {
    (0..u32::BITS)
        .filter(|bit| bits & (1 << bit) != 0)
        .map(|bit| {
            table
                .iter()
                .find(|(flag, _)| flag.bits() == 1 << bit)
                .map_or_else(
                    || format!("FEATURE_{set}{bit}"),
                    |(_, names)| names[0].to_owned(),
                )
        })
        .collect()
}

fn bits_named<B: bitflags::Flags<Bits = u32>>(
    name: &str,
    set: char,
    table: &[(B, &[&str])],
) -> Option<u32> {
    if let Some(number) = name
        .strip_prefix("FEATURE_")
        .and_then(|rest| rest.strip_prefix(set))
    {
        return number.parse().ok().and_then(|bit| 1u32.checked_shl(bit));
    }
    table
        .iter()
        .find(|(_, names)| names.contains(&name))
        .map(|(flag, _)| flag.bits())
}

#[cfg(test)]
mod tests {
    use super::{Compat, Feature, Features, Incompat, ReadOnlyCompat};

    #[test]
    fn every_bit_of_every_set_has_a_name_that_parses_back() {
        for bit in 0..32 {
            let mask = 1u32 << bit;
            let compat = Features {
                compat: Compat::from_bits_retain(mask),
                ..Features::default()
            };
            let incompat = Features {
                incompat: Incompat::from_bits_retain(mask),
                ..Features::default()
            };
            let read_only = Features {
                read_only_compat: ReadOnlyCompat::from_bits_retain(mask),
                ..Features::default()
            };
            for features in [compat, incompat, read_only] {
                let names = features.names();
                assert_eq!(names.len(), 1);
                let mut again = Features::default();
                again.set(Feature::parse(&names[0]).expect("its own name"), true);
                assert_eq!(again, features, "{names:?}");
            }
        }
    }

    #[test]
    fn unknown_bits_are_named_by_set_and_number() {
        assert_eq!(Incompat::from_bits_retain(1 << 25).names(), ["FEATURE_I25"]);
        assert_eq!(Feature::parse("FEATURE_I32"), None);
        assert_eq!(Feature::parse("no such thing"), None);
    }
}
