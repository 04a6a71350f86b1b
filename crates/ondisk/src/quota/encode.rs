//! Whole quota files, for images that are made.

use super::{
    BLOCK_SIZE, DEPTH, ENTRIES, Entry, Header, LeafHeader, OwnerKind, ROOT, RawHeader, VERSION,
    add_usage, empty_place, index_of, put_entry, set_reference,
};
use zerocopy::{FromZeros, IntoBytes};

/// How long somebody may be above a soft limit, in seconds: a week, as mke2fs sets it.
const GRACE: u32 = 7 * 24 * 60 * 60;

/// A quota file with these entries, which are in the order of their ids, each of them once.
#[must_use]
pub fn encode_file(kind: OwnerKind, entries: &[Entry]) -> Vec<u8> {
    let mut file = Encoder {
        bytes: vec![0; 2 * BLOCK_SIZE],
    };
    // The nodes above the last entry's leaf, and that leaf.
    let mut nodes = [ROOT; DEPTH as usize];
    let mut leaf = LeafHeader::default();
    let mut leaf_number = 0;
    let mut last = None;
    for entry in entries {
        for depth in 1..DEPTH {
            let prefix = |id: u32| id >> (8 * (DEPTH - depth));
            if last.is_none_or(|last| prefix(last) != prefix(entry.id)) {
                let node = file.append();
                nodes[depth as usize] = node;
                file.link(nodes[depth as usize - 1], entry.id, depth - 1, node);
            }
        }
        last = Some(entry.id);
        if leaf_number == 0 || usize::from(leaf.entries) == ENTRIES {
            leaf_number = file.append();
            leaf = LeafHeader::default();
        }
        file.link(nodes[DEPTH as usize - 1], entry.id, DEPTH - 1, leaf_number);
        leaf.entries += 1;
        file.put(leaf_number, leaf, entry);
    }
    let is_full = usize::from(leaf.entries) == ENTRIES;
    let free_leaf = if is_full { 0 } else { leaf_number };
    file.finish(kind, free_leaf)
}

struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    fn count(&self) -> u32 {
        u32::try_from(self.bytes.len() / BLOCK_SIZE).expect("owners have numbers of 32 bits")
    }

    fn append(&mut self) -> u32 {
        let number = self.count();
        self.bytes.resize(self.bytes.len() + BLOCK_SIZE, 0);
        number
    }

    fn block(&mut self, number: u32) -> &mut [u8] {
        let start = number as usize * BLOCK_SIZE;
        &mut self.bytes[start..start + BLOCK_SIZE]
    }

    fn link(&mut self, node: u32, id: u32, depth: u32, child: u32) {
        set_reference(self.block(node), index_of(id, depth), child);
    }

    fn put(&mut self, leaf: u32, header: LeafHeader, entry: &Entry) {
        let block = self.block(leaf);
        header.store(block);
        let place = empty_place(block).expect("a leaf with an empty place");
        put_entry(block, place, entry.id);
        let amount = |used: u64| i64::try_from(used).unwrap_or(i64::MAX);
        add_usage(block, place, amount(entry.space), amount(entry.inodes));
    }

    fn finish(mut self, kind: OwnerKind, free_leaf: u32) -> Vec<u8> {
        let mut raw = RawHeader::new_zeroed();
        raw.dqh_magic = kind.magic().into();
        raw.dqh_version = VERSION.into();
        (raw.dqi_bgrace, raw.dqi_igrace) = (GRACE.into(), GRACE.into());
        let blocks = self.count();
        let first = self.block(0);
        first[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        Header { blocks, free_leaf }.store(first);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::{entries, references};
    use super::{BLOCK_SIZE, Entry, Header, OwnerKind, encode_file, index_of};

    /// Follows the tree to an owner's leaf.
    fn leaf_of(file: &[u8], id: u32) -> Option<&[u8]> {
        let block = |number: u32| &file[number as usize * BLOCK_SIZE..][..BLOCK_SIZE];
        let mut number = 1;
        for depth in 0..4 {
            number = references(block(number)).nth(index_of(id, depth))?;
            if number == 0 {
                return None;
            }
        }
        Some(block(number))
    }

    #[test]
    fn every_entry_is_found_by_its_id() {
        for count in [0, 1, 13, 14, 15, 28, 300] {
            let mut ids: Vec<u32> = (0..count)
                .map(|id: u32| id.wrapping_mul(0x4567_8901))
                .collect();
            ids.sort_unstable();
            let all: Vec<Entry> = ids
                .iter()
                .map(|&id| Entry {
                    id,
                    space: u64::from(id) * 3,
                    inodes: u64::from(id % 5),
                })
                .collect();
            let file = encode_file(OwnerKind::Group, &all);
            let size = file.len() as u64;
            let header = Header::decode(&file, OwnerKind::Group, size).expect("it is sound");
            assert_eq!(u64::from(header.blocks) * 1024, size);
            assert_eq!(header.free_leaf == 0, count % 14 == 0);
            for entry in &all {
                let leaf = leaf_of(&file, entry.id).expect("the tree leads there");
                assert!(entries(leaf).any(|found| found == *entry), "{entry:?}");
            }
            assert!(leaf_of(&file, 0x0101_0101).is_none());
        }
    }
}
