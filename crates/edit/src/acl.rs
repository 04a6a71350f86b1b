//! Access control lists, between the form of system calls and that of the image.
//!
//! A system call gives and takes the value of `system.posix_acl_access` or `_default` in version 2:
//! a header and entries of 8 bytes (tag, permissions, id). ext4 stores version 1: the entries of
//! owner, group, mask and others are 4 bytes long, without the id. All numbers are little-endian.

/// The names whose values have two forms.
const NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

const SYSTEM_VERSION: u32 = 2;
const IMAGE_VERSION: u32 = 1;
/// A named user, a named group: entries with an id.
const WITH_ID: [u16; 2] = [0x02, 0x08];
/// The id of an entry that names nobody.
const NOBODY: u32 = u32::MAX;

/// Whether a value of this name has two forms.
pub(crate) fn is_list(name: &[u8]) -> bool {
    NAMES.contains(&name)
}

/// The image's form of a system call's value; `None` if it is no list.
pub(crate) fn to_image(value: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != SYSTEM_VERSION {
        return None;
    }
    let mut list = IMAGE_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (entry, later) = rest.split_at_checked(8)?;
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let length = if WITH_ID.contains(&tag) { 8 } else { 4 };
        list.extend_from_slice(&entry[..length]);
        rest = later;
    }
    Some(list)
}

/// The form that system calls take of an image's value; `None` if it is no list.
pub(crate) fn to_system(value: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != IMAGE_VERSION {
        return None;
    }
    let mut list = SYSTEM_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let tag = u16::from_le_bytes(*rest.first_chunk::<2>()?);
        let length = if WITH_ID.contains(&tag) { 8 } else { 4 };
        let (entry, later) = rest.split_at_checked(length)?;
        list.extend_from_slice(entry);
        if length == 4 {
            list.extend_from_slice(&NOBODY.to_le_bytes());
        }
        rest = later;
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::{to_image, to_system};

    #[test]
    fn both_forms_say_the_same() {
        // user::rw-, user:1000:r--, group::r--, mask::r--, other::---
        let mut system = vec![2, 0, 0, 0];
        for (tag, permissions, id) in [
            (1u16, 6u16, u32::MAX),
            (2, 4, 1000),
            (4, 4, u32::MAX),
            (16, 4, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            system.extend_from_slice(&tag.to_le_bytes());
            system.extend_from_slice(&permissions.to_le_bytes());
            system.extend_from_slice(&id.to_le_bytes());
        }
        let image = to_image(&system).expect("a list");
        assert_eq!(image.len(), 4 + 4 * 4 + 8);
        assert_eq!(to_system(&image), Some(system));
    }

    #[test]
    fn what_is_no_list_is_none() {
        assert_eq!(to_image(&[1, 0, 0, 0]), None);
        assert_eq!(to_image(&[2, 0, 0, 0, 1]), None);
        assert_eq!(to_system(&[1, 0, 0, 0, 2, 0, 4, 0]), None);
        assert_eq!(to_system(&[]), None);
    }
}
