//! Pass 2, the index of a directory: a walk over its nodes, which collects the leaves in the order
//! of their hashes and reports errors. A directory with a broken index is then read block by block.

use std::io;

use pext4_ondisk::BlockNumber;
use pext4_ondisk::bitmap;
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::directory;
use pext4_ondisk::dirhash::{HashVersion, Hasher, Signedness};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::htree::{self, CONTINUED, RootInfo};

use super::catalogue::Kind;
use super::directories::DirectorySubject;
use super::leaf;

/// The end of the range of hashes.
const END: u64 = 1 << 32;

/// A block of names, and the range of their hashes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub(super) logical: u32,
    /// Names of the first hash continue from the leaf before.
    pub(super) continues: bool,
    start: u32,
    end: u64,
}

impl Leaf {
    /// A leaf of all hashes.
    #[cfg(test)]
    pub(super) fn new(logical: u32, continues: bool) -> Self {
        Self {
            logical,
            continues,
            start: 0,
            end: END,
        }
    }

    /// Whether a name of this hash belongs here.
    pub(super) fn covers(&self, hash: u32) -> bool {
        hash >= self.start && u64::from(hash) < self.end
    }
}

/// The result of a walk over an index.
#[derive(Debug)]
pub(super) struct Index {
    /// Blocks that are nodes, the root among them; sorted.
    pub(super) nodes: Vec<u32>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) hasher: Option<Hasher>,
    pub(super) is_sound: bool,
}

struct Walk<'a> {
    subject: &'a DirectorySubject<'a>,
    index: Index,
    /// One bit for every block that was visited.
    visited: Vec<u8>,
    has_tail: bool,
    /// The largest hash so far.
    last: u32,
}

/// Walks over the index of a directory.
pub(super) fn walk(subject: &DirectorySubject<'_>) -> Index {
    let blocks = subject.blocks().min(htree::BLOCK_MASK);
    let volume = &subject.tree.examination.volume;
    let mut walk = Walk {
        subject,
        index: Index {
            nodes: Vec::new(),
            leaves: Vec::new(),
            hasher: None,
            is_sound: true,
        },
        visited: vec![0; (blocks as usize).div_ceil(8)],
        has_tail: volume.seed.is_some(),
        last: 0,
    };
    walk.root();
    walk.index.nodes.sort_unstable();
    if walk.index.is_sound {
        walk.check_all_visited(blocks);
    }
    walk.index
}

/// Whether the second record of the root extends to the end of the block, so that the block has
/// just two names for readers that do not know the index.
fn has_two_records(bytes: &[u8]) -> bool {
    usize::from(u16::from_le_bytes([bytes[16], bytes[17]])) == bytes.len() - 12
}

impl Walk<'_> {
    fn report_unsound(&mut self, kind: Kind, block: Option<u64>, text: impl FnOnce() -> String) {
        self.index.is_sound = false;
        self.subject.report(kind, block, text);
    }

    fn root(&mut self) {
        let volume = &self.subject.tree.examination.volume;
        let Some((block, bytes)) = self.enter(0, None) else {
            return;
        };
        match directory::dots(&bytes) {
            Ok((own, parent)) => {
                self.subject.dot(own, Some(block));
                self.subject.dot_dot(parent);
                leaf::check_dot_names(self.subject, block, &bytes);
            }
            Err(corrupt) => {
                let problem = corrupt.problem().to_owned();
                return self.report_unsound(Kind::DirectoryDot, Some(block), || problem);
            }
        }
        self.index.nodes.push(0);
        if !has_two_records(&bytes) {
            return self.report_unsound(Kind::HtreeRoot, Some(block), || {
                "the record of '..' does not reach to the block's end".to_owned()
            });
        }
        let max = if volume.geometry.features.has_incompat(Incompat::LARGEDIR) {
            2
        } else {
            1
        };
        let info = RootInfo::decode(&bytes).and_then(|info| Ok((info, info.check(max)?)));
        let entries = htree::Index::root(&bytes, self.has_tail);
        let (info, version, entries) = match (info, entries) {
            (Ok((info, version)), Ok(entries)) => (info, version, entries),
            (Err(corrupt), _) | (_, Err(corrupt)) => {
                let problem = corrupt.problem().to_owned();
                return self.report_unsound(Kind::HtreeRoot, Some(block), || problem);
            }
        };
        let directory = self.subject.directory;
        let is_keyed = directory.folds_case && directory.is_encrypted;
        if (version == HashVersion::SipHash) != is_keyed {
            return self.report_unsound(Kind::HtreeRoot, Some(block), || {
                "SipHash is for names that are encrypted and whose case does not matter, and for those only"
                    .to_owned()
            });
        }
        self.index.hasher = Some(Hasher {
            version,
            signedness: volume
                .superblock
                .hash_signedness()
                .unwrap_or(Signedness::Signed),
            seed: volume.superblock.hash_seed,
            naming: directory.naming(),
        });
        self.check_checksum(block, &bytes);
        self.entries(&entries, block, info.indirect_levels, (0, END));
    }

    /// Checks the checksum of a node. The index is followed even if it is wrong.
    fn check_checksum(&self, block: u64, bytes: &[u8]) {
        let directory = self.subject.directory;
        if let Some(seed) = self.subject.tree.examination.volume.seed
            && let Err(corrupt) = htree::verify(
                InodeSeed::new(seed, self.subject.number(), directory.generation),
                bytes,
            )
        {
            self.subject.report(Kind::HtreeChecksum, Some(block), || {
                corrupt.problem().to_owned()
            });
        }
    }

    /// Reads a block of the index: its location and its bytes. `None` if it was visited before,
    /// does not exist, cannot be read or exceeds the budget.
    fn enter(&mut self, logical: u32, from: Option<u64>) -> Option<(u64, Vec<u8>)> {
        let block = self.mark(logical, from)?;
        if !self.subject.may_read(1) {
            self.index.is_sound = false;
            return None;
        }
        let read: io::Result<_> = self
            .subject
            .tree
            .examination
            .volume
            .block(BlockNumber(block));
        match read {
            Ok(bytes) => Some((block, bytes)),
            Err(error) => {
                self.report_unsound(Kind::Unreadable, Some(block), || {
                    format!("directory index: {error}")
                });
                None
            }
        }
    }

    fn mark(&mut self, logical: u32, from: Option<u64>) -> Option<u64> {
        let blocks = u32::try_from(self.visited.len() * 8).unwrap_or(u32::MAX);
        let place = self
            .subject
            .block(logical)
            .filter(|_| logical < self.subject.blocks().min(blocks));
        let Some(block) = place else {
            self.report_unsound(Kind::HtreeBlock, from, || {
                format!("leads to logical block {logical}, which is not there")
            });
            return None;
        };
        if !bitmap::set(&mut self.visited, logical) {
            self.report_unsound(Kind::HtreeBlock, from, || {
                format!("leads to logical block {logical} a second time")
            });
            return None;
        }
        Some(block)
    }

    /// Follows the entries of a node with `levels` levels of nodes below it, for the hashes in
    /// `range`.
    fn entries(&mut self, entries: &htree::Index<'_>, block: u64, levels: u8, range: (u32, u64)) {
        let mut start = range.0;
        for position in 0..entries.count() {
            let entry = entries.entry(position);
            if position > 0 {
                start = entry.hash;
                if start < self.last || u64::from(start) >= range.1 {
                    return self.report_unsound(Kind::HtreeOrder, Some(block), || {
                        format!("hash {start:#010x} of entry {position}")
                    });
                }
            }
            self.last = self.last.max(start);
            let end = if position + 1 < entries.count() {
                u64::from(entries.entry(position + 1).hash).min(range.1)
            } else {
                range.1
            };
            let logical = entry.block.get();
            if levels == 0 {
                self.leaf(logical, block, start, end);
            } else {
                self.node(logical, block, levels - 1, (start, end));
            }
        }
    }

    fn leaf(&mut self, logical: u32, from: u64, start: u32, end: u64) {
        if self.mark(logical, Some(from)).is_some() {
            self.index.leaves.push(Leaf {
                logical,
                continues: start & CONTINUED != 0,
                start: start & !CONTINUED,
                end,
            });
        }
    }

    fn node(&mut self, logical: u32, from: u64, levels: u8, range: (u32, u64)) {
        let Some((block, bytes)) = self.enter(logical, Some(from)) else {
            return;
        };
        self.index.nodes.push(logical);
        match htree::Index::node(&bytes, self.has_tail) {
            Ok(entries) => {
                self.check_checksum(block, &bytes);
                self.entries(&entries, block, levels, range);
            }
            Err(corrupt) => {
                let problem = corrupt.problem().to_owned();
                self.report_unsound(Kind::HtreeNode, Some(block), || problem);
            }
        }
    }

    fn check_all_visited(&mut self, blocks: u32) {
        if let Some(logical) = bitmap::next_zero(&self.visited, 0, blocks) {
            let block = self.subject.block(logical);
            self.report_unsound(Kind::HtreeBlock, block, || {
                format!("nothing leads to logical block {logical}")
            });
        }
    }
}
