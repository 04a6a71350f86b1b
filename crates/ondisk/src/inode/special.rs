//! The fields of an inode that have a particular meaning for some kinds of file: the unit of the
//! space count, short symbolic links, device numbers, and inodes with attribute values.

use super::{BLOCK_AREA, Inode, InodeFlags};
use crate::bytes::{read_u32, write_u32};
use crate::corrupt::Corrupt;
use crate::directory::FileType;
use crate::extent;
use crate::time::Time;

/// Number of bits of the space count.
const COUNT_BITS: u32 = 48;

impl Inode {
    /// Space used, in units of 512 bytes.
    #[must_use]
    pub fn sectors(&self, block_size: u32) -> u64 {
        if self.flags.contains(InodeFlags::HUGE_FILE) {
            self.blocks.saturating_mul(u64::from(block_size / 512))
        } else {
            self.blocks
        }
    }

    /// Sets the space used, in units of 512 bytes. With `huge_file`, the feature of the file
    /// system, the count has 48 bits and, above them, a coarser unit. Returns false and changes
    /// nothing if the count does not fit.
    #[must_use]
    pub fn set_sectors(&mut self, sectors: u64, block_size: u32, huge_file: bool) -> bool {
        let bits = if huge_file { COUNT_BITS } else { 32 };
        if sectors < 1 << bits {
            self.flags.remove(InodeFlags::HUGE_FILE);
            self.blocks = sectors;
            return true;
        }
        let in_blocks = sectors / u64::from(block_size / 512);
        let fits = huge_file && in_blocks < 1 << COUNT_BITS;
        if fits {
            self.flags.insert(InodeFlags::HUGE_FILE);
            self.blocks = in_blocks;
        }
        fits
    }

    /// Whether data is stored in the inode.
    #[must_use]
    pub fn has_inline_data(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// Whether the content is mapped by extents (if it is mapped at all).
    #[must_use]
    pub fn has_extents(&self) -> bool {
        self.flags.contains(InodeFlags::EXTENTS)
    }

    /// Whether this is a symbolic link whose target is in the `block` area. Old systems marked such
    /// links as mapped by extents too; what is there instead of a tree's root is the target.
    #[must_use]
    pub fn is_fast_symlink(&self) -> bool {
        let has_tree = self.has_extents() && self.block.starts_with(&extent::MAGIC.to_le_bytes());
        self.file_type() == Some(FileType::Symlink)
            && !has_tree
            && !self.has_inline_data()
            && usize::try_from(self.size).is_ok_and(|size| size < BLOCK_AREA)
    }

    /// The target of a short symbolic link; an encrypted one as it is stored, with any bytes.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if this is no such link, or its size and its first NUL byte disagree.
    pub fn fast_symlink_target(&self) -> Result<&[u8], Corrupt> {
        let ends = self.block.iter().position(|&byte| byte == 0);
        let length = match usize::try_from(self.size) {
            Ok(size) if self.flags.contains(InodeFlags::ENCRYPT) => size,
            _ => ends.unwrap_or(BLOCK_AREA),
        };
        if !self.is_fast_symlink() || usize::try_from(self.size) != Ok(length) || length == 0 {
            let problem = format!("short link of size {} with {length} bytes", self.size);
            return Err(Corrupt::new("symbolic link", problem));
        }
        Ok(&self.block[..length])
    }

    /// Makes this a short symbolic link; returns false and changes nothing if `target` is empty or
    /// does not fit together with a NUL byte.
    #[must_use]
    pub fn set_fast_symlink_target(&mut self, target: &[u8]) -> bool {
        let fits = !target.is_empty() && target.len() < BLOCK_AREA;
        if fits {
            self.block = [0; BLOCK_AREA];
            self.block[..target.len()].copy_from_slice(target);
            self.size = u64::try_from(target.len()).expect("below 60");
            self.flags.remove(InodeFlags::EXTENTS);
        }
        fits
    }

    /// Major and minor number of a special file's device.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let old = read_u32(&self.block, 0);
        if old != 0 {
            return (old >> 8 & 0xFF, old & 0xFF);
        }
        let new = read_u32(&self.block, 4);
        (new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00)
    }

    /// Sets the device of a special file: in the old encoding if 8 bits each suffice, otherwise in
    /// the new one with 12 bits of major and 20 of minor number; higher bits are lost.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.block = [0; BLOCK_AREA];
        if major < 256 && minor < 256 {
            write_u32(&mut self.block, 0, major << 8 | minor);
        } else {
            let word = minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12;
            write_u32(&mut self.block, 4, word);
        }
    }

    /// For an inode with an attribute value: the number of attributes that refer to it.
    #[must_use]
    pub fn value_references(&self) -> u64 {
        u64::from(first_word(self.changed)) << 32 | self.version & 0xFFFF_FFFF
    }

    /// For an inode with an attribute value: sets the number of attributes that refer to it.
    pub fn set_value_references(&mut self, count: u64) {
        let [a, b, c, d, e, f, g, h] = count.to_le_bytes();
        self.changed = Time::decode(u32::from_le_bytes([e, f, g, h]), None);
        self.version = self.version >> 32 << 32 | u64::from(u32::from_le_bytes([a, b, c, d]));
    }

    /// For an inode with an attribute value: the value's hash.
    #[must_use]
    pub fn value_hash(&self) -> u32 {
        first_word(self.accessed)
    }

    /// For an inode with an attribute value: sets the value's hash.
    pub fn set_value_hash(&mut self, hash: u32) {
        self.accessed = Time::decode(hash, None);
    }
}

/// The first word of a time, which some inodes use as a plain number.
fn first_word(time: Time) -> u32 {
    time.encode().0
}
