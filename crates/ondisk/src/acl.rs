//! POSIX access control lists: the form that ext4 stores, and the form that system calls use.
//!
//! Both are values of the extended attributes `system.posix_acl_access` and `..._default`: a
//! version of 4 bytes, then entries of a tag (2 bytes), permissions (2 bytes) and an id (4 bytes),
//! all little-endian. System calls use version 2, in which every entry has an id, all ones if it
//! names nobody (acl(5); Linux' uapi header `posix_acl_xattr.h`). ext4 stores version 1, in which
//! only entries for a user or a group have an id (the kernel's `ext4/attributes.rst`). The length
//! of a stored entry therefore depends on its tag, and an unknown tag cannot be skipped: it is an
//! error in both forms, since otherwise one form would accept what the other cannot.
//!
//! The functions of this file do not interpret a list, and both forms keep the order of entries. An
//! [`Acl`] is a list that was checked; it says what the list means for permission bits. [`text`] is
//! a third form, of archives.

mod list;
pub mod text;

pub use list::{Acl, Inherited, Problem};

use crate::corrupt::Corrupt;
use crate::directory::FileType;

/// Name of the attribute with the list that controls access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of a directory's attribute with the list that its new files inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Tag of the owner's entry (`ACL_USER_OBJ`).
pub const USER_OBJECT: u16 = 0x01;
/// Tag of an entry for a user by id (`ACL_USER`).
pub const USER: u16 = 0x02;
/// Tag of the owning group's entry (`ACL_GROUP_OBJ`).
pub const GROUP_OBJECT: u16 = 0x04;
/// Tag of an entry for a group by id (`ACL_GROUP`).
pub const GROUP: u16 = 0x08;
/// Tag of the limit for named users and all groups (`ACL_MASK`).
pub const MASK: u16 = 0x10;
/// Tag of the entry for all others (`ACL_OTHER`).
pub const OTHER: u16 = 0x20;

/// The id of an entry that names nobody (`ACL_UNDEFINED_ID`).
pub const NO_ID: u32 = u32::MAX;

const STRUCTURE: &str = "access control list";
const VERSION_ON_DISK: u32 = 1;
const VERSION_OF_CALLS: u32 = 2;

/// One entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// One of the tags above.
    pub tag: u16,
    /// 4 to read, 2 to write, 1 to execute; other bits are kept.
    pub permissions: u16,
    /// The id of the named user or group; [`NO_ID`] for other tags.
    pub id: u32,
}

impl Entry {
    /// Whether the entry is for a user or a group by id.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(self.tag, USER | GROUP)
    }

    fn put_start(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend(self.permissions.to_le_bytes());
    }
}

/// Whether an attribute of this name is a list, whose stored form differs from that of system
/// calls.
#[must_use]
pub fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Why a file of this kind can have no list of this name; `None` if it can. Linux has no list on a
/// symbolic link, and a default list only on a directory.
#[must_use]
pub fn misplaced(kind: FileType, name: &[u8]) -> Option<&'static str> {
    match kind {
        FileType::Directory => None,
        FileType::Symlink => Some("a symbolic link has no access control list"),
        _ if name == DEFAULT => Some("only directories can have a default access control list"),
        _ => None,
    }
}

/// Applies a new mode to the entries of an access list, as `chmod` does: to the owner's, the
/// others', and the mask or, without one, the owning group's.
pub fn apply_mode(entries: &mut [Entry], mode: u16) {
    let has_mask = entries.iter().any(|entry| entry.tag == MASK);
    for entry in entries {
        let bits = match entry.tag {
            USER_OBJECT => mode >> 6,
            MASK => mode >> 3,
            GROUP_OBJECT if !has_mask => mode >> 3,
            OTHER => mode,
            _ => continue,
        };
        entry.permissions = bits & 7;
    }
}

/// Decodes the stored form.
///
/// # Errors
///
/// [`Corrupt`] for another version, an unknown tag, or a truncated entry.
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>, Corrupt> {
    let mut rest = versioned(bytes, VERSION_ON_DISK)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let mut entry = start(&mut rest)?;
        if entry.is_named() {
            entry.id = u32::from_le_bytes(take(&mut rest)?);
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Encodes the stored form.
#[must_use]
pub fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = VERSION_ON_DISK.to_le_bytes().to_vec();
    for entry in entries {
        entry.put_start(&mut bytes);
        if entry.is_named() {
            bytes.extend(entry.id.to_le_bytes());
        }
    }
    bytes
}

/// Decodes the form of system calls. The ids of entries that name nobody are ignored and become
/// [`NO_ID`].
///
/// # Errors
///
/// As [`decode`].
pub fn decode_call(bytes: &[u8]) -> Result<Vec<Entry>, Corrupt> {
    let mut rest = versioned(bytes, VERSION_OF_CALLS)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let mut entry = start(&mut rest)?;
        let id = u32::from_le_bytes(take(&mut rest)?);
        if entry.is_named() {
            entry.id = id;
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// Encodes the form of system calls.
#[must_use]
pub fn encode_call(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = VERSION_OF_CALLS.to_le_bytes().to_vec();
    for entry in entries {
        entry.put_start(&mut bytes);
        bytes.extend(entry.id.to_le_bytes());
    }
    bytes
}

/// Converts a value from the form of system calls to the stored form.
///
/// # Errors
///
/// As [`decode_call`].
pub fn call_to_stored(call: &[u8]) -> Result<Vec<u8>, Corrupt> {
    decode_call(call).map(|entries| encode(&entries))
}

/// Converts a value from the stored form to the form of system calls.
///
/// # Errors
///
/// As [`decode`].
pub fn stored_to_call(stored: &[u8]) -> Result<Vec<u8>, Corrupt> {
    decode(stored).map(|entries| encode_call(&entries))
}

/// The bytes after the version, if it is `wanted`.
fn versioned(bytes: &[u8], wanted: u32) -> Result<&[u8], Corrupt> {
    let mut rest = bytes;
    let version = u32::from_le_bytes(take(&mut rest)?);
    if version != wanted {
        let problem = format!("its version is {version}, not {wanted}");
        return Err(Corrupt::new(STRUCTURE, problem));
    }
    Ok(rest)
}

/// Decodes tag and permissions, which both forms have, from the front of `rest`.
fn start(rest: &mut &[u8]) -> Result<Entry, Corrupt> {
    let [tag_low, tag_high, low, high] = take(rest)?;
    let tag = u16::from_le_bytes([tag_low, tag_high]);
    if !matches!(
        tag,
        USER_OBJECT | USER | GROUP_OBJECT | GROUP | MASK | OTHER
    ) {
        let problem = format!("it has an entry of the unknown tag {tag:#x}");
        return Err(Corrupt::new(STRUCTURE, problem));
    }
    Ok(Entry {
        tag,
        permissions: u16::from_le_bytes([low, high]),
        id: NO_ID,
    })
}

fn take(rest: &mut &[u8]) -> Result<[u8; 4], Corrupt> {
    let (word, later) = rest
        .split_first_chunk::<4>()
        .ok_or_else(|| Corrupt::new(STRUCTURE, "it ends within an entry"))?;
    *rest = later;
    Ok(*word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `user::rw-,user:1000:r--,group::r--,mask::r--,other::---`, as the format describes it.
    const STORED: &[u8] = &[
        1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0, 0, 0,
    ];

    /// The same as `getfattr` shows it.
    const CALL: &[u8] = &[
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 255,
        255, 255, 255, 0x10, 0, 4, 0, 255, 255, 255, 255, 0x20, 0, 0, 0, 255, 255, 255, 255,
    ];

    #[test]
    fn both_forms_say_the_same() {
        assert_eq!(call_to_stored(CALL).as_deref(), Ok(STORED));
        assert_eq!(stored_to_call(STORED).as_deref(), Ok(CALL));
        let entries = decode(STORED).expect("a list");
        assert_eq!(entries.len(), 5);
        let named: Vec<_> = entries.iter().filter(|entry| entry.is_named()).collect();
        let expected = Entry {
            tag: USER,
            permissions: 4,
            id: 1000,
        };
        assert_eq!(named, [&expected]);
        assert_eq!(encode(&entries), STORED);
        assert_eq!(decode_call(CALL), Ok(entries));
    }

    #[test]
    fn every_tag_has_its_length() {
        for (tag, length) in [
            (USER_OBJECT, 4),
            (USER, 8),
            (GROUP_OBJECT, 4),
            (GROUP, 8),
            (MASK, 4),
            (OTHER, 4),
        ] {
            let id = if length == 8 { 7 } else { NO_ID };
            let entries = [Entry {
                tag,
                permissions: 5,
                id,
            }; 3];
            let bytes = encode(&entries);
            assert_eq!(bytes.len(), 4 + 3 * length, "{tag:#x}");
            assert_eq!(decode(&bytes).as_deref(), Ok(&entries[..]), "{tag:#x}");
            let call = encode_call(&entries);
            assert_eq!(call.len(), 4 + 3 * 8, "{tag:#x}");
            assert_eq!(decode_call(&call).as_deref(), Ok(&entries[..]), "{tag:#x}");
        }
    }

    #[test]
    fn ids_of_nobody_are_not_kept() {
        let mut call = CALL.to_vec();
        call[8..12].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(call_to_stored(&call).as_deref(), Ok(STORED));
        assert_eq!(decode_call(&call), decode_call(CALL));
    }

    #[test]
    fn what_is_cut_within_an_entry_is_refused() {
        let ends = |bytes: &[u8], entries: &[Entry], form: fn(&[Entry]) -> Vec<u8>| {
            let ends: Vec<usize> = (0..=entries.len())
                .map(|count| form(&entries[..count]).len())
                .collect();
            assert_eq!(ends.last(), Some(&bytes.len()));
            ends
        };
        let entries = decode(STORED).expect("a list");
        let whole = ends(STORED, &entries, encode);
        for cut in 0..STORED.len() {
            assert_eq!(
                decode(&STORED[..cut]).is_ok(),
                whole.contains(&cut),
                "{cut}"
            );
        }
        let whole = ends(CALL, &entries, encode_call);
        for cut in 0..CALL.len() {
            let is_whole = whole.contains(&cut);
            assert_eq!(decode_call(&CALL[..cut]).is_ok(), is_whole, "{cut}");
        }
    }

    #[test]
    fn other_versions_and_tags_are_refused_by_name() {
        let told = decode(CALL).unwrap_err().to_string();
        assert!(told.contains("version is 2, not 1"), "{told}");
        let told = decode_call(STORED).unwrap_err().to_string();
        assert!(told.contains("version is 1, not 2"), "{told}");
        for tag in [0, 3, 0x40, 0x0100] {
            let mut bytes = STORED.to_vec();
            bytes[4..6].copy_from_slice(&u16::to_le_bytes(tag));
            let told = decode(&bytes).unwrap_err().to_string();
            assert!(told.contains(&format!("{tag:#x}")), "{told}");
        }
    }

    #[test]
    fn any_change_of_one_byte_is_read_or_refused_alike() {
        for at in 0..STORED.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = STORED.to_vec();
                bytes[at] = byte;
                if let Ok(entries) = decode(&bytes) {
                    assert_eq!(encode(&entries), bytes, "byte {at} is {byte}");
                    assert_eq!(call_to_stored(&encode_call(&entries)), Ok(bytes));
                }
            }
        }
    }
}
