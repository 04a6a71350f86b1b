//! Checks of each kind of structure in an image: its checksum is right, and decoding and encoding
//! gives the same bytes.

use std::collections::BTreeSet;

use pext4_ondisk::casefold::Naming;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory::{self, FileType};
use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::extent::{self, Node};
use pext4_ondisk::feature::{Compat, Incompat};
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::htree::{self, Index, IndexEntry, IndexMut, RootInfo};
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::mmp::{Mmp, Use};
use pext4_ondisk::orphan_file::{self, OrphanBlock};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::xattr;
use pext4_ondisk::{GroupNumber, InodeNumber, LogicalBlock, bitmap};

use crate::image::Image;
use crate::tools;

/// The number of compared structures of each kind, so that a recipe can require some.
#[derive(Debug, Default)]
pub struct Seen {
    pub superblocks: usize,
    pub descriptor_copies: usize,
    pub bitmap_checksums: usize,
    pub inodes: usize,
    pub extent_nodes: usize,
    pub leaves: usize,
    pub index_roots: usize,
    pub index_nodes: usize,
    pub attribute_areas: usize,
    pub attribute_blocks: usize,
    pub value_inodes: usize,
    pub orphan_blocks: usize,
    pub mmp_blocks: usize,
}

/// Compares two blocks; reports the first difference instead of both blocks.
#[track_caller]
fn assert_same(made: &[u8], read: &[u8], what: impl std::fmt::Display) {
    assert_eq!(made.len(), read.len(), "{what}");
    if let Some(at) = made.iter().zip(read).position(|(made, read)| made != read) {
        let window = at / 8 * 8..(at / 8 * 8 + 16).min(made.len());
        panic!(
            "{what}: byte {at:#x}: made {:x?}, read {:x?}",
            &made[window.clone()],
            &read[window]
        );
    }
}

/// Checks everything in an image.
pub fn check(image: &Image) -> Seen {
    let mut seen = check_frame(image);
    for number in image.used_inodes() {
        let inode = slot(image, number);
        seen.inodes += 1;
        if inode.links == 0 {
            continue;
        }
        attributes(image, number, &inode, &mut seen);
        if inode.has_extents() {
            extent_nodes(image, number, &inode, &mut seen);
        }
        if inode.file_type() == Some(FileType::Directory) && !inode.has_inline_data() {
            directory_blocks(image, number, &inode, &mut seen);
        }
    }
    orphan_file(image, &mut seen);
    content(image);
    seen
}

/// Checks the structures that an image has even without files.
pub fn check_frame(image: &Image) -> Seen {
    let mut seen = Seen::default();
    superblocks(image, &mut seen);
    descriptors(image, &mut seen);
    bitmaps(image, &mut seen);
    mmp(image, &mut seen);
    journal_backup(image);
    seen
}

fn superblocks(image: &Image, seen: &mut Seen) {
    for group in image.geometry.groups() {
        let Some(bytes) = image.superblock_bytes(group) else {
            continue;
        };
        let copy = Superblock::decode(bytes).expect("sound");
        assert_eq!(u32::from(copy.block_group), group.get());
        assert_same(
            &copy.encode(),
            bytes,
            format_args!("superblock of {group:?}"),
        );
        seen.superblocks += 1;
    }
}

fn descriptors(image: &Image, seen: &mut Seen) {
    let geometry = &image.geometry;
    for group in geometry.groups() {
        let descriptor = image.descriptor(group);
        descriptor.check(geometry, group).expect("sound");
        let mut again = vec![0; usize::from(geometry.descriptor_size)];
        descriptor.encode(&mut again, geometry, group);
        assert_same(
            &again,
            image.descriptor_bytes(group),
            format_args!("{group:?}"),
        );
    }
    for index in 0..geometry.descriptor_blocks {
        for copy in geometry.descriptor_block_copies(index) {
            let slots = image
                .block(copy)
                .chunks(usize::from(geometry.descriptor_size));
            let first = index * geometry.descriptors_per_block;
            for (group, bytes) in (first..geometry.group_count).zip(slots) {
                let group = GroupNumber(group);
                let descriptor = GroupDescriptor::decode(bytes, geometry, group).expect("sound");
                assert_eq!(descriptor.inode_table, image.descriptor(group).inode_table);
                seen.descriptor_copies += 1;
            }
        }
    }
}

fn bitmaps(image: &Image, seen: &mut Seen) {
    let geometry = &image.geometry;
    for group in geometry.groups() {
        let descriptor = image.descriptor(group);
        if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let bits = image.block(descriptor.block_bitmap);
            let valid = geometry.clusters_in(group);
            assert!(bitmap::has_padding(bits, valid), "{group:?}");
            assert_eq!(
                bitmap::count_zeros(bits, 0..valid),
                descriptor.free_clusters,
                "{group:?}"
            );
            if let Some(seed) = geometry.checksum_seed() {
                let made = bitmap::block_bitmap_checksum(seed, bits, geometry.clusters_per_group);
                let stored = descriptor.block_bitmap_checksum;
                assert!(
                    GroupDescriptor::matches(stored, made, geometry),
                    "{group:?}"
                );
                seen.bitmap_checksums += 1;
            }
        }
        if !descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            let bits = image.block(descriptor.inode_bitmap);
            let valid = geometry.inodes_per_group;
            assert!(bitmap::has_padding(bits, valid), "{group:?}");
            assert_eq!(
                bitmap::count_zeros(bits, 0..valid),
                descriptor.free_inodes,
                "{group:?}"
            );
            if let Some(seed) = geometry.checksum_seed() {
                let made = bitmap::inode_bitmap_checksum(seed, bits, geometry.inodes_per_group);
                let stored = descriptor.inode_bitmap_checksum;
                assert!(
                    GroupDescriptor::matches(stored, made, geometry),
                    "{group:?}"
                );
            }
        }
    }
}

fn slot(image: &Image, number: InodeNumber) -> Inode {
    let inode = image.inode(number);
    let bytes = image.slot(number);
    let mut again = vec![0xAA; bytes.len()];
    let never_used = bytes.iter().all(|&byte| byte == 0);
    let seed = if never_used {
        None
    } else {
        image.geometry.checksum_seed()
    };
    inode.encode(&mut again, number, seed);
    assert_same(&again, bytes, format_args!("{number:?}"));
    inode
}

fn attributes(image: &Image, number: InodeNumber, inode: &Inode, seen: &mut Seen) {
    let list = xattr::decode_inode_area(&inode.tail).expect("sound");
    if !list.is_empty() {
        assert!(
            list.iter().all(xattr::Attribute::has_valid_hash_in_inode),
            "{number:?}"
        );
        let mut again = vec![0xAA; inode.tail.len()];
        xattr::encode_inode_area(&list, &mut again).expect("it fitted before");
        assert_eq!(xattr::decode_inode_area(&again).as_ref(), Ok(&list));
        value_inodes(image, &list, seen);
        seen.attribute_areas += 1;
    }
    if inode.attribute_block.get() == 0 {
        return;
    }
    let bytes = image.block(inode.attribute_block);
    let block = xattr::Block::decode(bytes).expect("sound");
    assert!(
        block
            .attributes
            .iter()
            .all(xattr::Attribute::has_valid_hash),
        "{number:?}"
    );
    let mut again = vec![0xAA; bytes.len()];
    block.encode(&mut again).expect("it fitted before");
    // e2fsprogs leaves the hash of the whole block 0, we compute it.
    assert_eq!(bytes[12..16], [0; 4]);
    again[12..16].fill(0);
    if let Some(seed) = image.geometry.checksum_seed() {
        xattr::verify_block(seed, inode.attribute_block, bytes).expect("sound");
        xattr::stamp_block(seed, inode.attribute_block, &mut again);
    }
    assert_same(&again, bytes, format_args!("attribute block of {number:?}"));
    value_inodes(image, &block.attributes, seen);
    seen.attribute_blocks += 1;
}

/// Checks the hash of a value in an inode against that inode and the attribute's entry.
fn value_inodes(image: &Image, list: &[xattr::Attribute], seen: &mut Seen) {
    for attribute in list {
        let xattr::Value::Inode {
            inode: number,
            size,
        } = attribute.value
        else {
            continue;
        };
        let inode = image.inode(number);
        assert!(inode.flags.contains(InodeFlags::EA_INODE));
        assert_eq!((inode.value_references(), inode.size), (1, u64::from(size)));
        let mut value: Vec<u8> = image
            .blocks_of(&inode)
            .into_iter()
            .flat_map(|block| image.block(block))
            .copied()
            .collect();
        value.truncate(usize::try_from(size).expect("small"));
        assert!(value.len() > 1024 && value.iter().all(|&byte| byte == tools::HUGE_VALUE[0]));
        let hash = xattr::value_hash(image.geometry.value_seed, &value);
        assert_eq!(inode.value_hash(), hash);
        assert_eq!(
            attribute.hash,
            xattr::entry_hash_of_value_inode(&attribute.name, hash)
        );
        seen.value_inodes += 1;
    }
}

fn extent_nodes(image: &Image, number: InodeNumber, inode: &Inode, seen: &mut Seen) {
    let root = Node::parse(&inode.block).expect("sound");
    root.check_entries(&image.bounds()).expect("sound");
    for (block, depth) in image.extent_nodes(inode) {
        let bytes = image.block(block);
        let node = Node::parse(bytes).expect("sound");
        assert_eq!(node.depth(), depth);
        node.check_entries(&image.bounds()).expect("sound");
        // The bytes after the entries in use are old data and not compared.
        let used = extent::HEADER_SIZE + node.len() * extent::ENTRY_SIZE;
        let mut again = vec![0; bytes.len()];
        extent::write_node(&mut again, depth, node.entries());
        assert_same(
            &again[..used],
            &bytes[..used],
            format_args!("extent node {block:?} of {number:?}"),
        );
        if let Some(seed) = image.geometry.checksum_seed() {
            extent::verify_node(InodeSeed::new(seed, number, inode.generation), bytes)
                .expect("sound");
            let mut stamped = bytes.to_vec();
            extent::stamp_node(InodeSeed::new(seed, number, inode.generation), &mut stamped);
            assert_same(
                &stamped,
                bytes,
                format_args!("extent node {block:?} of {number:?}"),
            );
        }
        seen.extent_nodes += 1;
    }
}

fn directory_blocks(image: &Image, number: InodeNumber, inode: &Inode, seen: &mut Seen) {
    let blocks: Vec<&[u8]> = image
        .blocks_of(inode)
        .into_iter()
        .map(|block| image.block(block))
        .collect();
    assert_eq!(directory::dots(blocks[0]).map(|(own, _)| own), Ok(number));
    if !inode.flags.contains(InodeFlags::INDEX) {
        for block in blocks {
            leaf(image, number, inode, block, seen);
        }
        return;
    }
    let info = RootInfo::decode(blocks[0]).expect("sound");
    let version = info.check(2).expect("known");
    let signedness = image
        .superblock
        .hash_signedness()
        .expect("mke2fs settles it");
    let hasher = Hasher {
        version,
        signedness,
        seed: image.superblock.hash_seed,
        naming: Naming::Exact,
    };
    let mut level = index_root(image, number, inode, blocks[0], seen);
    for _ in 0..info.indirect_levels {
        let node = |entry: &IndexEntry| {
            let block = blocks[usize::try_from(entry.block.get()).expect("small")];
            seen.index_nodes += 1;
            index_node(image, number, inode, block, entry.hash)
        };
        level = level.iter().flat_map(node).collect();
    }
    for (position, entry) in level.iter().enumerate() {
        let block = blocks[usize::try_from(entry.block.get()).expect("small")];
        let behind = level.get(position + 1).map_or(u32::MAX, |next| next.hash);
        for name in leaf(image, number, inode, block, seen) {
            let hash = hasher.hash(&name).expect("no key").major;
            assert!(
                (entry.hash & !1..=behind).contains(&hash),
                "{hash:#x} of {number:?}"
            );
        }
    }
}

fn index_root(
    image: &Image,
    number: InodeNumber,
    inode: &Inode,
    bytes: &[u8],
    seen: &mut Seen,
) -> Vec<IndexEntry> {
    let format = image.directory_format();
    let index = Index::root(bytes, format.has_tail).expect("sound");
    index.check(u32::MAX).expect("sound");
    let entries: Vec<IndexEntry> = index.entries().collect();
    let info = RootInfo::decode(bytes).expect("sound");
    let (own, parent) = directory::dots(bytes).expect("sound");
    let version = info.hash_version().expect("known");
    let mut again = vec![0xAA; bytes.len()];
    htree::init_root(&mut again, format, own, parent, version, entries[0].block);
    let mut edited = IndexMut::root(&mut again, format.has_tail).expect("sound");
    for (position, entry) in entries.iter().enumerate().skip(1) {
        assert!(edited.insert(position, entry.hash, entry.block));
    }
    again[0x1E] = info.indirect_levels;
    compare_index(image, number, inode, &mut again, bytes);
    seen.index_roots += 1;
    entries
}

fn index_node(
    image: &Image,
    number: InodeNumber,
    inode: &Inode,
    bytes: &[u8],
    hash: u32,
) -> Vec<IndexEntry> {
    let has_tail = image.directory_format().has_tail;
    let index = Index::node(bytes, has_tail).expect("sound");
    index.check(u32::MAX).expect("sound");
    let mut entries: Vec<IndexEntry> = index.entries().collect();
    let mut again = vec![0xAA; bytes.len()];
    htree::write_node(&mut again, has_tail, &entries);
    compare_index(image, number, inode, &mut again, bytes);
    entries[0].hash = hash;
    entries
}

fn compare_index(
    image: &Image,
    number: InodeNumber,
    inode: &Inode,
    again: &mut [u8],
    bytes: &[u8],
) {
    if let Some(seed) = image.geometry.checksum_seed() {
        htree::verify(InodeSeed::new(seed, number, inode.generation), bytes).expect("sound");
        htree::stamp(InodeSeed::new(seed, number, inode.generation), again);
    }
    assert_same(again, bytes, format_args!("index block of {number:?}"));
}

/// Checks a leaf; returns its names without `.` and `..`.
fn leaf(
    image: &Image,
    number: InodeNumber,
    inode: &Inode,
    bytes: &[u8],
    seen: &mut Seen,
) -> Vec<Vec<u8>> {
    let format = image.directory_format();
    if let Some(seed) = image.geometry.checksum_seed() {
        directory::verify_leaf(InodeSeed::new(seed, number, inode.generation), bytes)
            .expect("sound");
        let mut stamped = bytes.to_vec();
        directory::stamp_leaf(InodeSeed::new(seed, number, inode.generation), &mut stamped);
        assert_same(&stamped, bytes, format_args!("leaf of {number:?}"));
    }
    let mut names = Vec::new();
    for entry in directory::entries(bytes, format) {
        let entry = entry.expect("sound");
        if format.has_file_types {
            assert_eq!(
                entry.file_type,
                image.inode(entry.inode).file_type(),
                "{number:?}"
            );
        }
        let found = directory::find(bytes, format, entry.name).expect("sound");
        assert_eq!(found.and_then(|record| record.entry()), Some(entry));
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
    }
    seen.leaves += 1;
    names
}

fn orphan_file(image: &Image, seen: &mut Seen) {
    if !image.geometry.features.has_compat(Compat::ORPHAN_FILE) {
        return;
    }
    let number = image.superblock.orphan_file_inode;
    let inode = image.inode(number);
    let seed = image.geometry.inode_seed(number, inode.generation);
    for home in image.blocks_of(&inode) {
        let bytes = image.block(home);
        let decoded = OrphanBlock::decode(bytes, number, home, seed).expect("sound");
        let mut again = vec![0xAA; bytes.len()];
        orphan_file::encode(&mut again, &decoded.slots, home, seed);
        assert_same(&again, bytes, format_args!("orphan file block {home:?}"));
        seen.orphan_blocks += 1;
    }
}

fn mmp(image: &Image, seen: &mut Seen) {
    if !image.geometry.features.has_incompat(Incompat::MMP) {
        return;
    }
    let bytes = image.block(image.superblock.mmp_block);
    let seed = image.geometry.checksum_seed();
    let mmp = Mmp::decode(bytes, seed).expect("sound");
    assert_eq!(mmp.usage(), Use::Clean);
    let mut again = bytes.to_vec();
    again[..1024].fill(0xAA);
    mmp.encode(&mut again, seed);
    assert_same(&again, bytes, "multiple-mount block");
    seen.mmp_blocks += 1;
}

fn journal_backup(image: &Image) {
    if image.superblock.journal_backup_type != 1 {
        return;
    }
    let inode = image.inode(image.superblock.journal_inode);
    let words: Vec<u8> = image.superblock.journal_backup[..15]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    assert_eq!(words, inode.block);
    assert_eq!(u64::from(image.superblock.journal_backup[16]), inode.size);
}

/// Checks that the files exist, with their content, names and kinds.
fn content(image: &Image) {
    assert_eq!(image.find(b"tty").1.device(), (259, 3));
    assert_eq!(image.find(b"disk").1.device(), (8, 1));
    assert_eq!(image.find(b"pipe").1.file_type(), Some(FileType::Fifo));
    let (_, link) = image.find(b"link");
    if !link.has_inline_data() {
        assert_eq!(link.fast_symlink_target(), Ok(&b"short"[..]));
    }
    assert!(!image.find(b"long-link").1.is_fast_symlink());
    sparse(image);
    big(image);
}

fn sparse(image: &Image) {
    let (_, inode) = image.find(b"sparse");
    let block_size = u64::from(image.geometry.block_size);
    for piece in 0..tools::PIECES {
        let byte = piece * tools::STRIDE * 1024;
        let logical = LogicalBlock(u32::try_from(byte / block_size).expect("small"));
        let home = image.map(&inode, logical).expect("a piece is no hole");
        let start = usize::try_from(byte % block_size).expect("small");
        let label = format!("piece {piece:06}");
        assert_eq!(
            &image.block(home)[start..start + label.len()],
            label.as_bytes()
        );
        let behind = LogicalBlock(logical.get() + 1);
        if block_size < 4096 {
            assert_eq!(
                image.map(&inode, behind),
                None,
                "a hole follows {logical:?}"
            );
        }
    }
}

fn big(image: &Image) {
    let (number, inode) = image.find(b"big");
    let mut names = BTreeSet::new();
    let mut seen = Seen::default();
    let first = usize::from(inode.flags.contains(InodeFlags::INDEX));
    for block in &image.blocks_of(&inode)[first..] {
        let bytes = image.block(*block);
        if !htree::looks_like_node(bytes) {
            names.extend(leaf(image, number, &inode, bytes, &mut seen));
        }
    }
    assert_eq!(names, tools::names().into_iter().collect::<BTreeSet<_>>());
}
