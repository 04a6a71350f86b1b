//! Inodes: all attributes of a file except its name and its content.
//!
//! An inode is stored in a slot of 128 bytes or more. In larger slots, the first 128 bytes are
//! followed by an extra part of `extra_isize` bytes (a field exists only if that covers it) and
//! then by the *tail*, which contains extended attributes. A slot of zeroes is an inode that was
//! never used; it has no checksum.
//!
//! Numbers are kept as stored: `blocks` in the unit that the flags select, `size` with both halves
//! for every kind of file. The `block` area is 60 raw bytes: an extent root, a block map, a
//! symbolic link's target, a device number or inline data. Format: the kernel's
//! `Documentation/filesystems/ext4/inodes.rst`.

mod grow;
pub mod inline;
mod raw;
mod special;

use bitflags::bitflags;
use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::{InodeSeed, crc32c};
use crate::corrupt::Corrupt;
use crate::directory::FileType;
use crate::feature::{Features, Incompat, ReadOnlyCompat};
use crate::number::{BlockNumber, InodeNumber};
use crate::time::Time;
use raw::{RawExtra, RawInode};

/// Bytes of the part that every inode has.
pub const BASE_SIZE: usize = 128;
/// Bytes of the `block` area (`i_block`).
pub const BLOCK_AREA: usize = 60;
/// Bytes of the extra part that are defined today; new inodes get at least this many.
pub const EXTRA_SIZE: u16 = 32;
/// Most links of one inode (`EXT4_LINK_MAX`). A directory with an index may have more
/// subdirectories; then its count is 1.
pub const MAX_LINKS: u16 = 65000;
/// The largest major number of a device.
pub const MAX_MAJOR: u32 = 0xFFF;
/// The largest minor number of a device.
pub const MAX_MINOR: u32 = 0xF_FFFF;

const STRUCTURE: &str = "inode";
const CHECKSUM_LOW_AT: usize = 0x7C;
const CHECKSUM_HIGH_AT: usize = 0x82;
/// The smallest `extra_isize` that covers the high half of the checksum.
const CHECKSUM_HIGH_END: u16 = 4;

bitflags! {
    /// The flags of an inode (`i_flags`), by their upstream names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (never implemented).
        const SECRM = 0x1;
        /// Undelete (never implemented).
        const UNRM = 0x2;
        /// Compression (never implemented).
        const COMPR = 0x4;
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// The file may not change.
        const IMMUTABLE = 0x10;
        /// The file may only grow at its end.
        const APPEND = 0x20;
        /// dump(8) skips the file.
        const NODUMP = 0x40;
        /// Access times are not updated.
        const NOATIME = 0x80;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// A directory with a hash index.
        const INDEX = 0x1000;
        /// An AFS directory.
        const IMAGIC = 0x2000;
        /// Data is written through the journal.
        const JOURNAL_DATA = 0x4000;
        /// No tail packing.
        const NOTAIL = 0x8000;
        /// Directory changes are synchronous.
        const DIRSYNC = 0x10000;
        /// The top of unrelated directory hierarchies.
        const TOPDIR = 0x20000;
        /// `blocks` counts file system blocks, not 512-byte sectors.
        const HUGE_FILE = 0x40000;
        /// Mapped by extents.
        const EXTENTS = 0x80000;
        /// Protected by fs-verity.
        const VERITY = 0x100000;
        /// Holds the value of an extended attribute.
        const EA_INODE = 0x200000;
        /// No copy on write.
        const NOCOW = 0x800000;
        /// Direct access to persistent memory.
        const DAX = 0x200_0000;
        /// Data is stored in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// Children inherit the project number.
        const PROJINHERIT = 0x2000_0000;
        /// A directory that folds case.
        const CASEFOLD = 0x4000_0000;

        /// The flags that users may read (`EXT4_FL_USER_VISIBLE`).
        const USER_VISIBLE = 0x725B_DFFF;
        /// The flags that users may change (`EXT4_FL_USER_MODIFIABLE`).
        const USER_MODIFIABLE = 0x624B_80FF;
    }
}

impl InodeFlags {
    /// The flags that only directories can have.
    pub const OF_DIRECTORIES: Self = Self::DIRSYNC
        .union(Self::TOPDIR)
        .union(Self::PROJINHERIT)
        .union(Self::CASEFOLD);
}

/// A decoded inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Kind of file and permissions, as `st_mode`.
    pub mode: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub accessed: Time,
    /// Last change of the inode.
    pub changed: Time,
    /// Last change of the content.
    pub modified: Time,
    /// Time of creation; `None` if the extra part does not cover it.
    pub created: Option<Time>,
    /// Time of deletion in seconds since 1970, or the next inode of the orphan list; 0 for one in
    /// use.
    pub deletion_time: u32,
    /// Link count; with `dir_nlink`, 1 stands for "too many" in directories.
    pub links: u16,
    /// Space used, in 512-byte sectors or, with [`InodeFlags::HUGE_FILE`], in file system blocks.
    pub blocks: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// Generation: distinguishes successive files with the same inode number.
    pub generation: u32,
    /// Extent root, block map, link target, device number or inline data.
    pub block: [u8; BLOCK_AREA],
    /// The attribute block, or 0.
    pub attribute_block: BlockNumber,
    /// Number of changes; the upper half exists only if the extra part covers it.
    pub version: u64,
    /// Bytes of the extra part: 0, or a multiple of 4.
    pub extra_isize: u16,
    /// Project id; 0 if the extra part does not cover it.
    pub project: u32,
    /// The bytes after the extra part: attributes in the inode, or zeroes.
    pub tail: Box<[u8]>,
    /// The checksum as read; `encode` recomputes it if the file system has checksums.
    checksum: u32,
    obsolete_address: u32,
    reserved: u16,
    /// The bytes of the extra part that are not defined today.
    unknown_extra: Box<[u8]>,
}

impl Default for Inode {
    /// An inode of zeroes in a slot of 128 bytes.
    fn default() -> Self {
        Self {
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: Time::default(),
            changed: Time::default(),
            modified: Time::default(),
            created: None,
            deletion_time: 0,
            links: 0,
            blocks: 0,
            flags: InodeFlags::empty(),
            generation: 0,
            block: [0; BLOCK_AREA],
            attribute_block: BlockNumber(0),
            version: 0,
            extra_isize: 0,
            project: 0,
            tail: Box::default(),
            checksum: 0,
            obsolete_address: 0,
            reserved: 0,
            unknown_extra: Box::default(),
        }
    }
}

/// Some zeroes; not from `vec![0; length]`, which asks the allocator for zeroed memory: glibc keeps
/// none of that for each thread, and takes longer than this does for so few bytes.
fn zeroes(length: usize) -> Box<[u8]> {
    std::iter::repeat_n(0, length).collect()
}

impl Inode {
    /// The part of the slot that contains attributes: none without an extra part.
    fn area(&self) -> &[u8] {
        if self.extra_isize == 0 {
            &[]
        } else {
            &self.tail
        }
    }

    /// An inode of zeroes for a slot of `slot_size` bytes with an extra part of `extra_isize`
    /// bytes; if that covers the time of creation, it is the start of 1970.
    ///
    /// # Panics
    ///
    /// If the extra part does not fit or is no multiple of 4.
    #[must_use]
    pub fn new(slot_size: u16, extra_isize: u16) -> Self {
        let slot_size = usize::from(slot_size);
        check_extra_isize(extra_isize, slot_size).expect("the volume's extra size fits its slots");
        Self {
            extra_isize,
            created: covers(extra_isize, 20).then(Time::default),
            unknown_extra: zeroes(usize::from(extra_isize.saturating_sub(EXTRA_SIZE))),
            tail: zeroes(slot_size - tail_offset(extra_isize, slot_size)),
            ..Self::default()
        }
    }

    /// Decodes a slot; with a seed, also checks its checksum.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the size, the checksum or `extra_isize` is wrong.
    pub fn decode(slot: &[u8], inode: InodeNumber, seed: Option<u32>) -> Result<Self, Corrupt> {
        Self::try_decode(slot, inode, seed).map_err(|corrupt| corrupt.in_inode(inode))
    }

    /// The same inode, read from a file system that was made for the Hurd: that has the upper half
    /// of the mode where others have the upper half of the attribute block's number, and nothing
    /// where others have that of the block count (`osd2` in the format's documents). Such an inode
    /// is not written.
    #[must_use]
    pub fn as_of_hurd(mut self) -> Self {
        self.blocks &= u64::from(u32::MAX);
        self.attribute_block = BlockNumber(self.attribute_block.get() & u64::from(u32::MAX));
        self
    }

    /// The inode as Linux reads it on a file system with these features. Without `huge_file` a
    /// block count has no upper half and no coarser unit, without `large_dir` the size of what is
    /// no regular file has none, without `64bit` the attribute block's number has none. Without
    /// `project` every project is 0.
    #[must_use]
    pub fn as_read_with(mut self, features: &Features) -> Self {
        const LOWER_HALF: u64 = u32::MAX as u64;
        if !features.has_read_only_compat(ReadOnlyCompat::HUGE_FILE) {
            self.blocks &= LOWER_HALF;
            self.flags.remove(InodeFlags::HUGE_FILE);
        }
        let is_regular = self.file_type() == Some(FileType::Regular);
        if !is_regular && !features.has_incompat(Incompat::LARGEDIR) {
            self.size &= LOWER_HALF;
        }
        if !features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            self.attribute_block = BlockNumber(self.attribute_block.get() & LOWER_HALF);
        }
        if !features.has_read_only_compat(ReadOnlyCompat::PROJECT) {
            self.project = 0;
        }
        self
    }

    fn try_decode(slot: &[u8], inode: InodeNumber, seed: Option<u32>) -> Result<Self, Corrupt> {
        let Ok((raw, behind)) = RawInode::ref_from_prefix(slot) else {
            return Err(Corrupt::new(
                STRUCTURE,
                format!("slot of {} bytes", slot.len()),
            ));
        };
        let extra = behind
            .first_chunk()
            .map_or(0, |bytes| u16::from_le_bytes(*bytes));
        if let Some(seed) = seed
            && slot.iter().any(|&byte| byte != 0)
        {
            let seed = InodeSeed::new(seed, inode, raw.i_generation.get());
            verify(slot, extra, seed)?;
        }
        check_extra_isize(extra, slot.len())?;
        let mut decoded = Self::from_base(raw);
        decoded.read_extra(raw, behind, extra);
        decoded.tail = slot[tail_offset(extra, slot.len())..].into();
        Ok(decoded)
    }

    fn from_base(raw: &RawInode) -> Self {
        Self {
            mode: raw.i_mode.get(),
            uid: join(raw.i_uid.get(), raw.l_i_uid_high.get()),
            gid: join(raw.i_gid.get(), raw.l_i_gid_high.get()),
            size: u64::from(raw.i_size_lo.get()) | u64::from(raw.i_size_high.get()) << 32,
            deletion_time: raw.i_dtime.get(),
            links: raw.i_links_count.get(),
            blocks: u64::from(raw.i_blocks_lo.get()) | u64::from(raw.l_i_blocks_high.get()) << 32,
            flags: InodeFlags::from_bits_retain(raw.i_flags.get()),
            generation: raw.i_generation.get(),
            block: raw.i_block,
            attribute_block: BlockNumber(
                u64::from(raw.i_file_acl_lo.get()) | u64::from(raw.l_i_file_acl_high.get()) << 32,
            ),
            version: u64::from(raw.l_i_version.get()),
            checksum: u32::from(raw.l_i_checksum_lo.get()),
            obsolete_address: raw.i_obso_faddr.get(),
            reserved: raw.l_i_reserved.get(),
            ..Self::default()
        }
    }

    /// Reads the times, which combine both parts, and the other fields of the extra part.
    fn read_extra(&mut self, raw: &RawInode, behind: &[u8], extra: u16) {
        let covered = behind.len().min(usize::from(extra));
        let known = covered.min(usize::from(EXTRA_SIZE));
        let mut bytes = [0; EXTRA_SIZE as usize];
        bytes[..known].copy_from_slice(&behind[..known]);
        let more = RawExtra::read_from_bytes(&bytes).expect("both are 32 bytes");
        let word = |end, word: zerocopy::little_endian::U32| covers(extra, end).then(|| word.get());
        self.extra_isize = extra;
        self.changed = Time::decode(raw.i_ctime.get(), word(8, more.i_ctime_extra));
        self.modified = Time::decode(raw.i_mtime.get(), word(12, more.i_mtime_extra));
        self.accessed = Time::decode(raw.i_atime.get(), word(16, more.i_atime_extra));
        self.created = word(20, more.i_crtime)
            .map(|seconds| Time::decode(seconds, word(24, more.i_crtime_extra)));
        self.version |= u64::from(more.i_version_hi.get()) << 32;
        self.project = more.i_projid.get();
        self.checksum |= u32::from(more.i_checksum_hi.get()) << 16;
        self.unknown_extra = behind[known..covered].into();
    }

    /// Bytes of the slot that this inode was read from or made for.
    #[must_use]
    pub fn slot_size(&self) -> usize {
        if self.extra_isize == 0 && self.tail.is_empty() {
            return BASE_SIZE;
        }
        BASE_SIZE + usize::from(self.extra_isize.max(2)) + self.tail.len()
    }

    /// Writes the inode to its slot of [`slot_size`](Self::slot_size) bytes; with a seed, with its
    /// checksum.
    ///
    /// # Panics
    ///
    /// If the slot has another size.
    pub fn encode(&self, slot: &mut [u8], inode: InodeNumber, seed: Option<u32>) {
        assert_eq!(
            slot.len(),
            self.slot_size(),
            "an inode goes into a slot of its own size"
        );
        let (base, behind) = slot.split_at_mut(BASE_SIZE);
        base.copy_from_slice(self.base().as_bytes());
        if !behind.is_empty() {
            let known = usize::from(self.extra_isize.clamp(2, EXTRA_SIZE));
            let (extra, rest) = behind.split_at_mut(known);
            extra.copy_from_slice(&self.extra().as_bytes()[..known]);
            let (unknown, tail) = rest.split_at_mut(self.unknown_extra.len());
            unknown.copy_from_slice(&self.unknown_extra);
            tail.copy_from_slice(&self.tail);
        }
        if let Some(seed) = seed {
            let seed = InodeSeed::new(seed, inode, self.generation);
            set_checksum(slot, self.extra_isize, seed);
        }
    }

    fn base(&self) -> RawInode {
        let (uid, uid_high) = split(self.uid);
        let (gid, gid_high) = split(self.gid);
        let (blocks, blocks_high) = split_48(self.blocks);
        let (file_acl_low, file_acl_high) = split_48(self.attribute_block.get());
        let (size, size_high) = split_64(self.size);
        let first_word = |time: Time, end| {
            if covers(self.extra_isize, end) {
                time.encode().0
            } else {
                time.encode_narrow()
            }
        };
        RawInode {
            i_mode: self.mode.into(),
            i_uid: uid.into(),
            i_size_lo: size.into(),
            i_atime: first_word(self.accessed, 16).into(),
            i_ctime: first_word(self.changed, 8).into(),
            i_mtime: first_word(self.modified, 12).into(),
            i_dtime: self.deletion_time.into(),
            i_gid: gid.into(),
            i_links_count: self.links.into(),
            i_blocks_lo: blocks.into(),
            i_flags: self.flags.bits().into(),
            l_i_version: split_64(self.version).0.into(),
            i_block: self.block,
            i_generation: self.generation.into(),
            i_file_acl_lo: file_acl_low.into(),
            i_size_high: size_high.into(),
            i_obso_faddr: self.obsolete_address.into(),
            l_i_blocks_high: blocks_high.into(),
            l_i_file_acl_high: file_acl_high.into(),
            l_i_uid_high: uid_high.into(),
            l_i_gid_high: gid_high.into(),
            l_i_checksum_lo: split(self.checksum).0.into(),
            l_i_reserved: self.reserved.into(),
        }
    }

    fn extra(&self) -> RawExtra {
        let created = self.created.unwrap_or_default();
        let (created_word, created_extra) = if covers(self.extra_isize, 24) {
            created.encode()
        } else {
            (created.encode_narrow(), 0)
        };
        RawExtra {
            i_extra_isize: self.extra_isize.into(),
            i_checksum_hi: split(self.checksum).1.into(),
            i_ctime_extra: self.changed.encode().1.into(),
            i_mtime_extra: self.modified.encode().1.into(),
            i_atime_extra: self.accessed.encode().1.into(),
            i_crtime: created_word.into(),
            i_crtime_extra: created_extra.into(),
            i_version_hi: split_64(self.version).1.into(),
            i_projid: self.project.into(),
        }
    }

    /// The kind of file in the mode; `None` if the mode has an undefined kind.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }

    /// Replaces each time by the nearest time that this inode can store.
    pub fn clamp_times(&mut self) {
        self.accessed = self.clamp_time(self.accessed);
        self.changed = self.clamp_time(self.changed);
        self.modified = self.clamp_time(self.modified);
        let is_wide = covers(self.extra_isize, 24);
        self.created = self.created.map(|time| {
            if is_wide {
                time.clamp_wide()
            } else {
                time.clamp_narrow()
            }
        });
    }

    /// The nearest time that this inode can store as `accessed`, `changed` or `modified`.
    #[must_use]
    pub fn clamp_time(&self, time: Time) -> Time {
        if self.has_wide_times() {
            time.clamp_wide()
        } else {
            time.clamp_narrow()
        }
    }

    /// Whether the extra part covers the project.
    #[must_use]
    pub fn has_project(&self) -> bool {
        covers(self.extra_isize, 32)
    }

    /// Whether `accessed`, `changed` and `modified` have both their words.
    #[must_use]
    pub fn has_wide_times(&self) -> bool {
        covers(self.extra_isize, 16)
    }
}

/// Whether an extra part of this size covers a field that ends at its byte `end`.
fn covers(extra_isize: u16, end: u16) -> bool {
    extra_isize >= end
}

fn check_extra_isize(extra: u16, slot_size: usize) -> Result<(), Corrupt> {
    let room = slot_size.saturating_sub(BASE_SIZE);
    if extra == 0 || (extra >= 4 && extra.is_multiple_of(4) && usize::from(extra) <= room) {
        return Ok(());
    }
    Err(Corrupt::new(
        STRUCTURE,
        format!("extra size is {extra} in a slot of {slot_size} bytes"),
    ))
}

/// Offset of the tail: after the extra part, whose size field always exists.
fn tail_offset(extra: u16, slot_size: usize) -> usize {
    (BASE_SIZE + usize::from(extra.max(2))).min(slot_size)
}

fn has_high_checksum(slot: &[u8], extra: u16) -> bool {
    slot.len() >= CHECKSUM_HIGH_AT + 2 && extra >= CHECKSUM_HIGH_END
}

/// Largest slot that is copied and summed in one go, which is faster than in pieces.
const USUAL_SLOT: usize = 256;

/// The checksum of a slot, with its own fields as 0.
fn checksum(slot: &[u8], extra: u16, seed: InodeSeed) -> u32 {
    let state = seed.state();
    let has_high = has_high_checksum(slot, extra);
    let mut copy = [0; USUAL_SLOT];
    if let Some(copy) = copy.get_mut(..slot.len()) {
        copy.copy_from_slice(slot);
        copy[CHECKSUM_LOW_AT..CHECKSUM_LOW_AT + 2].fill(0);
        if has_high {
            copy[CHECKSUM_HIGH_AT..CHECKSUM_HIGH_AT + 2].fill(0);
        }
        return crc32c(state, copy);
    }
    let state = crc32c(crc32c(state, &slot[..CHECKSUM_LOW_AT]), &[0; 2]);
    if !has_high {
        return crc32c(state, &slot[CHECKSUM_LOW_AT + 2..]);
    }
    let state = crc32c(state, &slot[CHECKSUM_LOW_AT + 2..CHECKSUM_HIGH_AT]);
    crc32c(crc32c(state, &[0; 2]), &slot[CHECKSUM_HIGH_AT + 2..])
}

fn verify(slot: &[u8], extra: u16, seed: InodeSeed) -> Result<(), Corrupt> {
    let computed = checksum(slot, extra, seed);
    let low = crate::bytes::read_u16(slot, CHECKSUM_LOW_AT);
    let (stored, computed) = if has_high_checksum(slot, extra) {
        (
            join(low, crate::bytes::read_u16(slot, CHECKSUM_HIGH_AT)),
            computed,
        )
    } else {
        (u32::from(low), computed & 0xFFFF)
    };
    if stored == computed {
        return Ok(());
    }
    Err(Corrupt::checksum(STRUCTURE, stored, computed))
}

/// Fills in the checksum of a slot that was encoded without one. `extra` and the generation of the
/// seed are those of the encoded inode.
pub fn set_checksum(slot: &mut [u8], extra: u16, seed: InodeSeed) {
    let (low, high) = split(checksum(slot, extra, seed));
    crate::bytes::write_u16(slot, CHECKSUM_LOW_AT, low);
    if has_high_checksum(slot, extra) {
        crate::bytes::write_u16(slot, CHECKSUM_HIGH_AT, high);
    }
}

fn join(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn split(value: u32) -> (u16, u16) {
    let [a, b, c, d] = value.to_le_bytes();
    (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
}

fn split_64(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    )
}

/// The lower 32 and the upper 16 of 48 bits; the format has no higher bits.
fn split_48(value: u64) -> (u32, u16) {
    let (low, high) = split_64(value);
    (low, split(high).0)
}

#[cfg(test)]
mod tests;
