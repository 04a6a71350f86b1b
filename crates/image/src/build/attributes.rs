//! Sets of extended attributes: files that have the same ones share a set, and where the set needs a
//! block of its own, share the block.

use std::collections::HashMap;

use pext4_ondisk::acl;
use pext4_ondisk::xattr::{self, Attribute, Value};

/// A full name and a value, as the system gives them.
pub(super) type Named = (Vec<u8>, Vec<u8>);

/// Bytes of names and values that no file can have more of: the largest inode and the largest block.
const MAX_BYTES: usize = 4096 + 4096;

/// All sets; number 0 is the empty one.
pub(super) struct Sets {
    sets: Vec<Box<[Attribute]>>,
    numbers: HashMap<Box<[u8]>, u32>,
}

/// What of a set lies in the inode and what in a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    /// The end of the inode's slot.
    pub tail: Vec<u8>,
    /// The attributes that the block holds; empty without a block.
    pub block: Vec<Attribute>,
    /// Bytes of content that the inode holds besides; 0 if it may hold none.
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

    /// Puts others into a set, when all sets are known.
    pub fn change(&mut self, number: u32, attributes: Vec<Attribute>) {
        self.numbers.clear();
        self.sets[number as usize] = attributes.into_boxed_slice();
    }

    /// The number of the set of these attributes.
    pub fn number_of(&mut self, mut attributes: Vec<Attribute>) -> u32 {
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

/// Bytes that tell sets apart.
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

/// An attribute as it is stored; what keeps it from being stored otherwise.
pub(super) fn stored(name: &[u8], value: &[u8]) -> Result<Attribute, String> {
    let shown = String::from_utf8_lossy(name);
    // What ext4 keeps for itself nobody would see, and `system.data` would be taken for content.
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

/// Refuses attributes that no image could hold, whatever its options, so that they are not kept until it
/// is known what they are.
pub(super) fn judge_extent(attributes: &[Attribute]) -> Result<(), String> {
    let mut left = MAX_BYTES;
    for attribute in attributes {
        let size = attribute.name.len() + value_of(attribute).len();
        left = left.checked_sub(size).ok_or_else(|| {
            let name = xattr::full_name(attribute.index, &attribute.name).unwrap_or_default();
            let shown = String::from_utf8_lossy(&name);
            format!(
                "its attribute {shown} of {} bytes finds no room: no image holds more than {MAX_BYTES} \
                 bytes of a file's attributes; --exclude-xattr '{shown}' leaves it out",
                value_of(attribute).len()
            )
        })?;
    }
    Ok(())
}

/// Has the access list among attributes follow a mode.
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

/// Puts what fits into the inode's tail and the rest into a block; the attribute that finds no room
/// otherwise.
pub(super) fn split(
    set: &[Attribute],
    tail_size: usize,
    block_size: usize,
) -> Result<Split, String> {
    let mut split = Split {
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
    use super::{Sets, judge_extent, split, stored};

    #[test]
    fn equal_sets_are_one() {
        let mut sets = Sets::new();
        let one = stored(b"user.a", b"1").unwrap();
        let two = stored(b"security.b", b"2").unwrap();
        assert_eq!(sets.number_of(Vec::new()), 0);
        let number = sets.number_of(vec![one.clone(), two.clone()]);
        assert_eq!(sets.number_of(vec![two.clone(), one.clone()]), number);
        assert_ne!(sets.number_of(vec![one]), number);
        assert_eq!(sets.len(), 3);
    }

    #[test]
    fn what_does_not_fit_the_inode_goes_into_a_block() {
        let small = stored(b"user.small", b"x").unwrap();
        let large = stored(b"user.large", &[7; 500]).unwrap();
        let huge = stored(b"user.huge", &[7; 5000]).unwrap();
        let both = split(&[large.clone(), small.clone()], 96, 4096).unwrap();
        assert_eq!(both.block, [large]);
        assert!(both.tail.iter().any(|&byte| byte != 0));
        let told = split(&[huge], 96, 4096).unwrap_err();
        assert!(told.contains("user.huge"), "{told}");
        assert!(split(&[small], 96, 4096).unwrap().block.is_empty());
    }

    #[test]
    fn what_no_image_holds_is_refused_at_once() {
        let of = |name: &[u8], size: usize| stored(name, &vec![7; size]).unwrap();
        let both = [of(b"user.a", 4000), of(b"user.b", 4000)];
        judge_extent(&both).unwrap();
        let three = [&both[..], &[of(b"user.third", 200)]].concat();
        for (set, name) in [
            (&three[..], "user.third of 200"),
            (&[of(b"user.huge", 9000)], "user.huge"),
        ] {
            let told = judge_extent(set).unwrap_err();
            assert!(
                told.contains(name) && told.contains("--exclude-xattr"),
                "{told}"
            );
        }
    }

    #[test]
    fn names_without_a_place_are_refused() {
        for name in [
            "btrfs.compression",
            "system.data",
            "system.nfs4_acl",
            "system.richacl",
        ] {
            let told = stored(name.as_bytes(), b"value").unwrap_err();
            assert!(
                told.contains(&format!("--exclude-xattr '{name}'")),
                "{told}"
            );
        }
        assert!(stored(b"system.posix_acl_access", b"no list").is_err());
    }
}
