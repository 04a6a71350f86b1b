//! Access control lists as text, which archives hold, and from that what ext4 stores.

use pext4_ondisk::acl::{
    Entry, GROUP, GROUP_OBJECT, MASK, NO_ID, OTHER, USER, USER_OBJECT, encode,
};

/// The stored form of a list in the text that archives hold: `user::rw-,user:1000:r--,mask::r--`,
/// with numbers for names, or with the number as a fourth part. What is wrong with it otherwise.
pub(super) fn stored(text: &[u8]) -> Result<Vec<u8>, String> {
    entries(text).map(|entries| encode(&entries))
}

/// The entries of such a text, in the order in which they are stored.
fn entries(text: &[u8]) -> Result<Vec<Entry>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "its access list is no text".to_owned())?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']).map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            entries.push(parse(line)?);
        }
    }
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    Ok(entries)
}

/// Permission bits that a list says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Permissions {
    said: u16,
    bits: u16,
}

impl Permissions {
    /// Those of the list in a text. The mode of a file with a mask shows the mask where the owning
    /// group's permissions would be.
    pub fn of(text: &[u8]) -> Result<Self, String> {
        let entries = entries(text)?;
        let find = |tag| entries.iter().find(|entry| entry.tag == tag);
        let mut permissions = Self::default();
        for (shift, entry) in [
            (6, find(USER_OBJECT)),
            (3, find(MASK).or_else(|| find(GROUP_OBJECT))),
            (0, find(OTHER)),
        ] {
            if let Some(entry) = entry {
                permissions.said |= 0o7 << shift;
                permissions.bits |= entry.permissions << shift;
            }
        }
        Ok(permissions)
    }

    /// A mode with these bits; those that the list says nothing of stay.
    pub fn in_mode(self, mode: u16) -> u16 {
        mode & !self.said | self.bits
    }
}

fn parse(line: &str) -> Result<Entry, String> {
    let unsound = || format!("its access list has the entry `{line}`, which makes no sense");
    let mut parts = line.split(':');
    let (kind, name, letters) = (parts.next(), parts.next(), parts.next());
    let (Some(kind), Some(name), Some(letters)) = (kind, name, letters) else {
        return Err(unsound());
    };
    let number = parts.next().unwrap_or(name);
    let tag = match (kind, name.is_empty()) {
        ("user" | "u", true) => USER_OBJECT,
        ("user" | "u", false) => USER,
        ("group" | "g", true) => GROUP_OBJECT,
        ("group" | "g", false) => GROUP,
        ("mask" | "m", true) => MASK,
        ("other" | "o", true) => OTHER,
        _ => return Err(unsound()),
    };
    let id = match tag {
        USER | GROUP => number.parse().map_err(|_| {
            format!("its access list names `{name}`; make the archive with --numeric-owner")
        })?,
        _ => NO_ID,
    };
    let mut permissions = 0;
    for letter in letters.split_whitespace().next().unwrap_or("").chars() {
        permissions |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return Err(unsound()),
        };
    }
    Ok(Entry {
        tag,
        permissions,
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::{Permissions, stored};

    const STORED: &[u8] = &[
        1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0, 0, 0,
    ];

    #[test]
    fn text_says_what_is_stored() {
        let text = b"user::rw-,user:1000:r--,group::r--,mask::r--,other::---";
        assert_eq!(stored(text).as_deref(), Ok(STORED));
        let named = b"user::rw-\nuser:lisa:r--:1000\ngroup::r--\nmask::r--\nother::---\n";
        assert_eq!(stored(named).as_deref(), Ok(STORED));
        let told = stored(b"user:lisa:r--").unwrap_err();
        assert!(told.contains("lisa"), "{told}");
        assert!(stored(b"nobody").is_err());
    }

    #[test]
    fn the_mask_is_what_a_mode_shows_of_the_group() {
        for (text, mode) in [
            ("user::rwx,group::r--,other::--x", 0o4741),
            (
                "user::rw-,user:1:rwx,group::---,mask::r-x,other::r--",
                0o4654,
            ),
            ("group::r-x", 0o4056),
            ("", 0o4026),
        ] {
            let permissions = Permissions::of(text.as_bytes()).unwrap();
            assert_eq!(permissions.in_mode(0o4026), mode, "{text}");
        }
    }
}
