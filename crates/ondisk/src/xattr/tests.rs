use super::*;

fn list() -> Vec<Attribute> {
    vec![
        Attribute::new(6, b"selinux", b"some label\0"),
        Attribute::new(1, b"longer", b""),
        Attribute::new(1, b"ab", b"12345678"),
        Attribute::new(1, b"aa", b"123"),
        Attribute::new(2, b"", &[1, 0, 0, 0]),
    ]
}

fn block(attributes: Vec<Attribute>) -> Block {
    Block {
        references: 3,
        attributes,
    }
}

#[test]
fn blocks_sort_their_entries_and_keep_all() {
    let mut bytes = vec![0xFF; 1024];
    block(list()).encode(&mut bytes).expect("it fits");
    let decoded = Block::decode(&bytes).expect("sound");
    assert_eq!(decoded.references, 3);
    let names: Vec<_> = decoded
        .attributes
        .iter()
        .map(|a| (a.index, &*a.name))
        .collect();
    let expected: [(u8, &[u8]); 5] = [
        (1, b"aa"),
        (1, b"ab"),
        (1, b"longer"),
        (2, b""),
        (6, b"selinux"),
    ];
    assert_eq!(names, expected);
    assert!(decoded.attributes.iter().all(Attribute::has_valid_hash));
    let mut again = vec![0; 1024];
    decoded.encode(&mut again).expect("it fits");
    assert_eq!(again, bytes);
    let sorted = &decoded.attributes[0].value;
    assert_eq!(*sorted, Value::Inline(b"123"[..].into()));
}

#[test]
fn inode_lists_keep_their_order_and_place_values_from_the_first_entry() {
    let mut area = vec![0xFF; 200];
    encode_inode_area(&list(), &mut area).expect("it fits");
    assert_eq!(area[..4], MAGIC.to_le_bytes());
    assert_eq!(decode_inode_area(&area).expect("sound"), list());
    let first_value = usize::from(u16::from_le_bytes([area[6], area[7]]));
    assert_eq!(&area[4 + first_value..][..11], b"some label\0");
    encode_inode_area(&[], &mut area).expect("nothing fits always");
    assert_eq!(area, [0; 200]);
    assert_eq!(decode_inode_area(&area).expect("no magic, no list"), []);
}

#[test]
fn an_entry_is_laid_out_as_linux_reads_it() {
    let mut bytes = vec![0; 1024];
    block(vec![Attribute::new(1, b"abc", b"hello")])
        .encode(&mut bytes)
        .expect("it fits");
    let hash = entry_hash(b"abc", b"hello").to_le_bytes();
    assert_eq!(bytes[..12], [0, 0, 2, 0xEA, 3, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bytes[32..44], [3, 1, 0xF8, 3, 0, 0, 0, 0, 5, 0, 0, 0]);
    assert_eq!(bytes[44..48], hash);
    assert_eq!(
        bytes[12..16],
        hash,
        "one entry: the block's hash is its hash"
    );
    assert_eq!(&bytes[48..56], b"abc\0\0\0\0\0");
    assert_eq!(&bytes[1016..], b"hello\0\0\0");
}

#[test]
fn the_hash_is_the_one_of_linux() {
    assert_eq!(entry_hash(b"a", b""), 0x61);
    assert_eq!(entry_hash(b"ab", b""), (0x61 << 5) ^ 0x62);
    let with_value = entry_hash(b"a", b"\x01\x02\x03\x04\x05");
    assert_eq!(with_value, 0x0201_0467, "two words, the second padded");
    let high = Attribute {
        hash: signed_entry_hash(b"\xE9", b"v"),
        ..Attribute::new(1, b"\xE9", b"v")
    };
    assert_ne!(high.hash, entry_hash(b"\xE9", b"v"));
    assert!(high.has_valid_hash() && high.has_valid_hash_in_inode());
    let without = Attribute { hash: 0, ..high };
    assert!(!without.has_valid_hash() && without.has_valid_hash_in_inode());
    let in_inode = |hash| Attribute {
        hash,
        value: Value::Inode {
            inode: InodeNumber(12),
            size: 9000,
        },
        ..Attribute::new(1, b"\xE9", b"")
    };
    let value_hash = 0xFEED_5EED_u32;
    let signed = signed_entry_hash(b"\xE9", &value_hash.to_le_bytes());
    for hash in [entry_hash_of_value_inode(b"\xE9", value_hash), signed] {
        assert!(in_inode(hash).has_valid_hash_of_value_inode(value_hash));
    }
    for hash in [0, signed ^ 1] {
        assert!(!in_inode(hash).has_valid_hash_of_value_inode(value_hash));
    }
}

/// A list fits into exactly its size, and not into one byte less.
#[test]
fn fits_to_the_byte() {
    let one = [Attribute::new(1, b"name", b"12345678")];
    let space = 4 + 16 + 4 + 4 + 8;
    let mut area = vec![0; space];
    encode_inode_area(&one, &mut area).expect("it fits exactly");
    assert_eq!(decode_inode_area(&area).expect("sound"), one);
    let mut small = vec![7; space - 1];
    assert_eq!(encode_inode_area(&one, &mut small), Err(Full));
    assert_eq!(small, vec![7; space - 1], "unchanged");
    assert_eq!(encode_inode_area(&one, &mut [0; 3]), Err(Full));
}

#[test]
fn values_in_inodes_are_kept() {
    let value = Value::Inode {
        inode: InodeNumber(77),
        size: 100_000,
    };
    let far = Attribute {
        index: 1,
        name: b"far"[..].into(),
        value,
        hash: 5,
    };
    let mut bytes = vec![0; 1024];
    block(vec![far.clone()])
        .encode(&mut bytes)
        .expect("it fits");
    assert_eq!(Block::decode(&bytes).expect("sound").attributes, [far]);
}

#[test]
fn refuses_lists_that_lie() {
    let mut sound = vec![0; 1024];
    block(list()).encode(&mut sound).expect("it fits");
    // Magic, blocks, reference count 0; then the offset and the size of the first entry's value.
    for (at, value) in [(0, 1), (8, 2), (4, 0), (35, 4), (41, 9)] {
        let mut bad = sound.clone();
        bad[at] = value;
        assert!(Block::decode(&bad).is_err(), "byte {at} = {value}");
    }
    let mut among_entries = sound.clone();
    among_entries[34..36].copy_from_slice(&[40, 0]);
    assert!(Block::decode(&among_entries).is_err());
    let mut shared_value = sound.clone();
    let (first, second) = (34, 32 + 16 + 4 + 2);
    shared_value.copy_within(second..second + 2, first);
    assert!(
        Block::decode(&shared_value).is_err(),
        "two values in one place"
    );
    let mut endless = vec![1; 1024];
    endless[..32].copy_from_slice(&sound[..32]);
    assert!(Block::decode(&endless).is_err());
    assert!(
        decode_inode_area(&MAGIC.to_le_bytes()).is_err(),
        "no room for the end of the list"
    );
}

#[test]
fn any_byte_may_be_wrong() {
    let mut sound = vec![0; 256];
    block(list()).encode(&mut sound).expect("it fits");
    for at in 0..sound.len() {
        for value in [0, 1, 3, 0x10, 0x7F, 0x80, 0xFF] {
            let mut bad = sound.clone();
            bad[at] = value;
            if let Ok(decoded) = Block::decode(&bad) {
                let mut room = vec![0; 1024];
                decoded
                    .encode(&mut room)
                    .expect("what fitted fits in more room");
            }
        }
    }
}

#[test]
fn the_checksum_takes_the_place_into_account() {
    let mut bytes = vec![0; 1024];
    block(list()).encode(&mut bytes).expect("it fits");
    stamp_block(9, BlockNumber(100), &mut bytes);
    assert!(verify_block(9, BlockNumber(100), &bytes).is_ok());
    assert!(verify_block(9, BlockNumber(101), &bytes).is_err());
    assert!(verify_block(8, BlockNumber(100), &bytes).is_err());
    set_references(&mut bytes, 2);
    assert!(verify_block(9, BlockNumber(100), &bytes).is_err());
    assert_eq!(references(&bytes), Ok(2));
}

#[test]
fn names_split_and_join() {
    let names: [(&[u8], u8, &[u8]); 6] = [
        (b"user.x", 1, b"x"),
        (b"trusted.overlay.opaque", 4, b"overlay.opaque"),
        (b"security.capability", 6, b"capability"),
        (b"system.posix_acl_access", 2, b""),
        (b"system.posix_acl_default", 3, b""),
        (b"system.data", 7, b"data"),
    ];
    for (full, index, rest) in names {
        assert_eq!(split_name(full), Some((index, rest)));
        assert_eq!(full_name(index, rest).as_deref(), Some(full));
    }
    for bad in [&b"user."[..], b"user", b"", b"other.x", b"xuser.y"] {
        assert_eq!(split_name(bad), None);
    }
    assert_eq!(full_name(99, b"x"), None);
}

#[test]
fn only_names_that_come_apart_as_they_were_put_together_can_be_called() {
    let long = [b'x'; 255];
    for (index, rest, is_callable, is_odd) in [
        (1, &b"x"[..], true, false),
        (1, &long[..250], true, false),
        (2, b"", true, false),
        (1, b"", false, true),
        (1, &long[..251], false, true),
        (2, b"x", false, true),
        (3, b"x", false, true),
        // Hidden, or without a prefix.
        (7, b"data", false, false),
        (8, b"", false, false),
        (9, b"c", false, false),
        (0, b"btrfs.compression", false, false),
    ] {
        let name = callable_name(index, rest);
        assert_eq!(name.is_some(), is_callable, "{index}");
        assert_eq!(is_unnameable(index, rest), is_odd, "{index}");
        let again = name.as_deref().and_then(split_name);
        assert_eq!(again, name.as_ref().map(|_| (index, rest)));
    }
}

#[test]
fn a_content_without_its_gap_holds_what_its_block_does() {
    for odd in [&b""[..], b"1", b"12345", &[7; 300]] {
        let mut all = list();
        all.push(Attribute::new(1, b"odd", odd));
        let content = block(all.clone()).content(1024).expect("it fits");
        let mut bytes = vec![0xFF; 1024];
        content.put_into(&mut bytes);
        let decoded = Block::decode(&bytes).expect("sound").attributes;
        assert_eq!(content.attributes().expect("sound"), decoded);
        let again = Block {
            references: 77,
            attributes: decoded,
        };
        assert!(content.is_same(&again.content(1024).expect("it fits")));
        assert!(!content.is_same(&again.content(2048).expect("it fits")));
        all.pop();
        assert!(!content.is_same(&block(all).content(1024).expect("it fits")));
    }
}

/// Contents of all sorts: by the number of attributes, and by the length of one value.
fn contents() -> Vec<Content> {
    let lists = (1..=5).map(|count| list().into_iter().take(count).collect());
    let values = [0, 1, 4, 100, 400, 900].map(|size| vec![Attribute::new(1, b"v", &vec![7; size])]);
    let lists: Vec<Vec<Attribute>> = lists.chain(values).collect();
    let contents = lists.into_iter().map(|list| block(list).content(1024));
    contents.map(|content| content.expect("it fits")).collect()
}

#[test]
fn a_content_leaves_nothing_of_the_one_that_it_replaces() {
    let contents = contents();
    for old in &contents {
        for new in &contents {
            let (mut replaced, mut fresh) = (vec![0xFF; 1024], vec![0xFF; 1024]);
            old.put_into(&mut replaced);
            new.replace_in(&mut replaced);
            new.put_into(&mut fresh);
            assert!(replaced == fresh, "{old:?} by {new:?}");
        }
    }
}

#[test]
fn a_content_that_replaces_damage_clears_the_whole_gap() {
    for damage in [0x00, 0x40, 0xFF] {
        let content = block(list()).content(1024).expect("it fits");
        let (mut replaced, mut fresh) = (vec![damage; 1024], vec![0xFF; 1024]);
        if damage == 0x40 {
            // A sound end of the entries, but a value before it.
            replaced[BLOCK_HEADER_SIZE..][..24].fill(0);
            replaced[BLOCK_HEADER_SIZE..][..2].copy_from_slice(&[4, 1]);
            replaced[BLOCK_HEADER_SIZE + 8] = 4;
            replaced[BLOCK_HEADER_SIZE + 16..][..4].fill(b'n');
        }
        content.replace_in(&mut replaced);
        content.put_into(&mut fresh);
        assert!(replaced == fresh, "{damage:#x}");
    }
}

#[test]
fn every_byte_of_a_block_counts_but_its_users_its_checksum_and_the_gap() {
    let content = block(list()).content(1024).expect("it fits");
    let mut bytes = vec![0xFF; 1024];
    content.put_into(&mut bytes);
    assert_eq!(content.hash(), content_hash(&bytes));
    let front = content.list.front().len();
    let gap = bytes[front..].iter().take_while(|&&byte| byte == 0);
    let back = front + gap.count();
    assert!(front + 500 < back, "most of it is gap");
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 0x40;
        let is_header = matches!(at, 0..4 | 8..16);
        let counts = is_header || (BLOCK_HEADER_SIZE..front).contains(&at) || at >= back;
        assert_eq!(content.is_in(&other), !counts, "byte {at}");
    }
    assert!(!content.is_in(&bytes[..512]));
    assert!(!content.is_in(&[0; 16]));
    assert!(!content.is_in(&[]));
}

/// Found by fuzzing: its entry began with the four zero bytes that end a list.
#[test]
fn an_attribute_without_name_and_value_does_not_end_the_list() {
    let attribute = |index, name: &[u8], value| Attribute {
        index,
        name: name.into(),
        value,
        hash: 0,
    };
    let elsewhere = Value::Inode {
        inode: InodeNumber(14),
        size: 5000,
    };
    for nameless in [Value::Inline(ValueBytes::new()), elsewhere] {
        let block = block(vec![
            attribute(0, b"", nameless),
            attribute(1, b"kept", Value::Inline(b"value"[..].into())),
        ]);
        let mut bytes = vec![0; 1024];
        block.encode(&mut bytes).expect("there is room");
        let again = Block::decode(&bytes).expect("own bytes are sound");
        assert_eq!(again.attributes, block.attributes);
    }
}
