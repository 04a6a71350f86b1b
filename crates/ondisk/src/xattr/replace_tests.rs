//! Replacing a value without decoding gives what decoding, changing and encoding gives, and leaves
//! alone what it would not understand.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::list::{ENTRY_SIZE, TERMINATOR_SIZE};
use super::*;

const SIZE: usize = 1024;

/// A block with these attributes, and the same without its gap.
fn encoded(attributes: &[Attribute]) -> (Vec<u8>, Content) {
    let block = Block {
        references: 7,
        attributes: attributes.to_vec(),
    };
    let content = block.content(SIZE).expect("few enough");
    let mut bytes = vec![0; SIZE];
    content.put_into(&mut bytes);
    (bytes, content)
}

/// What decoding, changing and encoding gives.
fn by_decoding(bytes: &[u8], new: &Attribute) -> Option<Content> {
    let mut block = Block::decode(bytes).expect("sound");
    let is_named = |old: &&mut Attribute| old.is_named(new.index, &new.name);
    *block.attributes.iter_mut().find(is_named)? = new.clone();
    block.references = 1;
    Some(block.content(SIZE).expect("it still fits"))
}

fn three() -> Vec<Attribute> {
    vec![
        Attribute::new(1, b"abc", b"first"),
        Attribute::new(1, b"name", b"second value"),
        Attribute::new(6, b"selinux", b"label\0"),
    ]
}

proptest! {
    #[test]
    fn gives_what_decoding_gives(
        list in btree_map((1..8u8, vec(1..=255u8, 0..9)), vec(any::<u8>(), 1..30), 1..6),
        which in any::<prop::sample::Index>(),
        value in vec(any::<u8>(), 0..30),
    ) {
        let attribute = |((index, name), value): (&(u8, Vec<u8>), &Vec<u8>)| Attribute::new(*index, name, value);
        let attributes: Vec<_> = list.iter().map(attribute).collect();
        let (bytes, content) = encoded(&attributes);
        let old = &attributes[which.index(attributes.len())];
        let new = Attribute::new(old.index, &old.name, &value);
        let Value::Inline(before) = &old.value else { unreachable!() };
        let expected = match by_decoding(&bytes, &new).expect("it is there") {
            _ if **before == *value => Some(Replaced::Same),
            content if value.len().div_ceil(4) == before.len().div_ceil(4) => Some(Replaced::By(content)),
            _ => None,
        };
        prop_assert_eq!(replace_value(&bytes, &new), expected.clone());
        prop_assert_eq!(content.replace_value(&new), expected);
    }
}

#[test]
fn another_name_is_not_there() {
    let (bytes, content) = encoded(&three());
    for (index, name) in [(2, b"abc"), (1, b"abd")] {
        let new = Attribute::new(index, name, b"fifth");
        assert_eq!(replace_value(&bytes, &new), None);
        assert_eq!(content.replace_value(&new), None);
    }
}

#[test]
fn a_list_that_is_not_as_encoded_here_is_left_to_decoding() {
    let new = Attribute::new(1, b"name", b"second VALUE");
    let is_replaced = |bytes: &[u8]| replace_value(bytes, &new).is_some();
    let (sound, content) = encoded(&three());
    assert!(is_replaced(&sound));
    let changed = |at: usize, to: u8| {
        let mut bytes = sound.clone();
        assert_ne!(bytes[at], to);
        bytes[at] = to;
        bytes
    };
    let entry = BLOCK_HEADER_SIZE;
    let front = content.list.front().len();
    for (what, bytes) in [
        ("its magic", changed(3, 0)),
        ("a name's padding", changed(entry + ENTRY_SIZE + 3, 1)),
        ("a value's place", changed(entry + 2, 0xF4)),
        ("a value's padding", changed(SIZE - 1, 1)),
        ("a value in an inode", changed(entry + 4, 12)),
        ("a NUL in a name", changed(entry + ENTRY_SIZE, 0)),
        ("the order", changed(entry + 1, 7)),
        ("no end", changed(front - TERMINATOR_SIZE, 1)),
    ] {
        assert!(!is_replaced(&bytes), "{what}");
    }
    for length in [0, 31, 32, front - 1, SIZE - 4] {
        assert!(!is_replaced(&sound[..length]), "{length} bytes");
    }
}

#[test]
fn only_values_beside_their_entries_replace_others() {
    let (bytes, _) = encoded(&three());
    let elsewhere = Attribute {
        value: Value::Inode {
            inode: InodeNumber(12),
            size: 12,
        },
        ..Attribute::new(1, b"name", b"")
    };
    assert_eq!(replace_value(&bytes, &elsewhere), None);
}
