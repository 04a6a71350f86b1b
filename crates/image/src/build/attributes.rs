//! Sets of extended attributes. Files with equal attributes share a set and, if the set needs a
//! block, share the block.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use hashbrown::HashTable;
use pext4_ondisk::acl::{self, Acl};
use pext4_ondisk::shown::Shown;
use pext4_ondisk::xattr::{self, Attribute, Value};
use pext4_tar::checked;

/// The full name and the value of an attribute, as the host returns them.
pub(super) type RawAttribute = (Vec<u8>, Vec<u8>);

/// Upper bound of the bytes of names and values of a file: what an inode and a block of 4 KiB hold,
/// also where blocks are larger.
pub(super) const MAX_TOTAL_BYTES: usize = 4096 + 4096;

/// All sets. Set 0 is the empty one. Every file may have a set of its own, so they are kept as
/// their canonical bytes in one arena.
pub(super) struct Sets {
    bytes: Vec<u8>,
    /// The range of each set in `bytes`.
    sets: Vec<Range<usize>>,
    /// The numbers of the sets, by the hashes of their bytes.
    index: HashTable<u32>,
    hasher: RandomState,
}

/// How a set is split between the inode and a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SplitSet {
    /// The encoded attributes behind the fields of the inode.
    pub tail: Vec<u8>,
    /// The attributes in the block; empty without a block.
    pub block: Vec<Attribute>,
}

impl Sets {
    pub fn new() -> Self {
        Self {
            bytes: Vec::new(),
            sets: std::iter::once(0..0).collect(),
            index: HashTable::new(),
            hasher: RandomState::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// The unique encoding of a set.
    pub fn canonical(&self, number: u32) -> &[u8] {
        &self.bytes[self.sets[number as usize].clone()]
    }

    /// The attributes of a set.
    pub fn get(&self, number: u32) -> Vec<Attribute> {
        let mut rest = self.canonical(number);
        std::iter::from_fn(|| decode_next(&mut rest)).collect()
    }

    /// Replaces the attributes of a set. Call it only when no more sets are added: it clears the
    /// index.
    pub fn change(&mut self, number: u32, attributes: &[Attribute]) {
        self.drop_index();
        let changed = canonical(attributes);
        if changed != self.canonical(number) {
            self.sets[number as usize] = self.append(&changed);
        }
    }

    /// Frees the index. Call it when no more sets are added.
    pub fn drop_index(&mut self) {
        self.index = HashTable::new();
    }

    /// Returns the number of the set with these attributes, and adds it if necessary.
    pub fn intern(&mut self, mut attributes: Vec<Attribute>) -> u32 {
        if attributes.is_empty() {
            return 0;
        }
        attributes.sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
        let key = canonical(&attributes);
        let hash = self.hasher.hash_one(&key);
        let is_it = |&number: &u32| self.canonical(number) == key;
        if let Some(&number) = self.index.find(hash, is_it) {
            return number;
        }
        let number = u32::try_from(self.sets.len()).expect("fewer sets than files");
        let range = self.append(&key);
        self.sets.push(range);
        let mut index = std::mem::take(&mut self.index);
        index.insert_unique(hash, number, |&other| {
            self.hasher.hash_one(self.canonical(other))
        });
        self.index = index;
        number
    }

    fn append(&mut self, canonical: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(canonical);
        start..self.bytes.len()
    }
}

/// The first attribute of a canonical encoding, which loses it; `None` at the end.
fn decode_next(rest: &mut &[u8]) -> Option<Attribute> {
    let (&index, after) = rest.split_first()?;
    *rest = after;
    let mut text = || {
        let (length, after) = rest.split_first_chunk()?;
        let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        *rest = after;
        Some(text)
    };
    Some(Attribute::new(index, text()?, text()?))
}

/// A unique encoding of a set.
fn canonical(attributes: &[Attribute]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for attribute in attributes {
        let value = value_of(attribute);
        bytes.push(attribute.index);
        bytes.extend(
            u32::try_from(attribute.name.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        bytes.extend_from_slice(&attribute.name);
        bytes.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(value);
    }
    bytes
}

pub(super) fn value_of(attribute: &Attribute) -> &[u8] {
    match &attribute.value {
        Value::Inline(value) => value,
        Value::Inode { .. } => &[],
    }
}

/// Converts an attribute of the host to its stored form. The error says why it cannot be stored.
pub(super) fn to_stored(name: &[u8], value: &[u8]) -> Result<Attribute, String> {
    if acl::is_list(name) {
        let list = acl::call_to_stored(value);
        let list = list.map_err(|_| format!("its {} is no access list", Shown(name)))?;
        return of_stored(name, &list);
    }
    of_stored(name, value)
}

/// The attribute of a full name and a value in the stored form. The error says why it cannot be
/// stored.
pub(super) fn of_stored(name: &[u8], value: &[u8]) -> Result<Attribute, String> {
    let (index, rest) = checked::split_attribute_name(name)
        .map_err(|problem| format!("{problem}; --exclude-xattr '{}' leaves it out", Shown(name)))?;
    Ok(Attribute::new(index, rest, value))
}

/// Refuses attributes that no image can hold, whatever its options. The caller checks before it
/// keeps them, so that their memory is bounded.
pub(super) fn check_total_size(attributes: &[Attribute]) -> Result<(), String> {
    let sizes = attributes.iter().map(|attribute| {
        let name = xattr::full_name(attribute.index, &attribute.name).unwrap_or_default();
        (name, value_of(attribute).len())
    });
    checked::check_total_size(sizes, MAX_TOTAL_BYTES)
        .map_err(|problem| format!("{problem}; {}", problem.way_out()))
}

/// Adapts the access control list in `attributes` to a mode.
pub(super) fn apply_mode(attributes: &mut [Attribute], mode: u16) {
    let (index, name) = xattr::split_name(acl::ACCESS).expect("lists have numbers of their own");
    let lists = attributes
        .iter_mut()
        .filter(|attribute| attribute.is_named(index, name));
    for attribute in lists {
        if let Ok(mut entries) = acl::decode(value_of(attribute)) {
            acl::apply_mode(&mut entries, mode);
            *attribute = Attribute::new(index, name, &acl::encode(&entries));
        }
    }
}

/// Whether an attribute is an access list that says no more than the mode. Linux stores none.
pub(super) fn is_list_of_mode(attribute: &Attribute, mode: u16) -> bool {
    let (index, name) = xattr::split_name(acl::ACCESS).expect("lists have numbers of their own");
    let says_mode = |list: Acl| list.is_mode_only() && list.mode_bits() == mode & 0o777;
    attribute.is_named(index, name) && Acl::from_disk(value_of(attribute)).is_some_and(says_mode)
}

/// Splits a set: puts what fits into the inode's tail, and the rest into a block. The error names
/// the first attribute that does not fit.
pub(super) fn split(
    set: &[Attribute],
    tail_size: usize,
    block_size: usize,
) -> Result<SplitSet, String> {
    let mut split = SplitSet {
        tail: vec![0; tail_size],
        block: Vec::new(),
    };
    let mut inside: Vec<Attribute> = Vec::new();
    for attribute in set {
        inside.push(attribute.clone());
        if xattr::encode_inode_area(&inside, &mut split.tail).is_err() {
            split.block.extend(inside.pop());
            let block = xattr::Block {
                references: 1,
                attributes: split.block.clone(),
            };
            if block.encode(&mut vec![0; block_size]).is_err() {
                let name = xattr::full_name(attribute.index, &attribute.name).unwrap_or_default();
                return Err(format!(
                    "its attribute {} of {} bytes finds no room: all have {tail_size} bytes in the \
                     inode and a block of {block_size}",
                    String::from_utf8_lossy(&name),
                    value_of(attribute).len()
                ));
            }
        }
    }
    Ok(split)
}

#[cfg(test)]
mod tests {
    use super::{Sets, check_total_size, split, to_stored};

    #[test]
    fn equal_sets_are_shared() {
        let mut sets = Sets::new();
        let one = to_stored(b"user.a", b"1").unwrap();
        let two = to_stored(b"security.b", b"2").unwrap();
        assert_eq!(sets.intern(Vec::new()), 0);
        let number = sets.intern(vec![one.clone(), two.clone()]);
        assert_eq!(sets.intern(vec![two.clone(), one.clone()]), number);
        assert_ne!(sets.intern(vec![one.clone()]), number);
        assert_eq!(sets.len(), 3);
        assert_eq!(sets.get(number), [one.clone(), two.clone()]);
        sets.change(number, std::slice::from_ref(&two));
        assert_eq!(sets.get(number), [two]);
        assert_eq!(sets.get(number + 1), [one]);
        assert!(sets.get(0).is_empty());
    }

    #[test]
    fn a_set_takes_little_more_than_its_bytes() {
        let mut sets = Sets::new();
        for number in 0..1000u32 {
            sets.intern(vec![
                to_stored(b"user.number", &number.to_le_bytes()).unwrap(),
            ]);
        }
        sets.drop_index();
        let name_and_value = "number".len() + 4;
        assert_eq!(sets.bytes.len(), 1000 * (name_and_value + 9));
        assert_eq!(size_of_val(&sets.sets[0]), 16);
        assert_eq!(size_of::<super::super::shape::SetShape>(), 8);
    }

    #[test]
    fn attributes_overflow_into_a_block() {
        let small = to_stored(b"user.small", b"x").unwrap();
        let large = to_stored(b"user.large", &[7; 500]).unwrap();
        let huge = to_stored(b"user.huge", &[7; 5000]).unwrap();
        let both = split(&[large.clone(), small.clone()], 96, 4096).unwrap();
        assert_eq!(both.block, [large]);
        assert!(both.tail.iter().any(|&byte| byte != 0));
        let told = split(&[huge], 96, 4096).unwrap_err();
        assert!(told.contains("user.huge"), "{told}");
        assert!(split(&[small], 96, 4096).unwrap().block.is_empty());
    }

    #[test]
    fn oversized_attributes_are_refused_at_once() {
        let of = |name: &[u8], size: usize| to_stored(name, &vec![7; size]).unwrap();
        let both = [of(b"user.a", 4000), of(b"user.b", 4000)];
        check_total_size(&both).unwrap();
        let three = [&both[..], &[of(b"user.third", 200)]].concat();
        for (set, name) in [
            (&three[..], "user.third of 200"),
            (&[of(b"user.huge", 9000)], "user.huge"),
        ] {
            let told = check_total_size(set).unwrap_err();
            assert!(
                told.contains(name) && told.contains("--exclude-xattr"),
                "{told}"
            );
        }
    }

    #[test]
    fn unsupported_attribute_names_are_refused() {
        for name in [
            "btrfs.compression",
            "system.data",
            "system.nfs4_acl",
            "system.richacl",
        ] {
            let told = to_stored(name.as_bytes(), b"value").unwrap_err();
            assert!(
                told.contains(&format!("--exclude-xattr '{name}'")),
                "{told}"
            );
        }
        assert!(to_stored(b"system.posix_acl_access", b"no list").is_err());
    }
}
