//! The superblock: the parameters of the file system, its free counts and its history.
//!
//! [`Superblock::decode`] checks the magic number and, with `metadata_csum`, the checksum;
//! [`Geometry::of`](crate::geometry::Geometry::of) validates sizes and counts. Bytes without a
//! field here are kept, so `encode` returns what `decode` read. Copies in backup groups have the
//! same format, which the kernel's `Documentation/filesystems/ext4/super.rst` describes.

mod convert;
mod raw;

use bitflags::bitflags;
use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{INITIAL, crc32c};
use crate::corrupt::Corrupt;
use crate::dirhash::{HashVersion, Signedness};
use crate::feature::{Features, Incompat, ReadOnlyCompat};
use crate::number::{BlockNumber, GroupNumber, InodeNumber};
use raw::RawSuperblock;

/// Bytes in a superblock.
pub const SIZE: usize = 1024;
/// Bytes of the label's field.
pub const LABEL_BYTES: usize = 16;
/// Offset of the first superblock on the device, in bytes, for every block size.
pub const OFFSET: u64 = 1024;

/// The block that contains the first superblock, and where in the block it begins, in bytes.
#[must_use]
pub fn place(block_size: u32) -> (BlockNumber, u32) {
    let offset = if block_size > 1024 { 1024 } else { 0 };
    (BlockNumber(OFFSET / u64::from(block_size)), offset)
}

/// The blocks that only the superuser may use if they are this share of all, in percent: rounded
/// down, in floating point, as in mke2fs and tune2fs.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a share of a count of blocks, of which 53 bits are exact"
)]
#[must_use]
pub fn reserved_blocks(blocks: u64, percent: f64) -> u64 {
    (percent * blocks as f64 / 100.0) as u64
}

/// The magic number (`EXT4_SUPER_MAGIC`).
pub const MAGIC: u16 = 0xEF53;
/// The error code of a failed device (`EXT4_ERR_EIO`; these codes are not those of errno).
pub const ERROR_IO: u8 = 2;
/// The error code of corrupt metadata (`EXT4_ERR_EFSCORRUPTED`).
pub const ERROR_CORRUPTED: u8 = 5;
/// The bit of [`Superblock::default_mount_options`] by which new inodes get the group of their
/// directory (`EXT4_DEFM_BSDGROUPS`, the option `bsdgroups` of tune2fs).
pub const BSD_GROUPS: u32 = 0x2;
/// A default mount option (`s_default_mount_opts`, `EXT4_DEFM_DISCARD`): freed blocks are
/// discarded.
pub const DISCARD: u32 = 0x400;
/// The operating system in [`Superblock::creator_os`] whose inodes are laid out in its own way.
pub const CREATOR_HURD: u32 = 1;
/// The only checksum type that exists: crc32c.
pub const CHECKSUM_CRC32C: u8 = 1;

const STRUCTURE: &str = "superblock";
const CHECKSUM_AT: usize = 0x3FC;

bitflags! {
    /// The state of the file system (`s_state`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct State: u16 {
        /// It was unmounted cleanly.
        const CLEAN = 0x1;
        /// Errors were found.
        const ERRORS = 0x2;
        /// Orphans were being recovered.
        const ORPHANS = 0x4;
        /// A fast-commit replay was running.
        const FAST_COMMIT_REPLAY = 0x20;
    }
}

bitflags! {
    /// Properties of the whole file system that are not features (`s_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u32 {
        /// Directory hashes take name bytes as signed.
        const SIGNED_HASH = 0x1;
        /// Directory hashes take name bytes as unsigned.
        const UNSIGNED_HASH = 0x2;
        /// For testing development code.
        const TEST = 0x4;
    }
}

/// The reaction to corrupt metadata (`s_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ErrorPolicy {
    /// Record the error and continue.
    #[default]
    Continue,
    /// Record the error and stop writing.
    RemountReadOnly,
    /// Stop the machine (for us: stop the mount).
    Panic,
    /// An undefined value.
    Unknown(u16),
}

impl ErrorPolicy {
    /// The policy of a number on disk.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Self {
        match raw {
            1 => Self::Continue,
            2 => Self::RemountReadOnly,
            3 => Self::Panic,
            other => Self::Unknown(other),
        }
    }

    /// The number on disk.
    #[must_use]
    pub const fn to_raw(self) -> u16 {
        match self {
            Self::Continue => 1,
            Self::RemountReadOnly => 2,
            Self::Panic => 3,
            Self::Unknown(other) => other,
        }
    }
}

/// A record of the first or the latest error in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ErrorRecord {
    /// Seconds since 1970; 0 when there was none.
    pub time: i64,
    /// The inode concerned, or 0.
    pub inode: u32,
    /// The block concerned, or 0.
    pub block: u64,
    /// The name of the function that detected it, padded with NUL bytes.
    pub function: [u8; 32],
    /// The source line that detected it.
    pub line: u32,
    /// The kind of error (the kernel's `EXT4_ERR_*` numbers).
    pub code: u8,
}

macro_rules! superblock {
    (
        $( $(#[$doc:meta])* $name:ident : $type:ty = $raw:ident, )*
        --
        $( $(#[$other_doc:meta])* $other:ident : $other_type:ty, )*
    ) => {
        /// A decoded superblock.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Superblock {
            $( $(#[$doc])* pub $name: $type, )*
            $( $(#[$other_doc])* pub $other: $other_type, )*
            /// The bytes as read, for the bytes without a field.
            raw: Box<[u8; SIZE]>,
        }

        impl Superblock {
            /// Reads the fields that are one plain number on disk.
            fn read_plain(&mut self, raw: &RawSuperblock) {
                $( self.$name = raw.$raw.into(); )*
            }

            /// Writes the fields that are one plain number on disk.
            fn write_plain(&self, raw: &mut RawSuperblock) {
                $( raw.$raw = self.$name.into(); )*
            }

            /// A superblock of zeroes except for the magic number, for creating a new one.
            #[must_use]
            pub fn blank() -> Self {
                let mut raw = Box::new([0; SIZE]);
                raw[0x38..0x3A].copy_from_slice(&MAGIC.to_le_bytes());
                Self {
                    $( $name: zerocopy::FromZeros::new_zeroed(), )*
                    $( $other: Default::default(), )*
                    raw,
                }
            }
        }
    };
}

superblock! {
    /// Number of inodes: groups times inodes per group.
    inodes_count: u32 = s_inodes_count,
    /// Free inodes.
    free_inodes: u32 = s_free_inodes_count,
    /// The first block of group 0: 1 with 1 KiB blocks (without bigalloc), otherwise 0.
    first_data_block: u32 = s_first_data_block,
    /// Base-2 logarithm of the block size, minus 10.
    log_block_size: u32 = s_log_block_size,
    /// Base-2 logarithm of the cluster size, minus 10.
    log_cluster_size: u32 = s_log_cluster_size,
    /// Blocks in a group.
    blocks_per_group: u32 = s_blocks_per_group,
    /// Clusters in a group.
    clusters_per_group: u32 = s_clusters_per_group,
    /// Inodes in a group.
    inodes_per_group: u32 = s_inodes_per_group,
    /// Mounts since the last check.
    mount_count: u16 = s_mnt_count,
    /// Mounts after which to check; 0 or 0xFFFF for never.
    max_mount_count: u16 = s_max_mnt_count,
    /// Minor revision.
    minor_revision: u16 = s_minor_rev_level,
    /// Seconds between checks; 0 for never.
    check_interval: u32 = s_checkinterval,
    /// The operating system that created it; 0 is Linux.
    creator_os: u32 = s_creator_os,
    /// 0 for the original format with fixed sizes, 1 for the dynamic one.
    revision: u32 = s_rev_level,
    /// The user that may use reserved blocks.
    reserved_uid: u16 = s_def_resuid,
    /// The group that may use reserved blocks.
    reserved_gid: u16 = s_def_resgid,
    /// First inode that is not reserved (see [`Superblock::effective_first_inode`]).
    first_inode: u32 = s_first_ino,
    /// Bytes in an inode (see [`Superblock::effective_inode_size`]).
    inode_size: u16 = s_inode_size,
    /// The group of this copy.
    block_group: u16 = s_block_group_nr,
    /// UUID of the file system.
    uuid: [u8; 16] = s_uuid,
    /// Volume name, padded with NUL bytes; no NUL if it has 16 bytes.
    volume_name: [u8; LABEL_BYTES] = s_volume_name,
    /// The directory of the last mount, padded with NUL bytes.
    last_mounted: [u8; 64] = s_last_mounted,
    /// Blocks to preallocate for directories.
    preallocated_directory_blocks: u8 = s_prealloc_dir_blocks,
    /// Blocks after the descriptors that are reserved for their growth.
    reserved_gdt_blocks: u16 = s_reserved_gdt_blocks,
    /// UUID of an external journal.
    journal_uuid: [u8; 16] = s_journal_uuid,
    /// Device number of an external journal.
    journal_device: u32 = s_journal_dev,
    /// Hash version of new directory indexes (see [`Superblock::hash_version`]).
    default_hash_version: u8 = s_def_hash_version,
    /// 1 if `journal_backup` is valid.
    journal_backup_type: u8 = s_jnl_backup_type,
    /// Bytes in a group descriptor under `64bit` (see `Geometry` for the effective size).
    desc_size: u16 = s_desc_size,
    /// Mount options that apply by default.
    default_mount_options: u32 = s_default_mount_opts,
    /// The first descriptor block with the `meta_bg` layout.
    first_meta_bg: u32 = s_first_meta_bg,
    /// Every inode has at least this many bytes of the extra part.
    min_extra_isize: u16 = s_min_extra_isize,
    /// New inodes get this many bytes of the extra part.
    want_extra_isize: u16 = s_want_extra_isize,
    /// RAID stride in blocks.
    raid_stride: u16 = s_raid_stride,
    /// Seconds between updates of the multiple-mount block.
    mmp_update_interval: u16 = s_mmp_update_interval,
    /// Blocks on all data disks of a RAID stripe.
    raid_stripe_width: u32 = s_raid_stripe_width,
    /// Base-2 logarithm of the groups in a flexible group.
    log_groups_per_flex: u8 = s_log_groups_per_flex,
    /// 1 for crc32c.
    checksum_type: u8 = s_checksum_type,
    /// KiB written in the lifetime of the file system.
    kbytes_written: u64 = s_kbytes_written,
    /// Number of errors found.
    error_count: u32 = s_error_count,
    /// Mount options, as text.
    mount_options: [u8; 64] = s_mount_opts,
    /// Modes of encryption that new keys may use, as far as they were chosen by whoever made the
    /// file system.
    encryption_modes: [u8; 4] = s_encrypt_algos,
    /// Clusters of metadata in the whole file system; 0 if unknown.
    overhead_clusters: u32 = s_overhead_clusters,
    /// The seed of all checksums, with `metadata_csum_seed`.
    checksum_seed: u32 = s_checksum_seed,
    /// Character encoding of casefolded names.
    encoding: u16 = s_encoding,
    /// Flags of the encoding.
    encoding_flags: u16 = s_encoding_flags,
    --
    /// Number of blocks.
    blocks_count: u64,
    /// Blocks reserved for the superuser.
    reserved_blocks: u64,
    /// Free blocks (blocks, not clusters, also with bigalloc).
    free_blocks: u64,
    /// Time of the last mount, seconds since 1970.
    mount_time: i64,
    /// Time of the last write, seconds since 1970.
    write_time: i64,
    /// Time of the last check, seconds since 1970.
    check_time: i64,
    /// Time of creation, seconds since 1970.
    make_time: i64,
    /// The state of the file system.
    state: State,
    /// The reaction to errors.
    errors: ErrorPolicy,
    /// The features.
    features: Features,
    /// Signedness of directory hashes, and others.
    flags: Flags,
    /// Seed of directory hashes; all zero selects the algorithm's own constants.
    hash_seed: [u32; 4],
    /// The internal journal's inode, or 0.
    journal_inode: InodeNumber,
    /// Head of the classic orphan list, or 0.
    last_orphan: InodeNumber,
    /// A copy of the journal inode's 15 block words, then the high and the low half of its size.
    journal_backup: [u32; 17],
    /// The block of multiple mount protection.
    mmp_block: BlockNumber,
    /// The first error found.
    first_error: ErrorRecord,
    /// The latest error found.
    last_error: ErrorRecord,
    /// The inode of user quotas, or 0.
    user_quota_inode: InodeNumber,
    /// The inode of group quotas, or 0.
    group_quota_inode: InodeNumber,
    /// The inode of project quotas, or 0.
    project_quota_inode: InodeNumber,
    /// The two groups with superblock copies with `sparse_super2`; 0 for none.
    backup_groups: [u32; 2],
    /// The inode of lost+found, or 0 if not recorded.
    lost_found_inode: InodeNumber,
    /// The orphan file's inode, or 0.
    orphan_file_inode: InodeNumber,
}

impl Superblock {
    /// Decodes a superblock; checks its magic number and its checksum.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if one of them is wrong.
    pub fn decode(bytes: &[u8; SIZE]) -> Result<Self, Corrupt> {
        let superblock = Self::decode_unverified(bytes)?;
        superblock.verify_checksum(bytes)?;
        Ok(superblock)
    }

    /// Decodes a superblock without checking its checksum, for the examination of damage.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the magic number is wrong.
    pub fn decode_unverified(bytes: &[u8; SIZE]) -> Result<Self, Corrupt> {
        let raw = RawSuperblock::read_from_bytes(bytes).expect("both are 1024 bytes");
        if raw.s_magic.get() != MAGIC {
            let problem = format!("magic is {:#06X}, not {MAGIC:#06X}", raw.s_magic.get());
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        let mut superblock = Self::blank();
        superblock.raw.copy_from_slice(bytes);
        superblock.read_plain(&raw);
        superblock.read_identity(&raw);
        superblock.read_history(&raw);
        superblock.read_inodes(&raw);
        Ok(superblock)
    }

    /// What stands where a superblock has its [magic number](MAGIC).
    #[must_use]
    pub fn magic_of(bytes: &[u8; SIZE]) -> u16 {
        let raw = RawSuperblock::read_from_bytes(bytes).expect("both are 1024 bytes");
        raw.s_magic.get()
    }

    fn verify_checksum(&self, bytes: &[u8; SIZE]) -> Result<(), Corrupt> {
        if !self
            .features
            .has_read_only_compat(ReadOnlyCompat::METADATA_CSUM)
        {
            return Ok(());
        }
        if self.checksum_type != CHECKSUM_CRC32C {
            let problem = format!("checksum type is {}, not 1", self.checksum_type);
            return Err(Corrupt::new(STRUCTURE, problem));
        }
        let stored = crate::bytes::read_u32(bytes, CHECKSUM_AT);
        let computed = crc32c(INITIAL, &bytes[..CHECKSUM_AT]);
        if stored != computed {
            return Err(Corrupt::checksum(STRUCTURE, stored, computed));
        }
        Ok(())
    }

    /// Encodes the superblock, with a new checksum with `metadata_csum`.
    #[must_use]
    pub fn encode(&self) -> [u8; SIZE] {
        let mut raw = RawSuperblock::read_from_bytes(&self.raw[..]).expect("both are 1024 bytes");
        self.write_plain(&mut raw);
        self.write_identity(&mut raw);
        self.write_history(&mut raw);
        self.write_inodes(&mut raw);
        if self
            .features
            .has_read_only_compat(ReadOnlyCompat::METADATA_CSUM)
        {
            raw.s_checksum = crc32c(INITIAL, &raw.as_bytes()[..CHECKSUM_AT]).into();
        }
        let mut bytes = [0; SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The initial state of every crc32c except the superblock's, with or without `metadata_csum`:
    /// stored, or made from the UUID.
    #[must_use]
    pub fn metadata_checksum_seed(&self) -> u32 {
        if self.features.has_incompat(Incompat::CSUM_SEED) {
            self.checksum_seed
        } else {
            crc32c(INITIAL, &self.uuid)
        }
    }

    /// Whether it was made for the Hurd (see
    /// [`Inode::as_of_hurd`](crate::inode::Inode::as_of_hurd)).
    #[must_use]
    pub fn is_for_hurd(&self) -> bool {
        self.creator_os == CREATOR_HURD
    }

    /// Whether an error is only recorded and work continues.
    #[must_use]
    pub fn continues_on_error(&self) -> bool {
        self.errors == ErrorPolicy::Continue
    }

    /// Records an error of the kind `code`, found at `now` (seconds since 1970): in the state, as
    /// the latest error, and as the first if there was none. The structure's name takes the place
    /// of the function.
    pub fn record_error(&mut self, corrupt: &Corrupt, code: u8, now: i64) {
        let mut function = [0; 32];
        let name = corrupt.structure().as_bytes();
        let length = name.len().min(function.len() - 1);
        function[..length].copy_from_slice(&name[..length]);
        self.last_error = ErrorRecord {
            time: now,
            inode: corrupt.inode().map_or(0, InodeNumber::get),
            block: corrupt.block().map_or(0, BlockNumber::get),
            function,
            line: 0,
            code,
        };
        if self.error_count == 0 || self.first_error.time == 0 {
            self.first_error = self.last_error.clone();
        }
        self.error_count = self.error_count.saturating_add(1);
        self.state.insert(State::ERRORS);
    }

    /// Makes the original revision of the format the current one, which a file system with features
    /// must have, and writes down what the original one implies.
    pub fn raise_revision(&mut self) {
        if self.revision == 0 {
            self.first_inode = self.effective_first_inode().get();
            self.inode_size = self.effective_inode_size();
            self.revision = 1;
        }
    }

    /// Makes this the copy in a group. The field holds the lower half of the group's number.
    pub fn set_copy_group(&mut self, group: GroupNumber) {
        self.block_group = u16::try_from(group.get() & 0xFFFF).expect("masked");
    }

    /// Bytes in an inode: 128 in the original revision, whatever the field says.
    #[must_use]
    pub fn effective_inode_size(&self) -> u16 {
        if self.revision == 0 {
            128
        } else {
            self.inode_size
        }
    }

    /// The first inode that is not reserved: 11 in the original revision.
    #[must_use]
    pub fn effective_first_inode(&self) -> InodeNumber {
        InodeNumber(if self.revision == 0 {
            11
        } else {
            self.first_inode
        })
    }

    /// The volume name without its padding.
    #[must_use]
    pub fn label(&self) -> &[u8] {
        let end = self.volume_name.iter().position(|&byte| byte == 0);
        &self.volume_name[..end.unwrap_or(self.volume_name.len())]
    }

    /// The hash version of new directory indexes; half-MD4 if the field is invalid.
    #[must_use]
    pub fn hash_version(&self) -> HashVersion {
        HashVersion::from_raw(self.default_hash_version).unwrap_or(HashVersion::HalfMd4)
    }

    /// The type of name bytes in directory hashes; `None` if no writer has set it yet.
    #[must_use]
    pub fn hash_signedness(&self) -> Option<Signedness> {
        if self.flags.contains(Flags::UNSIGNED_HASH) {
            Some(Signedness::Unsigned)
        } else if self.flags.contains(Flags::SIGNED_HASH) {
            Some(Signedness::Signed)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BlockNumber, Corrupt, ERROR_CORRUPTED, ERROR_IO, ErrorPolicy, Incompat, InodeNumber, MAGIC,
        ReadOnlyCompat, SIZE, State, Superblock,
    };
    use proptest::prelude::*;

    #[test]
    fn times_keep_forty_bits_and_clamp() {
        let mut superblock = Superblock::blank();
        for (given, kept) in [(1 << 33, 1 << 33), (-5, 0), (1 << 50, (1 << 40) - 1)] {
            superblock.write_time = given;
            superblock.last_error.time = given;
            let again = Superblock::decode(&superblock.encode()).expect("valid");
            assert_eq!((again.write_time, again.last_error.time), (kept, kept));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut superblock = Superblock::blank();
        superblock.features.read_only_compat |= ReadOnlyCompat::METADATA_CSUM;
        superblock.checksum_type = 1;
        let good = superblock.encode();
        assert!(Superblock::decode(&good).is_ok());
        for at in [0, 0x5F, 0x290, 0x3FB, 0x3FF] {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad).is_err(), "byte {at:#x}");
        }
    }

    #[test]
    fn high_halves_count_only_under_64bit() {
        let mut superblock = Superblock::blank();
        superblock.features.incompat |= Incompat::SIXTY_FOUR_BIT;
        superblock.blocks_count = 1 << 40;
        superblock.errors = ErrorPolicy::Panic;
        let mut bytes = superblock.encode();
        assert_eq!(
            Superblock::decode(&bytes).expect("valid").blocks_count,
            1 << 40
        );
        bytes[0x60] &= !0x80;
        let narrow = Superblock::decode(&bytes).expect("valid");
        assert_eq!(narrow.blocks_count, 0);
        assert_eq!(narrow.encode(), bytes, "the high half survives unused");
    }

    #[test]
    fn the_first_error_stays_and_the_last_moves() {
        let mut superblock = Superblock::blank();
        let corrupt = Corrupt::new("extent node", "bad").in_block(BlockNumber(7));
        superblock.record_error(&corrupt, ERROR_CORRUPTED, 100);
        superblock.record_error(&corrupt.in_inode(InodeNumber(12)), ERROR_IO, 200);
        assert_eq!(superblock.error_count, 2);
        assert_eq!(
            (superblock.first_error.time, superblock.first_error.inode),
            (100, 0)
        );
        let codes = (superblock.first_error.code, superblock.last_error.code);
        assert_eq!(codes, (ERROR_CORRUPTED, ERROR_IO));
        assert_eq!(
            (superblock.last_error.time, superblock.last_error.inode),
            (200, 12)
        );
        assert_eq!(&superblock.last_error.function[..12], b"extent node\0");
        assert!(superblock.state.contains(State::ERRORS));
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(mut bytes in proptest::collection::vec(any::<u8>(), SIZE)) {
            bytes[0x38..0x3A].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[0x65] &= !0x04;
            let array: [u8; SIZE] = bytes.try_into().expect("sized so");
            let superblock = Superblock::decode(&array).expect("no checksum to fail");
            prop_assert_eq!(superblock.encode(), array);
        }
    }
}
