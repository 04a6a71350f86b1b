//! Access control lists as text, which archives hold: `user::rw-,user:1000:r--,mask::r--`.
//!
//! GNU tar and bsdtar write them where they are asked to (`--acls`): entries end at a comma or a
//! line's end, a `#` begins a comment, and a fourth part, which star and bsdtar write, is the number
//! of who is named. An image knows numbers only, so a name without one is refused, and so is a list
//! that Linux would not take: one with an entry that is missing or there twice.

use pext4_ondisk::acl::{
    Entry, GROUP, GROUP_OBJECT, MASK, NO_ID, OTHER, USER, USER_OBJECT, encode,
};

use crate::error::Shown;

/// A list that makes sense, its entries in order.
pub(crate) struct List(Vec<Entry>);

impl List {
    /// The list that a text says; `None` if it says none, what is wrong with it otherwise.
    pub(crate) fn parse(text: &[u8]) -> Result<Option<Self>, String> {
        let text = std::str::from_utf8(text)
            .map_err(|_| "its access control list is no text".to_owned())?;
        let mut entries = Vec::new();
        for line in text.split('\n') {
            let line = line.split('#').next().unwrap_or_default();
            for part in line.split(',').map(str::trim) {
                if !part.is_empty() {
                    entries.push(entry(part)?);
                }
            }
        }
        if entries.is_empty() {
            return Ok(None);
        }
        entries.sort_unstable_by_key(|entry| (entry.tag, entry.id));
        let list = Self(entries);
        list.check()?;
        Ok(Some(list))
    }

    /// The form that ext4 stores.
    pub(crate) fn stored(&self) -> Vec<u8> {
        encode(&self.0)
    }

    /// The permission bits of a file with this list; the group's are what the mask allows.
    pub(crate) fn permissions(&self) -> u16 {
        let of = |tag| self.find(tag).unwrap_or(0);
        let group = self.find(MASK).unwrap_or_else(|| of(GROUP_OBJECT));
        of(USER_OBJECT) << 6 | group << 3 | of(OTHER)
    }

    fn find(&self, tag: u16) -> Option<u16> {
        let found = self.0.iter().find(|entry| entry.tag == tag);
        found.map(|entry| entry.permissions)
    }

    fn check(&self) -> Result<(), String> {
        let same = |pair: &[Entry]| pair[0].tag == pair[1].tag && pair[0].id == pair[1].id;
        if self.0.windows(2).any(same) {
            return Err("its access control list has an entry twice".to_owned());
        }
        let is_named = self.0.iter().any(|entry| entry.is_named());
        for (tag, name, is_needed) in [
            (USER_OBJECT, "user::", true),
            (GROUP_OBJECT, "group::", true),
            (MASK, "mask::", is_named),
            (OTHER, "other::", true),
        ] {
            if is_needed && self.find(tag).is_none() {
                return Err(format!("its access control list lacks the entry `{name}`"));
            }
        }
        Ok(())
    }
}

fn entry(text: &str) -> Result<Entry, String> {
    let unsound = || {
        let shown = Shown(text.as_bytes());
        format!("its access control list has the entry `{shown}`, which makes no sense")
    };
    let parts: Vec<&str> = text.split(':').map(str::trim).collect();
    let (kind, name, letters, number) = match parts[..] {
        [kind, name, letters] => (kind, name, letters, None),
        [kind, name, letters, number] => (kind, name, letters, Some(number)),
        _ => return Err(unsound()),
    };
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
        USER | GROUP => id(number.filter(|number| !number.is_empty()), name)?,
        _ => NO_ID,
    };
    Ok(Entry {
        tag,
        permissions: permissions(letters).ok_or_else(unsound)?,
        id,
    })
}

/// Who is named: by the number where there is one.
fn id(number: Option<&str>, name: &str) -> Result<u32, String> {
    let parsed = number.unwrap_or(name).parse().ok();
    parsed.filter(|id| *id != NO_ID).ok_or_else(|| {
        let shown = Shown(number.unwrap_or(name).as_bytes());
        format!(
            "its access control list names `{shown}`, and only numbers can be kept; \
             tar makes such archives with --numeric-owner"
        )
    })
}

fn permissions(letters: &str) -> Option<u16> {
    letters.chars().try_fold(0, |permissions, letter| {
        let bit = match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return None,
        };
        Some(permissions | bit)
    })
}

#[cfg(test)]
mod tests {
    use super::List;

    #[test]
    fn text_says_what_is_stored() {
        let stored = [
            1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0,
            0, 0,
        ];
        for text in [
            "user::rw-,user:1000:r--,group::r--,mask::r--,other::---",
            "mask::r\nother::\nuser:lisa:r--:1000 # a comment, with: all\n\nuser::rw-\ngroup::r--",
        ] {
            let list = List::parse(text.as_bytes()).expect(text).expect(text);
            assert_eq!(list.stored(), stored, "{text}");
            assert_eq!(list.permissions(), 0o640, "{text}");
        }
    }

    #[test]
    fn nothing_is_no_list_and_nonsense_is_refused() {
        for text in [&b""[..], b"\n,\n", b"# nothing"] {
            assert!(List::parse(text).is_ok_and(|list| list.is_none()));
        }
        for text in [
            &b"\xFF"[..],
            b":",
            b"::::",
            b"user::rwx:1:2",
            b"user",
            b"mask:1:r",
            b"user:-1:r",
            b"user:99999999999:r",
        ] {
            assert!(List::parse(text).is_err(), "{}", text.escape_ascii());
        }
    }
}
