//! Larger extra parts, for inodes from times when they had fewer fields.

use super::{EXTRA_SIZE, Inode, check_extra_isize, covers, tail_offset, zeroes};
use crate::time::Time;
use crate::xattr::{decode_inode_area, encode_inode_area};

impl Inode {
    /// Enlarges the extra part to `wanted` bytes, if the attributes in the inode leave room for
    /// that, so that times, for example, have both their words. Fields that it did not cover are 0,
    /// so the time of creation is the start of 1970. An inode whose extra part is as large, that
    /// has content in its tail, or whose attributes cannot be decoded is left as it is.
    pub fn grow_extra(&mut self, wanted: u16) {
        if self.extra_isize < wanted && !self.has_inline_data() {
            self.move_tail(wanted);
        }
    }

    fn move_tail(&mut self, wanted: u16) {
        let slot_size = self.slot_size();
        if check_extra_isize(wanted, slot_size).is_err() {
            return;
        }
        let Ok(attributes) = decode_inode_area(self.area()) else {
            return;
        };
        let mut tail = zeroes(slot_size - tail_offset(wanted, slot_size));
        if encode_inode_area(&attributes, &mut tail).is_err() {
            return;
        }
        let mut unknown = zeroes(usize::from(wanted.saturating_sub(EXTRA_SIZE)));
        unknown[..self.unknown_extra.len()].copy_from_slice(&self.unknown_extra);
        self.unknown_extra = unknown;
        self.tail = tail;
        self.extra_isize = wanted;
        if self.created.is_none() && covers(wanted, 20) {
            self.created = Some(Time::default());
        }
    }
}
