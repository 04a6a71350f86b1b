//! Decodes random bytes as extent nodes, attributes and superblocks: an error or a value, never a
//! panic, and an accepted value survives encoding.

use pext4_ondisk::acl;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::extent::{self, Bounds, Extent, Index, Node};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::xattr::{self, Attribute, Block};
use pext4_ondisk::{BlockNumber, InodeNumber, LogicalBlock};
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds {
    first: BlockNumber(1),
    end: BlockNumber(1 << 40),
};

/// Random bytes, often small, so that counts and lengths are often possible.
fn bytes(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(
        prop_oneof![3 => Just(0u8), 2 => 0u8..40, 1 => any::<u8>()],
        length,
    )
}

fn attributes() -> impl Strategy<Value = Vec<Attribute>> {
    let name = proptest::collection::vec(1u8.., 1..30);
    let value = proptest::collection::vec(any::<u8>(), 0..90);
    proptest::collection::btree_map((1u8..9, name), value, 0..12).prop_map(|map| {
        map.iter()
            .map(|((index, name), value)| Attribute::new(*index, name, value))
            .collect()
    })
}

proptest! {
    #[test]
    fn access_lists(version in 1u8..3, rest in bytes(0..64)) {
        let list = [&[version, 0, 0, 0], &rest[..]].concat();
        if let Ok(entries) = acl::decode(&list) {
            prop_assert_eq!(acl::encode(&entries), list.as_slice());
        }
        if let Ok(entries) = acl::decode_call(&list) {
            // The ids of entries that name nobody are not kept, so only the second round trip is
            // exact.
            let again = acl::encode_call(&entries);
            prop_assert_eq!(again.len(), list.len());
            prop_assert_eq!(acl::decode_call(&again), Ok(entries));
        }
    }

    #[test]
    fn extent_nodes(mut node in bytes(0..200), max_is_right in any::<bool>(), from in 0usize..20) {
        if node.len() >= 12 && max_is_right {
            node[..2].copy_from_slice(&extent::MAGIC.to_le_bytes());
            let max = u8::try_from(extent::capacity(node.len())).expect("short");
            node[3] = 0;
            let depth = node[6] % 2;
            node[4..8].copy_from_slice(&[max, 0, depth, 0]);
        }
        if let Ok(parsed) = Node::parse(&node) {
            let sound = parsed.check_entries(&BOUNDS).is_ok();
            for slot in 0..parsed.len() {
                let (extent, index) = (parsed.extent(slot, &BOUNDS), parsed.index(slot, &BOUNDS));
                let possible = if parsed.depth() == 0 { extent.is_ok() } else { index.is_ok() };
                prop_assert!(possible || !sound);
            }
            let _ = parsed.count_up_to(LogicalBlock(7));
        }
        let _ = extent::verify_node(InodeSeed::new(1, InodeNumber(12), 1), &node);
        extent::stamp_node(InodeSeed::new(1, InodeNumber(12), 1), &mut node);
        let _ = extent::set_logical(&mut node, from, LogicalBlock(1));
        let _ = extent::splice(&mut node, from..from + 2, &[[0; 12]; 3]);
    }

    #[test]
    fn extent_entries(entry in any::<[u8; 12]>()) {
        if let Ok(extent) = Extent::decode(&entry) {
            prop_assert_eq!(extent.encode(), entry);
        }
        let index = Index::decode(&entry);
        prop_assert_eq!(&index.encode()[..10], &entry[..10]);
    }

    #[test]
    fn attribute_lists(mut area in bytes(0..300)) {
        if area.len() >= 12 {
            area[..4].copy_from_slice(&xattr::MAGIC.to_le_bytes());
        }
        let _ = xattr::decode_inode_area(&area);
        if area.len() >= 12 {
            area[8..12].copy_from_slice(&1u32.to_le_bytes());
        }
        let _ = Block::decode(&area);
        let _ = xattr::verify_block(1, BlockNumber(1), &area);
    }

    #[test]
    fn attributes_come_back(list in attributes(), size in 10usize..300) {
        let mut area = vec![0xAA; size * 4];
        if xattr::encode_inode_area(&list, &mut area).is_ok() {
            prop_assert_eq!(xattr::decode_inode_area(&area), Ok(list.clone()));
        }
        let mut bytes = vec![0xAA; 4096];
        let block = Block { references: 3, attributes: list };
        prop_assert_eq!(block.encode(&mut bytes), Ok(()));
        let mut again = Block::decode(&bytes).expect("just made");
        again.attributes.sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
        prop_assert_eq!(again, block);
    }

    #[test]
    fn superblocks(bytes in proptest::collection::vec(any::<u8>(), 1024), magic in any::<bool>()) {
        let mut array: [u8; 1024] = bytes.try_into().expect("sized so");
        if magic {
            array[0x38..0x3A].copy_from_slice(&0xEF53u16.to_le_bytes());
        }
        let _ = Superblock::decode(&array);
        let unverified = Superblock::decode_unverified(&array);
        prop_assert_eq!(unverified.is_ok(), array[0x38..0x3A] == [0x53, 0xEF]);
        if let Ok(superblock) = unverified {
            let _ = (superblock.label().len(), superblock.hash_version());
        }
    }
}
