//! File content in the inode itself (`inline_data`).
//!
//! The first 60 bytes are in the `block` area, the rest is the value of the attribute `system.data`
//! in the inode's tail, which exists even if it is empty. Its length determines the reserved room:
//! at least the size of a file, exactly the size of a directory.
//!
//! A directory has no `.` and no `..` there. The first 4 bytes are its parent's number; two regions
//! of records follow, the rest of the `block` area and the attribute's value, and no record crosses
//! from one to the other. They have no checksum of their own: the inode's checksum covers them.
//! Format: the kernel's `Documentation/filesystems/ext4/inlinedata.rst`.

use std::ops::Range;

use super::{BLOCK_AREA, Inode, InodeFlags};
use crate::bytes::{read_u32, write_u32};
use crate::corrupt::Corrupt;
use crate::directory::{self, Format};
use crate::number::InodeNumber;
use crate::xattr::{
    Attribute, Full, INDEX_SYSTEM, Value, ValueBytes, decode_inode_area, encode_inode_area,
    inode_area_used,
};

/// Offset of the records of a directory in its content.
const RECORDS_AT: usize = 4;
const STRUCTURE: &str = "inline data";
const NAME: &[u8] = b"data";

impl Inode {
    /// The inline content of this inode, including the reserved bytes after its end.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the attributes cannot be decoded or the one for the content is missing.
    pub fn inline_content(&self) -> Result<Vec<u8>, Corrupt> {
        let attributes = decode_inode_area(self.area())?;
        let Some(attribute) = attributes.iter().find(|attribute| is_content(attribute)) else {
            return Err(Corrupt::new(STRUCTURE, "there is no system.data for it"));
        };
        match &attribute.value {
            Value::Inline(value) => Ok([&self.block[..], value].concat()),
            Value::Inode { .. } => Err(Corrupt::new(STRUCTURE, "lies in another inode")),
        }
    }

    /// Most bytes of content that fit into this inode with its other attributes; 0 if none.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the attributes cannot be decoded.
    pub fn inline_room(&self) -> Result<usize, Corrupt> {
        let attributes = self.with_content(&[])?;
        let left = self.area().len().checked_sub(inode_area_used(&attributes));
        Ok(left.map_or(0, |left| BLOCK_AREA + left / 4 * 4))
    }

    /// Replaces the inline content of this inode and sets its flag. The caller sets the size.
    ///
    /// # Errors
    ///
    /// [`Full`] if the content does not fit or the attributes cannot be decoded; the inode is
    /// unchanged.
    pub fn set_inline_content(&mut self, content: &[u8]) -> Result<(), Full> {
        let (head, rest) = content.split_at(content.len().min(BLOCK_AREA));
        let attributes = self.with_content(rest).map_err(|_| Full)?;
        if self.extra_isize == 0 {
            return Err(Full);
        }
        encode_inode_area(&attributes, &mut self.tail)?;
        self.block = [0; BLOCK_AREA];
        self.block[..head.len()].copy_from_slice(head);
        self.flags.remove(InodeFlags::EXTENTS);
        self.flags.insert(InodeFlags::INLINE_DATA);
        Ok(())
    }

    /// Removes the inline content of this inode and sets its `block` area to `root`.
    ///
    /// # Errors
    ///
    /// [`Corrupt`] if the attributes cannot be decoded; the inode is unchanged.
    pub fn end_inline(&mut self, root: [u8; BLOCK_AREA]) -> Result<(), Corrupt> {
        let mut attributes = decode_inode_area(self.area())?;
        attributes.retain(|attribute| !is_content(attribute));
        encode_inode_area(&attributes, &mut self.tail)
            .map_err(|Full| Corrupt::new(STRUCTURE, "fewer attributes need more room"))?;
        self.block = root;
        self.flags.remove(InodeFlags::INLINE_DATA);
        Ok(())
    }

    /// The attributes in this inode with `value` as the value of `system.data`.
    fn with_content(&self, value: &[u8]) -> Result<Vec<Attribute>, Corrupt> {
        let mut attributes = decode_inode_area(self.area())?;
        let value = Value::Inline(ValueBytes::from_slice(value));
        match attributes.iter_mut().find(|one| is_content(one)) {
            Some(attribute) => {
                attribute.value = value;
                attribute.hash = 0;
            }
            None => attributes.push(Attribute {
                index: INDEX_SYSTEM,
                name: NAME.into(),
                value,
                // Other implementations change the value in place and store no hash either.
                hash: 0,
            }),
        }
        Ok(attributes)
    }
}

fn is_content(attribute: &Attribute) -> bool {
    attribute.is_named(INDEX_SYSTEM, NAME)
}

/// The content of a new, empty directory.
#[must_use]
pub fn empty_directory(parent: InodeNumber, format: Format) -> [u8; BLOCK_AREA] {
    let mut content = [0; BLOCK_AREA];
    write_u32(&mut content, 0, parent.get());
    directory::init_empty(&mut content[RECORDS_AT..], format.inline());
    content
}

/// The parent of a directory with inline data; `block` is the inode's `block` area.
#[must_use]
pub fn parent(block: &[u8; BLOCK_AREA]) -> InodeNumber {
    InodeNumber(read_u32(block, 0))
}

/// Changes the parent of a directory with inline data.
///
/// # Panics
///
/// If the content is shorter than the `block` area.
pub fn set_parent(content: &mut [u8], parent: InodeNumber) {
    write_u32(content, 0, parent.get());
}

/// The range of a region of records in the content of a directory: region 0 is in the `block` area,
/// region 1 in the attribute.
///
/// # Errors
///
/// [`Corrupt`] if there is no such region.
pub fn region(content: &[u8], number: u32) -> Result<Range<usize>, Corrupt> {
    match number {
        0 => Ok(RECORDS_AT..BLOCK_AREA),
        1 if content.len() > BLOCK_AREA => Ok(BLOCK_AREA..content.len()),
        _ => Err(Corrupt::new(STRUCTURE, "the directory has no such part")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::casefold::Naming;
    use crate::directory::{Entry, Inserted};

    const FORMAT: Format = Format {
        has_tail: true,
        has_file_types: true,
        naming: Naming::Exact,
    };

    fn attribute(length: usize) -> Attribute {
        Attribute::new(1, b"note", &vec![7; length])
    }

    fn with_attributes(list: &[Attribute]) -> Inode {
        let mut inode = Inode::new(256, 32);
        encode_inode_area(list, &mut inode.tail).expect("there is room");
        inode
    }

    #[test]
    fn content_comes_back_and_leaves_other_attributes_alone() {
        for length in [0, 1, 59, 60, 61, 63, 64, 100] {
            let mut inode = with_attributes(&[attribute(8)]);
            let content: Vec<u8> = (1..=length).collect();
            inode.set_inline_content(&content).expect("there is room");
            assert!(inode.has_inline_data() && !inode.has_extents());
            let mut read = inode.inline_content().expect("sound");
            assert_eq!(read.len(), content.len().max(BLOCK_AREA));
            read.truncate(content.len());
            assert_eq!(read, content);
            inode.end_inline([3; BLOCK_AREA]).expect("sound");
            assert!(!inode.has_inline_data());
            assert_eq!(inode.block, [3; BLOCK_AREA]);
            assert_eq!(inode.tail, with_attributes(&[attribute(8)]).tail);
        }
    }

    #[test]
    fn the_room_is_exact() {
        for (list, room) in [(vec![], 128), (vec![attribute(8)], 100)] {
            let mut inode = with_attributes(&list);
            assert_eq!(inode.inline_room(), Ok(room));
            let before = inode.clone();
            assert_eq!(inode.set_inline_content(&vec![1; room + 1]), Err(Full));
            assert_eq!(inode, before);
            assert_eq!(inode.set_inline_content(&vec![1; room]), Ok(()));
            assert_eq!(inode.inline_room(), Ok(room), "its own content is no loss");
        }
        for inode in [Inode::new(128, 0), with_attributes(&[attribute(60)])] {
            assert_eq!(inode.inline_room(), Ok(0));
            assert_eq!(inode.clone().set_inline_content(b"x"), Err(Full));
        }
    }

    #[test]
    fn content_without_its_attribute_is_corrupt() {
        let mut inode = with_attributes(&[attribute(8)]);
        inode.flags.insert(InodeFlags::INLINE_DATA);
        assert!(inode.inline_content().is_err());
        inode.tail[4] = 250;
        assert!(inode.inline_room().is_err());
        assert!(inode.end_inline([0; BLOCK_AREA]).is_err());
    }

    #[test]
    fn a_new_directory_has_a_parent_and_free_space() {
        let mut content = empty_directory(InodeNumber(77), FORMAT);
        assert_eq!(parent(&content), InodeNumber(77));
        let records = region(&content, 0).expect("it is always there");
        assert!(region(&content, 1).is_err());
        let entry = Entry {
            inode: InodeNumber(12),
            file_type: None,
            name: &[b'n'; 48],
        };
        let inserted = directory::insert(&mut content[records.clone()], FORMAT.inline(), &entry);
        assert_eq!(inserted, Ok(Inserted::At(0)));
        let found = directory::find(&content[records], FORMAT.inline(), entry.name);
        assert!(found.expect("sound").is_some());
        set_parent(&mut content, InodeNumber(5));
        assert_eq!(parent(&content), InodeNumber(5));
    }
}
