//! Corruptions of bitmaps and counts.

use pext4_image::check::Kind;
use pext4_ondisk::bitmap;
use pext4_ondisk::group_descriptor::GroupFlags;

use super::Beside::Complains;
use super::Corruption;
use crate::bases::Base;
use crate::image::Image;

/// Changes bits of a group's block bitmap and updates the checksums.
fn edit_block_bits(image: &mut Image, group: u32, edit: impl FnOnce(&mut [u8])) {
    let block = image.descriptor(group).block_bitmap.get();
    edit(image.block(block));
    image.stamp_bitmaps(group);
}

fn edit_inode_bits(image: &mut Image, group: u32, edit: impl FnOnce(&mut [u8])) {
    let block = image.descriptor(group).inode_bitmap.get();
    edit(image.block(block));
    image.stamp_bitmaps(group);
}

pub fn summaries() -> Vec<Corruption> {
    vec![
        (Kind::BlockBitmapChecksum, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.block_bitmap_checksum ^= 1);
        }),
        (Kind::InodeBitmapChecksum, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.inode_bitmap_checksum ^= 1);
        }),
        (Kind::BlockMarkedFree, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            let first = u32::try_from(image.blocks(large)[0]).expect("small");
            edit_block_bits(image, (first - 1) / 8192, |bits| {
                bitmap::clear(bits, (first - 1) % 8192);
            });
        }),
        (Kind::BlockMarkedUsed, Base::Plain, Complains, |image| {
            edit_block_bits(image, 0, |bits| {
                let free = bitmap::next_zero(bits, 0, 8192).expect("not full");
                bitmap::set(bits, free);
            });
        }),
        (Kind::InodeMarkedFree, Base::Plain, Complains, |image| {
            let small = image.find("/small");
            edit_inode_bits(image, 0, |bits| {
                bitmap::clear(bits, small - 1);
            });
        }),
        (Kind::InodeMarkedUsed, Base::Plain, Complains, |image| {
            edit_inode_bits(image, 0, |bits| {
                let free = bitmap::next_zero(bits, 0, 1024).expect("not full");
                bitmap::set(bits, free);
            });
        }),
        (Kind::BitmapPadding, Base::Plain, Complains, |image| {
            edit_inode_bits(image, 0, |bits| {
                bitmap::clear(bits, 8000);
            });
        }),
        (Kind::UninitGroupUsed, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.flags |= GroupFlags::BLOCK_UNINIT);
        }),
        (Kind::TableUnused, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| {
                descriptor.unused_inodes = descriptor.free_inodes + 20;
                descriptor.free_inodes += 20;
            });
        }),
        (Kind::GroupFreeBlocks, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.free_clusters += 1);
        }),
        (Kind::GroupFreeInodes, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.free_inodes += 1);
        }),
        (Kind::GroupDirectories, Base::Plain, Complains, |image| {
            image.edit_descriptor(0, |descriptor| descriptor.used_directories += 1);
        }),
        (Kind::FreeBlocksTotal, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.free_blocks -= 1)
        }),
        (Kind::FreeInodesTotal, Base::Plain, Complains, |image| {
            image.edit_superblock(|superblock| superblock.free_inodes -= 1)
        }),
    ]
}
