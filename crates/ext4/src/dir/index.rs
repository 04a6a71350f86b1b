//! The index of a directory (htree): the path from a name's hash to a leaf.
//!
//! The root is block 0, after `.` and `..`; below it is at most one level of nodes, two with
//! `large_dir`. An index entry contains the lowest hash of a child and its block. The first entry
//! of a block has no hash of its own; its lowest hash is that of the parent's entry. If names of
//! one hash fill more than one leaf, the entries of the leaves that continue them have that hash
//! with its low bit set, and a lookup of such a name continues from leaf to leaf.
//!
//! A [`Path`] is a path that was walked: for each level the block, the position of the entry that
//! was followed, and the hash of the entry after it. It is valid while the directory's lock is held
//! and nothing is changed except through the path itself.

use pext4_ondisk::dirhash::Hasher;
use pext4_ondisk::htree::{Index, RootInfo};
use pext4_ondisk::{Corrupt, LogicalBlock};
use smallvec::{SmallVec, smallvec};

use super::blocks::{self, BlockKind, DirectoryBlocks, DirectorySettings, look};
use super::{CHANGED, FoundEntry, corrupt_in, leaf};
use crate::error::{Error, Result};

/// Root and levels below it.
const MAX_FRAMES: usize = 3;

const ROOT: LogicalBlock = LogicalBlock(0);

/// The target of a descent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seek<'a> {
    /// The leaf of a name.
    Name(&'a [u8]),
    /// The first leaf that may contain names of this hash.
    Hash(u32),
}

/// One level of a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The root or a node.
    pub(super) block: LogicalBlock,
    /// The entry that was followed.
    pub(super) position: usize,
    /// Whether the block has no room for another entry.
    pub(super) is_full: bool,
    /// Hash of the entry that was followed; `None` for the first.
    hash: Option<u32>,
    /// Hash of the entry after it; `None` for the last.
    next: Option<u32>,
}

/// A path from the root to a leaf.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) frames: SmallVec<[Frame; MAX_FRAMES]>,
    hasher: Hasher,
    hash: u32,
    leaf: LogicalBlock,
}

/// One step of a descent: through one index block to a child.
struct Step {
    frame: Frame,
    child: LogicalBlock,
}

struct Head {
    hasher: Hasher,
    levels: u8,
    hash: u32,
    step: Step,
}

impl Path {
    /// As [`Self::descend`], and `None` also if the index is damaged: each leaf says for itself
    /// whether it is sound, so the names are found without the index, as Linux finds them.
    pub(super) fn descend_if_sound<B: DirectoryBlocks>(
        blocks: &B,
        seek: Seek<'_>,
    ) -> Result<Option<Self>> {
        match Self::descend(blocks, seek) {
            Err(Error::Corrupt(_)) => Ok(None),
            descended => descended,
        }
    }

    /// Descends to a leaf; `None` if there is no index, or one of an unknown kind.
    pub(super) fn descend<B: DirectoryBlocks>(blocks: &B, seek: Seek<'_>) -> Result<Option<Self>> {
        if !blocks.is_indexed() || !blocks.settings().indexing {
            return Ok(None);
        }
        let settings = blocks.settings();
        let head = look(blocks, ROOT, BlockKind::Index, |bytes| {
            read_head(bytes, settings, seek)
        })?;
        let Some(head) = head else { return Ok(None) };
        let mut path = Self {
            frames: smallvec![head.step.frame],
            hasher: head.hasher,
            hash: head.hash,
            leaf: head.step.child,
        };
        for _ in 0..head.levels {
            path.step_down(blocks, |index| index.search(head.hash))?;
        }
        path.check_leaf(blocks)?;
        Ok(Some(path))
    }

    /// Reads the child of the last frame, which is a node, and follows the entry in it that
    /// `choose` returns.
    fn step_down<B: DirectoryBlocks>(
        &mut self,
        blocks: &B,
        choose: impl FnOnce(&Index<'_>) -> usize,
    ) -> Result<()> {
        let node = self.leaf;
        if node == ROOT || self.frames.iter().any(|frame| frame.block == node) {
            let above = self.frames.last().map_or(ROOT, |frame| frame.block);
            return Err(corrupt_in(
                blocks,
                above,
                "has an index that leads in circles",
            ));
        }
        let has_tail = blocks.settings().format.has_tail;
        let step = look(blocks, node, BlockKind::Index, |bytes| {
            let index = Index::node(bytes, has_tail)?;
            step_at(&index, node, choose(&index))
        })?;
        self.frames.push(step.frame);
        self.leaf = step.child;
        Ok(())
    }

    fn check_leaf<B: DirectoryBlocks>(&self, blocks: &B) -> Result<()> {
        let above = self.frames.last().map_or(ROOT, |frame| frame.block);
        if self.leaf == ROOT || self.frames.iter().any(|frame| frame.block == self.leaf) {
            return Err(corrupt_in(
                blocks,
                above,
                "has an index that leads in circles",
            ));
        }
        if self.leaf.get() >= blocks.count() {
            return Err(corrupt_in(
                blocks,
                above,
                "has an index that points behind its last block",
            ));
        }
        Ok(())
    }

    /// The leaf at its end.
    pub(super) fn leaf(&self) -> LogicalBlock {
        self.leaf
    }

    /// The hash function of this index.
    pub(super) fn hasher(&self) -> Hasher {
        self.hasher
    }

    /// The lowest hash of the next leaf; its low bit is set if that leaf continues this one's last
    /// hash.
    pub(super) fn next_hash(&self) -> Option<u32> {
        self.frames.iter().rev().find_map(|frame| frame.next)
    }

    /// The lowest and the highest hash that the leaf may contain.
    pub(super) fn leaf_range<B: DirectoryBlocks>(&self, blocks: &B) -> Result<(u32, u32)> {
        let own = self
            .frames
            .iter()
            .rev()
            .find_map(|frame| frame.hash)
            .unwrap_or(0);
        let highest = match self.next_hash() {
            None => 0xFFFF_FFFE,
            Some(next) if next & 1 == 1 => next & !1,
            Some(next) => next.saturating_sub(2),
        };
        if own & !1 > highest || self.next_hash().is_some_and(|next| next < own) {
            let above = self.frames.last().map_or(ROOT, |frame| frame.block);
            return Err(corrupt_in(blocks, above, "has index hashes out of order"));
        }
        Ok((own & !1, highest))
    }

    /// Moves to the next leaf, which must exist.
    pub(super) fn advance<B: DirectoryBlocks>(&mut self, blocks: &B) -> Result<()> {
        let depth = self.frames.len();
        let level = self.frames.iter().rposition(|frame| frame.next.is_some());
        let level = level.expect("called only if a next hash exists");
        let Frame {
            block, position, ..
        } = self.frames[level];
        let has_tail = blocks.settings().format.has_tail;
        let step = look(blocks, block, BlockKind::Index, |bytes| {
            step_at(&read_index(bytes, block, has_tail)?, block, position + 1)
        })?;
        self.frames.truncate(level);
        self.frames.push(step.frame);
        self.leaf = step.child;
        while self.frames.len() < depth {
            self.step_down(blocks, |_| 0)?;
        }
        self.check_leaf(blocks)
    }

    /// Whether at least `count` leaves continue the last hash of this one, each that of the leaf
    /// before it, as far as the index can be read.
    pub(super) fn has_run_of<B: DirectoryBlocks>(&self, blocks: &B, count: u32) -> bool {
        let continues = |path: &Self| path.next_hash().is_some_and(|next| next & 1 == 1);
        if !continues(self) {
            return false;
        }
        let mut path = self.clone();
        (0..count).all(|_| continues(&path) && path.advance(blocks).is_ok())
    }

    /// Whether names of the target's hash may continue in the next leaf.
    pub(super) fn hash_continues(&self) -> bool {
        self.next_hash() == Some(self.hash | 1)
    }

    /// Looks up a name in the leaf and in those that continue its hash.
    pub(super) fn find<B: DirectoryBlocks>(
        &mut self,
        blocks: &B,
        name: &[u8],
    ) -> Result<Option<FoundEntry>> {
        for _ in 0..blocks.count() {
            let found = leaf::find(blocks, self.leaf, BlockKind::Leaf, name)?;
            if found.is_some() || !self.hash_continues() {
                return Ok(found);
            }
            self.advance(blocks)?;
        }
        Err(corrupt_in(
            blocks,
            self.leaf,
            "is in an index that leads in circles",
        ))
    }
}

/// Updates of a path when the index grows.
impl Path {
    /// After the root's entries were moved to `node`, now its only child.
    pub(super) fn enter_level(&mut self, node: LogicalBlock) {
        let root = &mut self.frames[0];
        let above = Frame {
            position: 0,
            is_full: false,
            hash: None,
            next: None,
            ..*root
        };
        root.block = node;
        self.frames.insert(0, above);
    }

    /// After the entries of the node at `level` from `half` on were moved to `right`, the next
    /// child of its parent.
    pub(super) fn choose_half(&mut self, level: usize, half: usize, right: LogicalBlock) {
        let frame = &mut self.frames[level];
        if frame.position >= half {
            frame.position -= half;
            frame.block = right;
            self.frames[level - 1].position += 1;
        }
    }
}

type Decoded<T> = std::result::Result<T, Corrupt>;

/// The root's header and its entry for the target; `None` for an index of an unknown kind.
fn read_head(bytes: &[u8], settings: &DirectorySettings, seek: Seek<'_>) -> Decoded<Option<Head>> {
    let info = RootInfo::decode(bytes)?;
    let Some(hasher) = known_hasher(&info, settings) else {
        return Ok(None);
    };
    info.check(settings.max_levels())?;
    let hash = match seek {
        Seek::Name(name) => blocks::hash(&hasher, name),
        Seek::Hash(hash) => hash,
    };
    let index = Index::root(bytes, settings.format.has_tail)?;
    let step = step_at(&index, ROOT, index.search(hash))?;
    Ok(Some(Head {
        hasher,
        levels: info.indirect_levels,
        hash,
        step,
    }))
}

/// The hash function that the root of a directory's index names; `None` if there is no index, or
/// one of an unknown kind, or its root cannot be read.
pub(super) fn hasher_of<B: DirectoryBlocks>(blocks: &B) -> Option<Hasher> {
    let settings = blocks.settings();
    if !blocks.is_indexed() || !settings.indexing {
        return None;
    }
    let read = look(blocks, ROOT, BlockKind::Index, |bytes| {
        Ok(known_hasher(&RootInfo::decode(bytes)?, settings))
    });
    read.ok().flatten()
}

/// The hasher of an index; `None` if it is of an unknown kind.
fn known_hasher(info: &RootInfo, settings: &DirectorySettings) -> Option<Hasher> {
    let hasher = info
        .hash_version()
        .and_then(|version| settings.hasher_of(version));
    hasher.filter(|_| info.has_known_flags())
}

/// Checks the entries of a block of an index in a directory of `count` blocks: a search in hashes
/// that are out of order would pass by names.
pub(super) fn check(
    bytes: &[u8],
    block: LogicalBlock,
    settings: &DirectorySettings,
    count: u32,
) -> Decoded<()> {
    if block == ROOT && known_hasher(&RootInfo::decode(bytes)?, settings).is_none() {
        return Ok(());
    }
    read_index(bytes, block, settings.format.has_tail)?.check(count)
}

/// A block of an index: the root, or a node.
pub(super) fn read_index(bytes: &[u8], block: LogicalBlock, has_tail: bool) -> Decoded<Index<'_>> {
    if block == ROOT {
        Index::root(bytes, has_tail)
    } else {
        Index::node(bytes, has_tail)
    }
}

/// A step through the entry at `position`.
///
/// # Errors
///
/// `Corrupt` if the block has no such entry: it had one before, so the image uses the block in two
/// places.
fn step_at(index: &Index<'_>, block: LogicalBlock, position: usize) -> Decoded<Step> {
    let behind = position + 1;
    if position >= index.count() {
        return Err(Corrupt::new("directory", CHANGED));
    }
    Ok(Step {
        frame: Frame {
            block,
            position,
            is_full: index.is_full(),
            hash: (position > 0).then(|| index.entry(position).hash),
            next: (behind < index.count()).then(|| index.entry(behind).hash),
        },
        child: index.entry(position).block,
    })
}
