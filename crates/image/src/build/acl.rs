//! Access control lists: from what programs read and write (version 2 of the system's attribute, or
//! text in an archive) to what ext4 stores (version 1, without ids where there are none).

/// Version of the form that the system hands to programs.
const PROGRAM_VERSION: u32 = 2;
/// Version of the form on disk.
const DISK_VERSION: u32 = 1;

const USER_OBJECT: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJECT: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// One line of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// The stored form of a list as programs see it; `None` where the bytes are no list.
pub(super) fn to_disk(program: &[u8]) -> Option<Vec<u8>> {
    let (version, rest) = program.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != PROGRAM_VERSION {
        return None;
    }
    let (chunks, rest) = rest.as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    let entries = chunks.iter().map(|[a, b, c, d, e, f, g, h]| Entry {
        tag: u16::from_le_bytes([*a, *b]),
        permissions: u16::from_le_bytes([*c, *d]),
        id: u32::from_le_bytes([*e, *f, *g, *h]),
    });
    encode(&entries.collect::<Vec<_>>())
}

fn encode(entries: &[Entry]) -> Option<Vec<u8>> {
    let mut bytes = DISK_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        bytes.extend(entry.tag.to_le_bytes());
        bytes.extend(entry.permissions.to_le_bytes());
        match entry.tag {
            USER | GROUP => bytes.extend(entry.id.to_le_bytes()),
            USER_OBJECT | GROUP_OBJECT | MASK | OTHER => {}
            _ => return None,
        }
    }
    Some(bytes)
}

/// The stored form of a list in the text that archives hold: `user::rw-,user:1000:r--,mask::r--`,
/// with numbers for names, or with the number as a fourth part. What is wrong with it otherwise.
pub(super) fn text_to_disk(text: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "its access list is no text".to_owned())?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']).map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            entries.push(parse(line)?);
        }
    }
    entries.sort_by_key(|entry| (entry.tag, entry.id));
    encode(&entries).ok_or_else(|| "its access list cannot be stored".to_owned())
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
        _ => u32::MAX,
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
    use super::{text_to_disk, to_disk};

    const STORED: &[u8] = &[
        1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 4, 0, 0x20, 0, 0, 0,
    ];

    #[test]
    fn ids_stay_only_where_they_mean_something() {
        let mut program = vec![2, 0, 0, 0];
        for (tag, permissions, id) in [
            (1u16, 6u16, u32::MAX),
            (2, 4, 1000),
            (4, 4, u32::MAX),
            (0x10, 4, u32::MAX),
            (0x20, 0, u32::MAX),
        ] {
            program.extend(tag.to_le_bytes());
            program.extend(permissions.to_le_bytes());
            program.extend(id.to_le_bytes());
        }
        assert_eq!(to_disk(&program).as_deref(), Some(STORED));
        assert_eq!(to_disk(&program[..7]), None);
        assert_eq!(to_disk(STORED), None, "the wrong version");
    }

    #[test]
    fn text_says_the_same() {
        let text = b"user::rw-,user:1000:r--,group::r--,mask::r--,other::---";
        assert_eq!(text_to_disk(text).as_deref(), Ok(STORED));
        let named = b"user::rw-\nuser:lisa:r--:1000\ngroup::r--\nmask::r--\nother::---\n";
        assert_eq!(text_to_disk(named).as_deref(), Ok(STORED));
        let told = text_to_disk(b"user:lisa:r--").unwrap_err();
        assert!(told.contains("lisa"), "{told}");
        assert!(text_to_disk(b"nobody").is_err());
    }
}
