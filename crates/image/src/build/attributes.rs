//! Sets of extended attributes. Files with equal attributes share a set and, if the set needs a
//! block, share the block.

use std::collections::HashMap;

use pext4_ondisk::acl;
use pext4_ondisk::xattr::{self, Attribute, Value};

/// The full name and the value of an attribute, as the host returns them.
pub(super) type RawAttribute = (Vec<u8>, Vec<u8>);

/// Upper bound of the bytes of names and values of a file: the largest inode and the largest block.
const MAX_TOTAL_BYTES: usize = 4096 + 4096;

/// All sets. Set 0 is the empty one.
pub(super) struct Sets {
    sets: Vec<Box<[Attribute]>>,
    numbers: HashMap<Box<[u8]>, u32>,
}

/// How a set is split between the inode and a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SplitSet {
    /// The encoded attributes behind the fields of the inode.
    pub tail: Vec<u8>,
    /// The attributes in the block; empty without a block.
    pub block: Vec<Attribute>,
    /// Bytes of inline data that fit beside the attributes; 0 if inline data is not possible.
    pub room: usize,
}

impl Sets {
    pub fn new() -> Self {
        Self {
            sets: vec![Box::default()],
            numbers: HashMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.sets.len()
    }

    pub fn get(&self, number: u32) -> &[Attribute] {
        &self.sets[number as usize]
    }

    /// Replaces the attributes of a set. Call it only when no more sets are added: it clears the
    /// index.
    pub fn change(&mut self, number: u32, attributes: Vec<Attribute>) {
        self.numbers.clear();
        self.sets[number as usize] = attributes.into_boxed_slice();
    }

    /// Returns the number of the set with these attributes, and adds it if necessary.
    pub fn intern(&mut self, mut attributes: Vec<Attribute>) -> u32 {
        if attributes.is_empty() {
            return 0;
        }
        attributes.sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
        let key = canonical(&attributes).into_boxed_slice();
        let next = u32::try_from(self.sets.len()).expect("fewer sets than files");
        *self.numbers.entry(key).or_insert_with(|| {
            self.sets.push(attributes.into_boxed_slice());
            next
        })
    }
}

/// A unique encoding of a set.
pub(super) fn canonical(attributes: &[Attribute]) -> Vec<u8> {
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
    let shown = String::from_utf8_lossy(name);
    // No program could read ext4's internal attributes, and ext4 would interpret `system.data` as
    // file content.
    let kept = xattr::split_name(name).filter(|(index, _)| xattr::is_visible(*index));
    let Some((index, rest)) = kept else {
        return Err(format!(
            "its attribute {shown} has a kind of name that ext4 cannot hold; \
             --exclude-xattr '{shown}' leaves it out"
        ));
    };
    if rest.len() > xattr::MAX_NAME {
        return Err(format!(
            "its attribute {shown} has a name of {} bytes",
            rest.len()
        ));
    }
    if acl::is_list(name) {
        let list =
            acl::call_to_stored(value).map_err(|_| format!("its {shown} is no access list"))?;
        return Ok(Attribute::new(index, rest, &list));
    }
    Ok(Attribute::new(index, rest, value))
}

/// Refuses attributes that no image can hold, whatever its options. The caller checks before it
/// keeps them, so that their memory is bounded.
pub(super) fn check_total_size(attributes: &[Attribute]) -> Result<(), String> {
    let mut left = MAX_TOTAL_BYTES;
    for attribute in attributes {
        let size = attribute.name.len() + value_of(attribute).len();
        left = left.checked_sub(size).ok_or_else(|| {
            let name = xattr::full_name(attribute.index, &attribute.name).unwrap_or_default();
            let shown = String::from_utf8_lossy(&name);
            format!(
                "its attribute {shown} of {} bytes finds no room: no image holds more than {MAX_TOTAL_BYTES} \
                 bytes of a file's attributes; --exclude-xattr '{shown}' leaves it out",
                value_of(attribute).len()
            )
        })?;
    }
    Ok(())
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
        room: 0,
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
        assert_ne!(sets.intern(vec![one]), number);
        assert_eq!(sets.len(), 3);
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
