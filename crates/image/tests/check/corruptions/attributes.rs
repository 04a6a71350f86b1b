//! Corruptions of extended attributes and of inline data.

use pext4_image::check::Kind;
use pext4_ondisk::BlockNumber;
use pext4_ondisk::acl;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::xattr::{self, Value};

use super::Beside::{Complains, Silent};
use super::{Corruption, NOTE};
use crate::bases::Base;
use crate::image::Image;

/// The attribute block of `/large`.
fn attribute_block(image: &mut Image) -> u64 {
    let large = image.find("/large");
    image.inode(large).attribute_block.get()
}

fn edit_attributes(image: &mut Image, edit: impl FnOnce(&mut [u8])) {
    let (block, seed) = (attribute_block(image), image.seed().expect("it has sums"));
    let bytes = image.block(block);
    edit(bytes);
    xattr::stamp_block(seed, BlockNumber(block), bytes);
}

/// Adds attributes to the block of `/large`.
fn add_to_block(image: &mut Image, attributes: &[xattr::Attribute]) {
    edit_attributes(image, |bytes| {
        let mut block = xattr::Block::decode(bytes).expect("sound");
        block.attributes.extend_from_slice(attributes);
        block.encode(bytes).expect("it fits");
    });
}

/// The inode that holds the value of the long attribute of `/small`.
fn value_inode(image: &mut Image) -> u32 {
    let count = image.superblock().inodes_count;
    (11..count)
        .find(|&number| image.inode(number).flags.contains(InodeFlags::EA_INODE))
        .expect("debugfs made one")
}

pub fn attributes() -> Vec<Corruption> {
    vec![
        (Kind::XattrHeader, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| bytes[8] = 2);
        }),
        (Kind::XattrChecksum, Base::Plain, Complains, |image| {
            let block = attribute_block(image);
            image.block(block)[16] ^= 1;
        }),
        (Kind::XattrEntry, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| bytes[34..36].fill(0xFF));
        }),
        (Kind::XattrHash, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| bytes[1000] ^= 1);
        }),
        (Kind::XattrHash, Base::Plain, Complains, |image| {
            // Only attributes in an inode may have none.
            edit_attributes(image, |bytes| bytes[44..48].fill(0));
        }),
        (Kind::XattrValueInode, Base::Values, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| {
                let mut list = xattr::decode_inode_area(&inode.tail).expect("sound");
                let by_inode =
                    |one: &&mut xattr::Attribute| matches!(one.value, Value::Inode { .. });
                list.iter_mut()
                    .find(by_inode)
                    .expect("debugfs made one")
                    .hash = 0;
                xattr::encode_inode_area(&list, &mut inode.tail).expect("it fitted before");
            });
        }),
        (
            Kind::XattrDuplicate,
            Base::Plain,
            Silent("it does not compare names of attributes"),
            |image| {
                let twice = xattr::Attribute::new(1, b"twice", b"value");
                add_to_block(image, &[twice.clone(), twice]);
            },
        ),
        (Kind::XattrHidden, Base::Plain, Silent(NOTE), |image| {
            image.debugfs(&["ea_set /large user.twice 1"]);
            let large = image.find("/large");
            let own = xattr::decode_inode_area(&image.inode(large).tail).expect("sound");
            assert!(
                own.iter().any(|one| one.is_named(1, b"twice")),
                "there is room"
            );
            add_to_block(image, &[xattr::Attribute::new(1, b"twice", b"2")]);
        }),
        (Kind::XattrList, Base::Plain, Silent(NOTE), |image| {
            // A list of the version 7.
            let (index, name) = xattr::split_name(acl::ACCESS).expect("it has a number");
            let value = [7, 0, 0, 0, 1, 0, 6, 0, 4, 0, 4, 0, 32, 0, 0, 0];
            add_to_block(image, &[xattr::Attribute::new(index, name, &value)]);
        }),
        (Kind::XattrName, Base::Plain, Silent(NOTE), |image| {
            add_to_block(image, &[xattr::Attribute::new(1, b"", b"value")]);
        }),
        (Kind::XattrName, Base::Plain, Silent(NOTE), |image| {
            add_to_block(image, &[xattr::Attribute::new(2, b"goes on", b"value")]);
        }),
        (Kind::XattrReferences, Base::Plain, Complains, |image| {
            edit_attributes(image, |bytes| xattr::set_references(bytes, 2));
        }),
        (Kind::XattrValueInode, Base::Values, Complains, |image| {
            let value = value_inode(image);
            image.edit_inode(value, |inode| inode.flags.remove(InodeFlags::EA_INODE));
        }),
        (
            Kind::ValueInode,
            Base::Values,
            Silent("it reads no attribute's value"),
            |image| {
                let value = value_inode(image);
                let block = image.blocks(value)[0];
                image.block(block)[0] ^= 1;
            },
        ),
        (Kind::ValueInode, Base::Values, Complains, |image| {
            let value = value_inode(image);
            image.edit_inode(value, |inode| inode.links = 2);
        }),
        (Kind::ValueReferences, Base::Values, Complains, |image| {
            let value = value_inode(image);
            image.edit_inode(value, |inode| inode.set_value_references(5));
        }),
        (Kind::InodeUnattached, Base::Values, Complains, |image| {
            // A value that nobody has, as it says itself; `/large` has none in an inode.
            let value = value_inode(image);
            let small = image.find("/small");
            image.edit_inode(small, |inode| {
                assert_eq!(inode.attribute_block, BlockNumber(0));
                inode.tail.fill(0);
                assert!(inode.set_sectors(2, 1024, true), "its content, a block");
            });
            image.edit_inode(value, |inode| inode.set_value_references(0));
        }),
        (Kind::InodeBlocks, Base::Values, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| {
                let sectors = inode.sectors(1024);
                assert!(sectors >= 2, "the block of a value is on its account");
                assert!(inode.set_sectors(sectors - 2, 1024, true));
            });
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            let directory = image.find("/dir");
            image.edit_inode(directory, |inode| {
                assert!(inode.has_inline_data());
                inode.size += 4;
            });
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.tail.fill(0));
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            let link = image.find("/middling");
            image.edit_inode(link, |inode| {
                assert!(inode.has_inline_data());
                inode.size -= 1;
            });
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            let small = image.find("/small");
            image.edit_inode(small, |inode| {
                let name = inode.tail.windows(4).position(|bytes| bytes == b"data");
                let entry = name.expect("its attribute") - 16;
                let behind = u16::try_from(inode.tail.len() - 4 + 1).expect("a small inode");
                inode.tail[entry + 2..entry + 4].copy_from_slice(&behind.to_le_bytes());
                // All that is left is in the block map's place.
                inode.tail[entry + 8..entry + 12].fill(0);
                inode.size = 60;
            });
        }),
        (Kind::InlineData, Base::Inline, Complains, |image| {
            // An entry without a name, made of the zeroes that end the list and a place.
            let small = image.find("/small");
            image.edit_inode(small, |inode| {
                let name = inode.tail.windows(4).position(|bytes| bytes == b"data");
                let end = name.expect("its attribute") + 4;
                assert_eq!(inode.tail[end..end + 4], [0; 4]);
                inode.tail[end + 3] = 0x5A;
            });
        }),
        (Kind::InodeFlags, Base::Inline, Complains, |image| {
            let directory = image.find("/dir");
            image.edit_inode(directory, |inode| inode.flags |= InodeFlags::INDEX);
        }),
        (Kind::InodeSize, Base::Inline, Complains, |image| {
            // More than a block map could have places for; what lies in the inode ends long before.
            let small = image.find("/small");
            image.edit_inode(small, |inode| inode.size = (1 << 34) + (1 << 30));
        }),
    ]
}
