//! Corruptions of block maps.

use pext4_image::check::Kind;
use pext4_ondisk::extent;
use pext4_ondisk::extent::Extent;
use pext4_ondisk::{BlockNumber, LogicalBlock};

use super::Beside::Complains;
use super::Corruption;
use crate::bases::Base;
use crate::image::Image;

/// The node below the root of `/sparse`.
fn node_of_sparse(image: &mut Image) -> (u32, u64) {
    let sparse = image.find("/sparse");
    let root = image.inode(sparse).block;
    let node = extent::Node::parse(&root).expect("a sound root");
    let entry = node.entries()[0];
    (sparse, extent::Index::decode(&entry).child.get())
}

/// Changes the first extent of a file whose root holds it.
fn edit_first_extent(image: &mut Image, path: &str, edit: impl FnOnce(&mut Extent)) {
    let number = image.find(path);
    image.edit_inode(number, |inode| {
        let entry = inode.block[12..24].try_into().expect("12 bytes");
        let mut extent = Extent::decode(&entry).expect("a sound extent");
        edit(&mut extent);
        inode.block[12..24].copy_from_slice(&extent.encode());
    });
}

pub fn maps() -> Vec<Corruption> {
    vec![
        (Kind::ExtentHeader, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.block[0] ^= 1);
        }),
        (Kind::ExtentChecksum, Base::Plain, Complains, |image| {
            let (_, node) = node_of_sparse(image);
            image.block(node)[1020] ^= 1;
        }),
        (Kind::ExtentEntry, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            image.edit_inode(large, |inode| inode.block[16..18].fill(0));
        }),
        (Kind::ExtentOrder, Base::Plain, Complains, |image| {
            let (sparse, node) = node_of_sparse(image);
            image.edit_node(sparse, node, |bytes| {
                extent::set_logical(bytes, 5, LogicalBlock(1)).expect("it has so many");
            });
        }),
        (Kind::ExtentIndex, Base::Plain, Complains, |image| {
            let (sparse, _) = node_of_sparse(image);
            image.edit_inode(sparse, |inode| {
                extent::set_logical(&mut inode.block, 0, LogicalBlock(1)).expect("it has one");
            });
        }),
        (Kind::ExtentUnwritten, Base::Plain, Complains, |image| {
            edit_first_extent(image, "/dir", |extent| extent.unwritten = true);
        }),
        (Kind::BlockOutside, Base::Plain, Complains, |image| {
            edit_first_extent(image, "/large", |extent| {
                extent.start = BlockNumber(1 << 30)
            });
        }),
        (Kind::BlockInMetadata, Base::Plain, Complains, |image| {
            let table = image.descriptor(0).inode_table;
            edit_first_extent(image, "/dir/inner", |extent| extent.start = table);
        }),
        (Kind::BlockShared, Base::Plain, Complains, |image| {
            let large = image.find("/large");
            let first = image.blocks(large)[0];
            edit_first_extent(image, "/dir/inner", |extent| {
                extent.start = BlockNumber(first)
            });
        }),
        (
            Kind::ClusterMisaligned,
            Base::Clusters,
            Complains,
            |image| {
                edit_first_extent(image, "/dir/inner", |extent| {
                    extent.start = BlockNumber(extent.start.get() + 1);
                });
            },
        ),
    ]
}
