use super::*;
use crate::checksum::InodeSeed;
use crate::number::InodeNumber;

const BOUNDS: Bounds = Bounds {
    first: BlockNumber(1),
    end: BlockNumber(1 << 40),
};

fn extent(logical: u32, start: u64, length: u32, unwritten: bool) -> Extent {
    Extent {
        logical: LogicalBlock(logical),
        start: BlockNumber(start),
        length,
        unwritten,
    }
}

#[test]
fn lengths_tell_the_state() {
    let full = extent(7, 0x1234_5678_9ABC, 32768, false);
    assert_eq!(
        full.encode(),
        [7, 0, 0, 0, 0, 0x80, 0x34, 0x12, 0xBC, 0x9A, 0x78, 0x56]
    );
    assert_eq!(Extent::decode(&full.encode()), Ok(full));
    for length in [1, 32767] {
        let unwritten = extent(7, 9, length, true);
        assert_eq!(Extent::decode(&unwritten.encode()), Ok(unwritten));
    }
    assert!(Extent::decode(&[0; 12]).is_err(), "length zero");
    assert!(Extent::decode(&extent(u32::MAX - 1, 9, 1, false).encode()).is_ok());
    let mut beyond = extent(u32::MAX - 1, 9, 1, false).encode();
    beyond[4] = 2;
    assert!(Extent::decode(&beyond).is_err(), "reaches the last number");
}

#[test]
fn index_entries_keep_48_bits() {
    let index = Index {
        logical: LogicalBlock(5),
        child: BlockNumber(0xFFFF_0000_0001),
    };
    assert_eq!(index.encode(), [5, 0, 0, 0, 1, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
    assert_eq!(Index::decode(&index.encode()), index);
}

#[test]
fn neighbours_join_within_the_limit() {
    let left = extent(10, 100, 5, false);
    assert_eq!(
        left.joined(&extent(15, 105, 3, false)),
        Some(extent(10, 100, 8, false))
    );
    assert_eq!(
        left.joined(&extent(16, 105, 3, false)),
        None,
        "a hole between"
    );
    assert_eq!(
        left.joined(&extent(15, 106, 3, false)),
        None,
        "elsewhere on the device"
    );
    assert_eq!(
        left.joined(&extent(15, 105, 3, true)),
        None,
        "another state"
    );
    let long = extent(0, 100, 32767, false);
    assert!(long.joined(&extent(32767, 32867, 1, false)).is_some());
    let unwritten = extent(0, 100, 32767, true);
    assert_eq!(unwritten.joined(&extent(32767, 32867, 1, true)), None);
}

#[test]
fn parts_keep_the_mapping() {
    let whole = extent(10, 100, 10, true);
    assert_eq!(whole.part(12, 15), Some(extent(12, 102, 3, true)));
    assert_eq!(whole.part(0, 11), Some(extent(10, 100, 1, true)));
    assert_eq!(whole.part(20, 30), None);
}

#[test]
fn room_follows_the_block_size() {
    let rooms = [60, 1024, 2048, 4096, 65536].map(capacity);
    assert_eq!(rooms, [4, 84, 169, 340, 5460]);
}

#[test]
fn a_root_is_empty_whatever_lies_behind_its_header() {
    let mut root = empty_root();
    assert!(is_empty_root(&root));
    root[8..].fill(7);
    assert!(is_empty_root(&root));
    for at in 0..8 {
        root[at] ^= 1;
        assert!(!is_empty_root(&root), "byte {at}");
        root[at] ^= 1;
    }
}

#[test]
fn an_empty_root_is_a_leaf_with_room_for_four() {
    let root = empty_root();
    assert_eq!(root[..12], [0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    assert!(Node::parse(&root).expect("sound").is_empty());
}

#[test]
fn the_checksum_lies_behind_the_room_that_the_header_claims() {
    let mut bytes = [0; 1024];
    write_node(&mut bytes, 0, &[extent(1, 9, 1, false).encode()]);
    bytes[4] = 83;
    bytes[1020..].fill(0xEE);
    stamp_node(InodeSeed::new(1, InodeNumber(12), 5), &mut bytes);
    assert_ne!(bytes[12 + 83 * 12..][..4], [0; 4]);
    assert_eq!(bytes[1020..], [0xEE; 4]);
    assert!(verify_node(InodeSeed::new(1, InodeNumber(12), 5), &bytes).is_ok());
    assert!(verify_node(InodeSeed::new(1, InodeNumber(12), 6), &bytes).is_err());
    assert!(verify_node(InodeSeed::new(1, InodeNumber(13), 5), &bytes).is_err());
    bytes[20] ^= 1;
    assert!(verify_node(InodeSeed::new(1, InodeNumber(12), 5), &bytes).is_err());
    bytes[4] = 200;
    assert!(
        verify_node(InodeSeed::new(1, InodeNumber(12), 5), &bytes).is_err(),
        "beyond the block"
    );
}

#[test]
fn splices_move_what_follows() {
    let entry = |logical| {
        Index {
            logical: LogicalBlock(logical),
            child: BlockNumber(9),
        }
        .encode()
    };
    let mut bytes = [0; 64];
    write_node(&mut bytes, 1, &[1, 2, 3].map(entry));
    splice(&mut bytes, 1..2, &[10, 11].map(entry)).expect("there is room");
    let logicals = |bytes: &[u8]| {
        let node = Node::parse(bytes).expect("sound");
        (0..node.len())
            .map(|slot| node.logical(slot).get())
            .collect::<Vec<_>>()
    };
    assert_eq!(logicals(&bytes), [1, 10, 11, 3]);
    assert!(splice(&mut bytes, 0..0, &[entry(0)]).is_err(), "no room");
    assert!(splice(&mut bytes, 3..5, &[]).is_err(), "no such entry");
    splice(&mut bytes, 0..3, &[]).expect("removals fit");
    set_logical(&mut bytes, 0, LogicalBlock(4)).expect("it is there");
    assert_eq!(logicals(&bytes), [4]);
    assert_eq!(bytes[24..], [0; 40], "no remains of old entries");
    assert!(set_logical(&mut bytes, 1, LogicalBlock(5)).is_err());
    set_entry(&mut bytes, 0, &entry(6)).expect("it is there");
    assert_eq!(logicals(&bytes), [6]);
    assert!(set_entry(&mut bytes, 1, &entry(7)).is_err());
}

#[test]
fn refuses_headers_that_lie() {
    let mut leaf = [0; 64];
    write_node(&mut leaf, 0, &[extent(1, 9, 1, false).encode()]);
    assert!(Node::parse(&leaf).is_ok());
    for (at, value) in [(0, 0), (2, 5), (4, 5), (4, 1), (6, 6)] {
        let mut bad = leaf;
        bad[at] = value;
        assert!(Node::parse(&bad).is_err(), "byte {at} = {value}");
    }
    let mut empty_index = leaf;
    empty_index[2] = 0;
    empty_index[6] = 1;
    assert!(Node::parse(&empty_index).is_err());
}

#[test]
fn refuses_entries_that_lie() {
    let sound = [extent(1, 9, 2, false), extent(3, 20, 1, true)];
    let overlap = [extent(1, 9, 3, false), extent(3, 20, 1, true)];
    let disorder = [extent(3, 20, 1, true), extent(1, 9, 2, false)];
    let outside = [extent(1, 0, 2, false), extent(3, 20, 1, true)];
    let verdict = |extents: [Extent; 2]| {
        let mut bytes = [0; 64];
        write_node(&mut bytes, 0, &extents.map(|extent| extent.encode()));
        Node::parse(&bytes).and_then(|node| node.check_entries(&BOUNDS))
    };
    assert_eq!(verdict(sound), Ok(()));
    assert!(verdict(overlap).is_err());
    assert!(verdict(disorder).is_err());
    assert!(verdict(outside).is_err());
    let mut twins = [0; 64];
    let twin = Index {
        logical: LogicalBlock(4),
        child: BlockNumber(7),
    }
    .encode();
    write_node(&mut twins, 1, &[twin, twin]);
    let node = Node::parse(&twins).expect("a sound header");
    assert!(
        node.check_entries(&BOUNDS).is_err(),
        "index entries ascend strictly"
    );
}
