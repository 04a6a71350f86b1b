//! Group descriptors: the locations of a group's bitmaps and inode table, and its free counts.
//!
//! The short form has 32 bytes and no high halves; the long form, with `64bit`, has 64 or more.
//! Unknown bytes after them are kept. The checksum is that of the file system's regime: crc32c (the
//! low half is stored), crc16, or none. Bitmap checksums are kept as stored; a short descriptor has
//! room only for their low halves, so compare them with [`GroupDescriptor::matches`]. Format: the
//! kernel's `Documentation/filesystems/ext4/group_descr.rst`.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bitmap;
use crate::checksum::{Checksums, crc16, crc32c};
use crate::corrupt::Corrupt;
use crate::feature::Incompat;
use crate::geometry::Geometry;
use crate::number::{BlockNumber, GroupNumber};

/// Bytes of the short form.
pub const SHORT_SIZE: usize = 32;
/// Bytes of the long form with a defined meaning.
pub const LONG_SIZE: usize = 64;

const STRUCTURE: &str = "group descriptor";
const INODE_BITMAP: &str = "inode bitmap";
const CHECKSUM_AT: usize = 0x1E;

bitflags! {
    /// Which structures of a group were never written (`bg_flags`). Of the bitmaps they say so only
    /// where descriptors have checksums: ask [`GroupFlags::has_no_block_bitmap`] and
    /// [`GroupFlags::has_no_inode_bitmap`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap was never written; all inodes are free.
        const INODE_UNINIT = 0x1;
        /// The block bitmap was never written; only the group's own metadata is in use.
        const BLOCK_UNINIT = 0x2;
        /// The inode table contains only zeroes and inodes, no old data.
        const INODE_ZEROED = 0x4;
    }
}

/// A bitmap may be missing only where its descriptor has a checksum: that is what makes it safe not
/// to write it (ext4(5), under `uninit_bg`, in whose place `metadata_csum` stands). Without, the
/// bitmap is there, and a flag is a remnant of features that the image had before, or damage.
impl GroupFlags {
    /// Whether the group's block bitmap was never written. Its block has any bytes then, and the
    /// bitmap follows from where metadata lies.
    #[must_use]
    pub fn has_no_block_bitmap(self, checksums: Checksums) -> bool {
        checksums.protects_descriptors() && self.contains(Self::BLOCK_UNINIT)
    }

    /// Whether the group's inode bitmap was never written. Its block has any bytes then, and all
    /// inodes are free.
    #[must_use]
    pub fn has_no_inode_bitmap(self, checksums: Checksums) -> bool {
        checksums.protects_descriptors() && self.contains(Self::INODE_UNINIT)
    }
}

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDescriptor {
    bg_block_bitmap_lo: U32,
    bg_inode_bitmap_lo: U32,
    bg_inode_table_lo: U32,
    bg_free_blocks_count_lo: U16,
    bg_free_inodes_count_lo: U16,
    bg_used_dirs_count_lo: U16,
    bg_flags: U16,
    bg_exclude_bitmap_lo: U32,
    bg_block_bitmap_csum_lo: U16,
    bg_inode_bitmap_csum_lo: U16,
    bg_itable_unused_lo: U16,
    bg_checksum: U16,
    bg_block_bitmap_hi: U32,
    bg_inode_bitmap_hi: U32,
    bg_inode_table_hi: U32,
    bg_free_blocks_count_hi: U16,
    bg_free_inodes_count_hi: U16,
    bg_used_dirs_count_hi: U16,
    bg_itable_unused_hi: U16,
    bg_exclude_bitmap_hi: U32,
    bg_block_bitmap_csum_hi: U16,
    bg_inode_bitmap_csum_hi: U16,
    bg_reserved: U32,
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<RawDescriptor>() == LONG_SIZE);
    assert!(offset_of!(RawDescriptor, bg_checksum) == CHECKSUM_AT);
    assert!(offset_of!(RawDescriptor, bg_block_bitmap_hi) == SHORT_SIZE);
    assert!(offset_of!(RawDescriptor, bg_block_bitmap_csum_hi) == 0x38);
};

/// A decoded group descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GroupDescriptor {
    /// Block of the block bitmap.
    pub block_bitmap: BlockNumber,
    /// Block of the inode bitmap.
    pub inode_bitmap: BlockNumber,
    /// First block of the inode table.
    pub inode_table: BlockNumber,
    /// Number of free clusters (blocks without bigalloc).
    pub free_clusters: u32,
    /// Number of free inodes.
    pub free_inodes: u32,
    /// Number of inodes that are directories.
    pub used_directories: u32,
    /// Number of inodes at the end of the table that were never used, as stored; see
    /// [`GroupDescriptor::never_used_inodes`].
    pub unused_inodes: u32,
    /// Which structures were never written.
    pub flags: GroupFlags,
    /// Checksum of the block bitmap; its high half is 0 in the short form.
    pub block_bitmap_checksum: u32,
    /// Checksum of the inode bitmap; its high half is 0 in the short form.
    pub inode_bitmap_checksum: u32,
    /// Never used by merged kernels.
    pub exclude_bitmap: u64,
    /// The checksum as read; `encode` recomputes it if the file system has checksums.
    pub checksum: u16,
    reserved: u32,
    /// Bytes after the long form.
    rest: Box<[u8]>,
}

impl GroupDescriptor {
    /// Decodes a descriptor of `geometry.descriptor_size` bytes and checks its checksum.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the size or the checksum is wrong.
    pub fn decode(bytes: &[u8], geometry: &Geometry, group: GroupNumber) -> Result<Self, Corrupt> {
        let descriptor = Self::decode_unverified(bytes, geometry, group)?;
        if let Some(computed) = checksum(bytes, geometry.checksums, group)
            && computed != descriptor.checksum
        {
            let stored = descriptor.checksum;
            return Err(Corrupt::checksum(STRUCTURE, stored, computed).in_group(group));
        }
        Ok(descriptor)
    }

    /// Decodes a descriptor without checking its checksum, for the examination of damage.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the size is wrong.
    pub fn decode_unverified(
        bytes: &[u8],
        geometry: &Geometry,
        group: GroupNumber,
    ) -> Result<Self, Corrupt> {
        if bytes.len() != usize::from(geometry.descriptor_size) {
            let problem = format!("{} bytes, not {}", bytes.len(), geometry.descriptor_size);
            return Err(Corrupt::new(STRUCTURE, problem).in_group(group));
        }
        let mut known = [0; LONG_SIZE];
        let used = bytes.len().min(LONG_SIZE);
        known[..used].copy_from_slice(&bytes[..used]);
        let raw = RawDescriptor::read_from_bytes(&known).expect("both are 64 bytes");
        Ok(Self::from_raw(&raw, &bytes[used..]))
    }

    fn from_raw(raw: &RawDescriptor, rest: &[u8]) -> Self {
        Self {
            block_bitmap: BlockNumber(join_words(raw.bg_block_bitmap_lo, raw.bg_block_bitmap_hi)),
            inode_bitmap: BlockNumber(join_words(raw.bg_inode_bitmap_lo, raw.bg_inode_bitmap_hi)),
            inode_table: BlockNumber(join_words(raw.bg_inode_table_lo, raw.bg_inode_table_hi)),
            free_clusters: join(raw.bg_free_blocks_count_lo, raw.bg_free_blocks_count_hi),
            free_inodes: join(raw.bg_free_inodes_count_lo, raw.bg_free_inodes_count_hi),
            used_directories: join(raw.bg_used_dirs_count_lo, raw.bg_used_dirs_count_hi),
            unused_inodes: join(raw.bg_itable_unused_lo, raw.bg_itable_unused_hi),
            flags: GroupFlags::from_bits_retain(raw.bg_flags.get()),
            block_bitmap_checksum: join(raw.bg_block_bitmap_csum_lo, raw.bg_block_bitmap_csum_hi),
            inode_bitmap_checksum: join(raw.bg_inode_bitmap_csum_lo, raw.bg_inode_bitmap_csum_hi),
            exclude_bitmap: join_words(raw.bg_exclude_bitmap_lo, raw.bg_exclude_bitmap_hi),
            checksum: raw.bg_checksum.get(),
            reserved: raw.bg_reserved.get(),
            rest: rest.into(),
        }
    }

    /// Writes the descriptor and its checksum to `slot`, which has `geometry.descriptor_size`
    /// bytes. The short form has the low halves of the checksums of bitmaps, and counts up to
    /// 65535: a [`Geometry`] allows no more, so a larger count follows from a wrong one.
    ///
    /// # Panics
    ///
    /// If `slot` has another size.
    pub fn encode(&self, slot: &mut [u8], geometry: &Geometry, group: GroupNumber) {
        assert_eq!(
            slot.len(),
            usize::from(geometry.descriptor_size),
            "the slot is a descriptor"
        );
        let most = if slot.len() >= LONG_SIZE {
            u32::MAX
        } else {
            u16::MAX.into()
        };
        let raw = self.to_raw(most);
        let used = slot.len().min(LONG_SIZE);
        let (known, rest) = slot.split_at_mut(used);
        known.copy_from_slice(&raw.as_bytes()[..used]);
        rest.fill(0);
        let kept = self.rest.len().min(rest.len());
        rest[..kept].copy_from_slice(&self.rest[..kept]);
        if let Some(computed) = checksum(slot, geometry.checksums, group) {
            crate::bytes::write_u16(slot, CHECKSUM_AT, computed);
        }
    }

    /// The fields in their halves, with counts up to `most`.
    fn to_raw(&self, most: u32) -> RawDescriptor {
        let [block_bitmap_lo, block_bitmap_hi] = split_words(self.block_bitmap.get());
        let [inode_bitmap_lo, inode_bitmap_hi] = split_words(self.inode_bitmap.get());
        let [inode_table_lo, inode_table_hi] = split_words(self.inode_table.get());
        let [exclude_bitmap_lo, exclude_bitmap_hi] = split_words(self.exclude_bitmap);
        let [free_blocks_lo, free_blocks_hi] = split(self.free_clusters.min(most));
        let [free_inodes_lo, free_inodes_hi] = split(self.free_inodes.min(most));
        let [used_dirs_lo, used_dirs_hi] = split(self.used_directories.min(most));
        let [unused_lo, unused_hi] = split(self.unused_inodes.min(most));
        let [block_csum_lo, block_csum_hi] = split(self.block_bitmap_checksum);
        let [inode_csum_lo, inode_csum_hi] = split(self.inode_bitmap_checksum);
        RawDescriptor {
            bg_block_bitmap_lo: block_bitmap_lo,
            bg_inode_bitmap_lo: inode_bitmap_lo,
            bg_inode_table_lo: inode_table_lo,
            bg_free_blocks_count_lo: free_blocks_lo,
            bg_free_inodes_count_lo: free_inodes_lo,
            bg_used_dirs_count_lo: used_dirs_lo,
            bg_flags: self.flags.bits().into(),
            bg_exclude_bitmap_lo: exclude_bitmap_lo,
            bg_block_bitmap_csum_lo: block_csum_lo,
            bg_inode_bitmap_csum_lo: inode_csum_lo,
            bg_itable_unused_lo: unused_lo,
            bg_checksum: self.checksum.into(),
            bg_block_bitmap_hi: block_bitmap_hi,
            bg_inode_bitmap_hi: inode_bitmap_hi,
            bg_inode_table_hi: inode_table_hi,
            bg_free_blocks_count_hi: free_blocks_hi,
            bg_free_inodes_count_hi: free_inodes_hi,
            bg_used_dirs_count_hi: used_dirs_hi,
            bg_itable_unused_hi: unused_hi,
            bg_exclude_bitmap_hi: exclude_bitmap_hi,
            bg_block_bitmap_csum_hi: block_csum_hi,
            bg_inode_bitmap_csum_hi: inode_csum_hi,
            bg_reserved: self.reserved.into(),
        }
    }

    /// Whether the bitmap checksum `stored` in a descriptor equals the computed one: all 32 bits,
    /// or the low half in a short descriptor.
    #[must_use]
    pub fn matches(stored: u32, computed: u32, geometry: &Geometry) -> bool {
        let long = usize::from(geometry.descriptor_size) >= LONG_SIZE;
        let mask = if long { u32::MAX } else { 0xFFFF };
        stored & mask == computed & mask
    }

    /// Checks that bitmaps and table are inside the file system (without `flex_bg`, inside the
    /// group), do not overlap, and that no count exceeds the group.
    ///
    /// # Errors
    ///
    /// [`Corrupt`], naming the field that is out of range.
    pub fn check(&self, geometry: &Geometry, group: GroupNumber) -> Result<(), Corrupt> {
        self.check_places(geometry, group)?;
        self.check_counts(geometry, group)
    }

    /// Checks the places of the group's structures.
    ///
    /// # Errors
    ///
    /// [`Corrupt`], naming the structure that is out of place.
    pub fn check_places(&self, geometry: &Geometry, group: GroupNumber) -> Result<(), Corrupt> {
        let table_blocks = u64::from(geometry.inode_table_blocks);
        check_place("block bitmap", self.block_bitmap, 1, geometry, group)?;
        check_place("inode bitmap", self.inode_bitmap, 1, geometry, group)?;
        check_place(
            "inode table",
            self.inode_table,
            table_blocks,
            geometry,
            group,
        )?;
        let table = self.inode_table.get()..self.inode_table.get() + table_blocks;
        if self.block_bitmap == self.inode_bitmap
            || table.contains(&self.block_bitmap.get())
            || table.contains(&self.inode_bitmap.get())
        {
            let problem = "bitmaps and inode table overlap";
            return Err(Corrupt::new(STRUCTURE, problem).in_group(group));
        }
        Ok(())
    }

    /// Checks that no count is larger than the group.
    ///
    /// # Errors
    ///
    /// [`Corrupt`], naming the count.
    pub fn check_counts(&self, geometry: &Geometry, group: GroupNumber) -> Result<(), Corrupt> {
        let inodes = geometry.inodes_per_group;
        check_count(
            "free clusters",
            self.free_clusters,
            geometry.clusters_in(group),
            group,
        )?;
        check_count("free inodes", self.free_inodes, inodes, group)?;
        check_count("directories", self.used_directories, inodes, group)?;
        if geometry.checksums.protects_descriptors() {
            check_count("never used inodes", self.unused_inodes, inodes, group)?;
        }
        Ok(())
    }

    /// The number of inodes at the end of the table that were never used. The field is valid only
    /// where descriptors have checksums; in a group without an inode bitmap it is all of them. The
    /// number is not checked: it may be more than the group has.
    #[must_use]
    pub fn never_used_inodes(&self, geometry: &Geometry) -> u32 {
        if self.flags.has_no_inode_bitmap(geometry.checksums) {
            geometry.inodes_per_group
        } else if geometry.checksums.protects_descriptors() {
            self.unused_inodes
        } else {
            0
        }
    }

    /// Checks the group's inode bitmap, a block: its checksum, which one that was never written and
    /// is all zeroes does not have; the number of free inodes; and that no inode is in use at the
    /// end of the table, which was never used. Which inodes must be in use is for the caller.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] in the bitmap's block if the bitmap contradicts the descriptor.
    pub fn check_inode_bitmap(
        &self,
        bits: &[u8],
        geometry: &Geometry,
        group: GroupNumber,
    ) -> Result<(), Corrupt> {
        let inodes = geometry.inodes_per_group;
        let placed = |corrupt: Corrupt| {
            let corrupt = corrupt.in_group(group);
            Err(corrupt.in_block(self.inode_bitmap))
        };
        let corrupt = |problem: String| placed(Corrupt::new(INODE_BITMAP, problem));
        if let Some(seed) = geometry.checksum_seed()
            && !self.flags.has_no_inode_bitmap(geometry.checksums)
        {
            let computed = bitmap::inode_bitmap_checksum(seed, bits, inodes);
            let stored = self.inode_bitmap_checksum;
            if !Self::matches(stored, computed, geometry) {
                return placed(Corrupt::checksum(INODE_BITMAP, stored, computed));
            }
        }
        let (free, said) = (bitmap::count_zeros(bits, 0..inodes), self.free_inodes);
        if free != said {
            return corrupt(format!(
                "has {free} free inodes, the group descriptor says {said}"
            ));
        }
        let boundary = inodes.saturating_sub(self.never_used_inodes(geometry));
        if let Some(used) = bitmap::next_one(bits, boundary, inodes) {
            return corrupt(format!(
                "inode {used} of the group is used, but counted as never used"
            ));
        }
        Ok(())
    }
}

/// Checks that a structure of a group lies in the file system, and without `flex_bg` in the group.
fn check_place(
    what: &str,
    start: BlockNumber,
    count: u64,
    geometry: &Geometry,
    group: GroupNumber,
) -> Result<(), Corrupt> {
    let own_start = geometry.first_block(group).get();
    let own_end = own_start + u64::from(geometry.blocks_in(group));
    let flexible = geometry.features.has_incompat(Incompat::FLEX_BG);
    let inside = geometry.contains(start, count)
        && (flexible || (start.get() >= own_start && start.get() + count <= own_end));
    if inside {
        return Ok(());
    }
    let problem = format!("{what} at block {start}, {count} long, is out of place");
    Err(Corrupt::new(STRUCTURE, problem).in_group(group))
}

fn check_count(what: &str, count: u32, most: u32, group: GroupNumber) -> Result<(), Corrupt> {
    if count <= most {
        return Ok(());
    }
    Err(Corrupt::new(STRUCTURE, format!("{count} {what} of {most}")).in_group(group))
}

/// The value of the checksum field; `None` if the file system has no such checksums.
fn checksum(bytes: &[u8], checksums: Checksums, group: GroupNumber) -> Option<u16> {
    let number = group.get().to_le_bytes();
    let (before, after) = (&bytes[..CHECKSUM_AT], &bytes[CHECKSUM_AT + 2..]);
    match checksums {
        Checksums::None => None,
        Checksums::DescriptorsOnly { uuid_state } => {
            Some(crc16(crc16(crc16(uuid_state, &number), before), after))
        }
        Checksums::Metadata { seed } => {
            let state = crc32c(crc32c(crc32c(seed, &number), before), &[0; 2]);
            let [low, high, ..] = crc32c(state, after).to_le_bytes();
            Some(u16::from_le_bytes([low, high]))
        }
    }
}

fn join(low: U16, high: U16) -> u32 {
    u32::from(low.get()) | u32::from(high.get()) << 16
}

fn join_words(low: U32, high: U32) -> u64 {
    u64::from(low.get()) | u64::from(high.get()) << 32
}

fn split(value: u32) -> [U16; 2] {
    let [a, b, c, d] = value.to_le_bytes();
    [U16::from_bytes([a, b]), U16::from_bytes([c, d])]
}

fn split_words(value: u64) -> [U32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [U32::from_bytes([a, b, c, d]), U32::from_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::{GroupDescriptor, GroupFlags};
    use crate::bitmap;
    use crate::checksum::Checksums;
    use crate::feature::Incompat;
    use crate::geometry::Geometry;
    use crate::number::{BlockNumber, GroupNumber};
    use crate::superblock::Superblock;
    use proptest::prelude::*;

    fn geometry(size: u16, checksums: Checksums) -> Geometry {
        let mut superblock = Superblock::blank();
        superblock.revision = 1;
        superblock.log_block_size = 2;
        superblock.log_cluster_size = 2;
        superblock.blocks_per_group = 32768;
        superblock.inodes_per_group = 8192;
        superblock.blocks_count = 32768 * 4;
        superblock.inodes_count = 8192 * 4;
        superblock.first_inode = 11;
        superblock.inode_size = 256;
        superblock.desc_size = size;
        superblock
            .features
            .incompat
            .set(Incompat::SIXTY_FOUR_BIT, size > 32);
        let geometry = Geometry::of(&superblock).expect("sound");
        Geometry {
            checksums,
            ..geometry
        }
    }

    #[test]
    fn every_regime_notices_a_flipped_bit_and_a_wrong_group() {
        let regimes = [
            Checksums::DescriptorsOnly { uuid_state: 77 },
            Checksums::Metadata { seed: 77 },
        ];
        for (size, checksums) in [(32, regimes[0]), (32, regimes[1]), (64, regimes[1])] {
            let geometry = geometry(size, checksums);
            let descriptor = GroupDescriptor {
                free_clusters: 5,
                flags: GroupFlags::INODE_ZEROED,
                ..Default::default()
            };
            let mut slot = vec![0xAA; usize::from(size)];
            descriptor.encode(&mut slot, &geometry, GroupNumber(3));
            assert!(GroupDescriptor::decode(&slot, &geometry, GroupNumber(3)).is_ok());
            assert!(GroupDescriptor::decode(&slot, &geometry, GroupNumber(2)).is_err());
            slot[7] ^= 1;
            assert!(GroupDescriptor::decode(&slot, &geometry, GroupNumber(3)).is_err());
        }
    }

    #[test]
    fn places_and_counts_are_judged() {
        let geometry = geometry(64, Checksums::Metadata { seed: 1 });
        let group = GroupNumber(1);
        let good = GroupDescriptor {
            block_bitmap: BlockNumber(32770),
            inode_bitmap: BlockNumber(32771),
            inode_table: BlockNumber(32772),
            free_clusters: 32768,
            ..Default::default()
        };
        assert_eq!(good.check(&geometry, group), Ok(()));
        let bad = [
            GroupDescriptor {
                block_bitmap: BlockNumber(5),
                ..good.clone()
            },
            GroupDescriptor {
                inode_bitmap: BlockNumber(u64::MAX),
                ..good.clone()
            },
            GroupDescriptor {
                inode_table: BlockNumber(65536 - 511),
                ..good.clone()
            },
            GroupDescriptor {
                inode_bitmap: BlockNumber(33000),
                ..good.clone()
            },
            GroupDescriptor {
                free_clusters: 32769,
                ..good.clone()
            },
            GroupDescriptor {
                unused_inodes: 8193,
                ..good.clone()
            },
        ];
        for descriptor in bad {
            assert!(
                descriptor.check(&geometry, group).is_err(),
                "{descriptor:?}"
            );
        }
    }

    #[test]
    fn bitmaps_are_missing_only_where_a_checksum_protects_the_mark() {
        let both = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        for checksums in [
            Checksums::DescriptorsOnly { uuid_state: 77 },
            Checksums::Metadata { seed: 77 },
        ] {
            assert!(both.has_no_block_bitmap(checksums));
            assert!(both.has_no_inode_bitmap(checksums));
            assert!(!GroupFlags::INODE_UNINIT.has_no_block_bitmap(checksums));
            assert!(!GroupFlags::BLOCK_UNINIT.has_no_inode_bitmap(checksums));
        }
        assert!(!both.has_no_block_bitmap(Checksums::None));
        assert!(!both.has_no_inode_bitmap(Checksums::None));
    }

    #[test]
    fn inode_bitmaps_that_contradict_their_descriptor_are_refused() {
        let geometry_with = |checksums| geometry(64, checksums);
        let summed = geometry_with(Checksums::Metadata { seed: 7 });
        let group = GroupNumber(1);
        let mut bits = [0; 4096];
        bitmap::set_range(&mut bits, 0..11);
        bitmap::set_padding(&mut bits, 8192);
        let good = GroupDescriptor {
            free_inodes: 8192 - 11,
            unused_inodes: 8192 - 11,
            inode_bitmap_checksum: bitmap::inode_bitmap_checksum(7, &bits, 8192),
            ..Default::default()
        };
        let problem = |descriptor: &GroupDescriptor, bits: &[u8], geometry: &Geometry| {
            let judged = descriptor.check_inode_bitmap(bits, geometry, group);
            judged.map_err(|corrupt| corrupt.to_string()).err()
        };
        assert_eq!(problem(&good, &bits, &summed), None);
        let mut bad = vec![good; 3];
        bad[0].inode_bitmap_checksum ^= 1;
        bad[1].free_inodes -= 1;
        bad[2].unused_inodes += 1;
        let told = ["checksum", "8181 free inodes", "inode 10 of the group"];
        for (descriptor, told) in bad.iter().zip(told) {
            let problem = problem(descriptor, &bits, &summed).expect(told);
            assert!(problem.contains(told), "{problem}");
        }
        // Neither the checksum nor the count of never used inodes is valid here.
        let plain = geometry_with(Checksums::None);
        assert_eq!(problem(&bad[0], &bits, &plain), None);
        assert_eq!(problem(&bad[2], &bits, &plain), None);

        let mut unwritten = GroupDescriptor {
            free_inodes: 8192,
            flags: GroupFlags::INODE_UNINIT,
            ..Default::default()
        };
        assert_eq!(unwritten.never_used_inodes(&summed), 8192);
        assert_eq!(problem(&unwritten, &[0; 4096], &summed), None);
        unwritten.free_inodes -= 1;
        assert!(problem(&unwritten, &[0; 4096], &summed).is_some());
    }

    #[test]
    fn a_short_descriptor_keeps_the_low_half_of_bitmap_sums() {
        let short = geometry(32, Checksums::None);
        assert!(GroupDescriptor::matches(0x1234, 0xABCD_1234, &short));
        let long = geometry(64, Checksums::None);
        assert!(!GroupDescriptor::matches(0x1234, 0xABCD_1234, &long));
    }

    /// A count that was wrong when it was read may grow beyond what the short form holds.
    #[test]
    fn a_count_that_does_not_fit_a_short_descriptor_becomes_the_largest() {
        let descriptor = GroupDescriptor {
            used_directories: 1 << 16,
            ..Default::default()
        };
        for (size, written) in [(32, (1 << 16) - 1), (64, 1 << 16)] {
            let mut slot = vec![0; size.into()];
            let geometry = geometry(size, Checksums::None);
            descriptor.encode(&mut slot, &geometry, GroupNumber(0));
            let decoded = GroupDescriptor::decode(&slot, &geometry, GroupNumber(0));
            assert_eq!(decoded.expect("no checksum").used_directories, written);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(
            bytes in proptest::collection::vec(any::<u8>(), 1024),
            power in 5u32..11,
        ) {
            let size = 1usize << power;
            let geometry = geometry(1 << power, Checksums::None);
            let group = GroupNumber(1);
            let decoded =
                GroupDescriptor::decode(&bytes[..size], &geometry, group).expect("no sum");
            let _ = decoded.check(&geometry, group);
            let mut again = vec![0; size];
            decoded.encode(&mut again, &geometry, group);
            prop_assert_eq!(&again, &bytes[..size]);
        }
    }
}
