//! The names of one directory, among which duplicates are found.

/// The maximum number of names that are kept. Later names are not checked for duplicates.
const MAX_NAMES: usize = 1 << 22;
/// The maximum number of bytes of names that are kept.
const MAX_BYTES: usize = 1 << 27;

#[derive(Clone, Copy)]
struct Name {
    key: u64,
    start: u32,
    length: u16,
}

/// Packed names, and a key for each.
#[derive(Default)]
pub(super) struct Seen {
    bytes: Vec<u8>,
    names: Vec<Name>,
}

impl Seen {
    /// Adds a name. Equal names have equal keys. False if too much was added already; the name is
    /// not kept then.
    #[must_use]
    pub(super) fn add(&mut self, key: u64, name: &[u8]) -> bool {
        let (Ok(start), Ok(length)) = (u32::try_from(self.bytes.len()), u16::try_from(name.len()))
        else {
            return false;
        };
        let has_room = self.names.len() < MAX_NAMES && self.bytes.len() + name.len() <= MAX_BYTES;
        if has_room {
            self.bytes.extend_from_slice(name);
            self.names.push(Name { key, start, length });
        }
        has_room
    }

    /// Reports every name that was added more than once, and removes all names.
    pub(super) fn duplicates(&mut self, mut report: impl FnMut(&[u8])) {
        let bytes = &self.bytes;
        let text = |name: &Name| &bytes[name.start as usize..][..usize::from(name.length)];
        self.names.sort_unstable_by_key(|name| name.key);
        for equal in self.names.chunk_by_mut(|one, other| one.key == other.key) {
            if equal.len() < 2 {
                continue;
            }
            equal.sort_unstable_by_key(|name| text(name));
            for same in equal.chunk_by(|one, other| text(one) == text(other)) {
                if same.len() > 1 {
                    report(text(&same[0]));
                }
            }
        }
        self.bytes.clear();
        self.names.clear();
    }
}

/// A key for a name without an index hash (FNV-1a).
pub(super) fn key(name: &[u8]) -> u64 {
    name.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, Seen};

    #[test]
    fn long_names_are_kept_up_to_so_many_bytes() {
        let mut seen = Seen::default();
        for number in 0..MAX_BYTES as u64 / 255 {
            assert!(seen.add(number, &[b'n'; 255]));
        }
        assert!(!seen.add(0, &[b'n'; 255]), "the caller learns of it");
        assert!(seen.bytes.len() <= MAX_BYTES);
        assert_eq!(seen.names.len(), MAX_BYTES / 255);
    }

    #[test]
    fn names_of_one_key_are_told_apart() {
        let mut seen = Seen::default();
        for (key, name) in [(1, "a"), (2, "b"), (1, "c"), (1, "a"), (2, "bb"), (1, "a")] {
            assert!(seen.add(key, name.as_bytes()));
        }
        let mut twice = Vec::new();
        seen.duplicates(|name| twice.push(name.to_vec()));
        assert_eq!(twice, [b"a"]);
        seen.duplicates(|_| panic!("all is forgotten"));
    }
}
