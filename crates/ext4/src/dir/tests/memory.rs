//! A directory's file in memory, which asserts that callers follow the rules of the trait.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use pext4_ondisk::casefold::Naming;
use pext4_ondisk::directory::{self, Fingerprints, Format};
use pext4_ondisk::dirhash::{HashVersion, Hasher, Signedness};
use pext4_ondisk::inode::inline;
use pext4_ondisk::{InodeNumber, LogicalBlock};

use super::super::leaf_view::{LeafEdit, LeafView};
use super::super::{BlockKind, DirectoryBlocks, DirectorySettings, init, kind_of};
use crate::error::{Refusal, Result};
use crate::inode::name_orders::NameOrder;

pub(super) const SELF: InodeNumber = InodeNumber(12);
pub(super) const PARENT: InodeNumber = InodeNumber(2);

/// One directory.
#[derive(Clone)]
pub(super) struct Memory {
    pub(super) blocks: Vec<(Vec<u8>, BlockKind)>,
    pub(super) indexed: bool,
    pub(super) settings: DirectorySettings,
    /// Number of free blocks of the volume.
    pub(super) space: u32,
    /// False if blocks contain arbitrary bytes: then kinds are not compared, and operations that
    /// failed in the middle may leave a reservation.
    pub(super) strict: bool,
    pub(super) reads: Cell<u64>,
    /// The orders of its names that were kept.
    pub(super) orders: RefCell<Vec<NameOrder>>,
    /// While it is stored in its inode: its parent, and the maximum size of its regions in bytes.
    pub(super) inline: Option<(InodeNumber, usize)>,
    /// Leaves and their fingerprints.
    fingerprints: RefCell<Kept>,
    reserved: u32,
    changed: BTreeSet<u32>,
    added: u32,
}

/// What an operation did to the blocks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) changed: u32,
    pub(super) added: u32,
}

pub(super) fn settings(block_size: u32) -> DirectorySettings {
    DirectorySettings {
        block_size,
        format: Format {
            has_tail: true,
            has_file_types: true,
            naming: Naming::Exact,
        },
        fingerprints: true,
        indexing: true,
        large: false,
        hasher: Hasher {
            version: HashVersion::HalfMd4,
            signedness: Signedness::Signed,
            seed: [0x1234_5678, 0x9ABC_DEF0, 7, 0xFFFF_0000],
            naming: Naming::Exact,
        },
        cookie_key: 0x0123_4567_89AB_CDEF,
    }
}

/// The fingerprints of leaves, by block, with the bytes that they describe: tests also change the
/// blocks themselves.
#[derive(Clone, Default)]
struct Kept(BTreeMap<u32, (Vec<u8>, Fingerprints)>);

impl Kept {
    /// Those of a leaf with these bytes, which are made if they are not kept; none if the leaf is
    /// damaged.
    fn of(
        &mut self,
        block: LogicalBlock,
        bytes: &[u8],
        format: Format,
    ) -> Option<&mut Fingerprints> {
        let kept = self.0.get(&block.get());
        if kept.is_none_or(|(described, _)| *described != bytes) {
            self.0.remove(&block.get());
            let made = Fingerprints::of(bytes, format).ok()?;
            self.0.insert(block.get(), (bytes.to_vec(), made));
        }
        self.0
            .get_mut(&block.get())
            .map(|(_, fingerprints)| fingerprints)
    }

    /// After a change of a leaf and of its fingerprints: they describe it.
    fn check(&mut self, block: LogicalBlock, bytes: &[u8], format: Format) {
        if let Some((described, fingerprints)) = self.0.get_mut(&block.get()) {
            let anew = Fingerprints::of(bytes, format);
            assert_eq!(anew.as_ref(), Ok(&*fingerprints), "those of block {block}");
            bytes.clone_into(described);
        }
    }
}

impl Memory {
    pub(super) fn new(settings: DirectorySettings) -> Self {
        let mut directory = Self {
            blocks: Vec::new(),
            indexed: false,
            settings,
            space: u32::MAX,
            strict: true,
            reads: Cell::new(0),
            orders: RefCell::default(),
            inline: None,
            fingerprints: RefCell::default(),
            reserved: 0,
            changed: BTreeSet::new(),
            added: 0,
        };
        init(&mut directory, PARENT).expect("there is space");
        directory.cost();
        directory
    }

    /// A directory in an inode with room for this many bytes of names.
    pub(super) fn inline(settings: DirectorySettings, most: usize) -> Self {
        let mut directory = Self::new(settings);
        let area = inline::empty_directory(PARENT, settings.format);
        let region = inline::region(&area, 0).expect("the first");
        directory.blocks = vec![(area[region].to_vec(), BlockKind::Leaf)];
        directory.inline = Some((PARENT, most));
        directory
    }

    /// What was done since the last call.
    pub(super) fn cost(&mut self) -> Cost {
        assert_eq!(self.reserved, 0, "what was reserved is used");
        let cost = Cost {
            changed: u32::try_from(self.changed.len()).expect("few"),
            added: self.added,
        };
        self.changed.clear();
        self.added = 0;
        cost
    }
}

impl DirectoryBlocks for Memory {
    fn inode(&self) -> InodeNumber {
        SELF
    }

    fn count(&self) -> u32 {
        u32::try_from(self.blocks.len()).expect("tests are small")
    }

    fn read<R>(
        &self,
        block: LogicalBlock,
        kind: BlockKind,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        self.reads.set(self.reads.get() + 1);
        let (bytes, stored) = &self.blocks[block.get() as usize];
        if kind == BlockKind::Either {
            assert_ne!(block.get(), 0, "the first block's kind is always known");
        } else if self.strict {
            let kind = if kind == BlockKind::Dots {
                BlockKind::Index
            } else {
                kind
            };
            assert_eq!(kind, *stored, "block {block} is read as what it is");
        }
        if self.strict && self.format().has_tail && block.get() != 0 {
            assert_eq!(
                kind_of(bytes),
                *stored,
                "block {block} looks like what it is"
            );
        }
        look(bytes)
    }

    fn edit<R>(
        &mut self,
        block: LogicalBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        assert!(!matches!(kind, BlockKind::Either | BlockKind::Dots));
        self.orders.take();
        let (bytes, stored) = &mut self.blocks[block.get() as usize];
        assert!(
            !self.strict || block.get() == 0 || kind == *stored,
            "only block 0 changes its kind"
        );
        *stored = kind;
        self.changed.insert(block.get());
        Ok(change(bytes))
    }

    fn read_leaf<R>(
        &self,
        block: LogicalBlock,
        look: impl FnOnce(LeafView<'_>) -> Result<R>,
    ) -> Result<R> {
        let format = self.format();
        self.read(block, BlockKind::Leaf, |bytes| {
            let mut kept = self.fingerprints.borrow_mut();
            let fingerprints = match self.settings.fingerprints {
                true => kept.of(block, bytes, format),
                false => None,
            };
            look(LeafView::new(bytes, fingerprints.as_deref()))
        })
    }

    fn edit_leaf<R>(
        &mut self,
        block: LogicalBlock,
        change: impl FnOnce(LeafEdit<'_>) -> R,
    ) -> Result<R> {
        let format = self.format();
        let has_fingerprints = self.settings.fingerprints;
        let mut kept = std::mem::take(self.fingerprints.get_mut());
        let answer = self.edit(block, BlockKind::Leaf, |bytes| {
            let fingerprints = match has_fingerprints {
                true => kept.of(block, bytes, format),
                false => None,
            };
            let answer = change(LeafEdit {
                bytes,
                fingerprints,
            });
            kept.check(block, bytes, format);
            answer
        });
        self.fingerprints.replace(kept);
        answer
    }

    fn reserve(&mut self, blocks: u32) -> Result<()> {
        if self.strict {
            assert_eq!(self.reserved, 0, "reserved once an operation");
            assert!(self.changed.is_empty(), "reserved before the first change");
        }
        if blocks > self.space {
            return Err(Refusal::NoSpace.into());
        }
        self.space -= blocks;
        self.reserved = blocks;
        Ok(())
    }

    fn append(&mut self, kind: BlockKind) -> Result<LogicalBlock> {
        self.reserved = self
            .reserved
            .checked_sub(1)
            .expect("only what was reserved is appended");
        let block = self.count();
        self.orders.take();
        self.blocks
            .push((vec![0; self.settings.block_size as usize], kind));
        self.changed.insert(block);
        self.added += 1;
        Ok(LogicalBlock(block))
    }

    fn is_indexed(&self) -> bool {
        self.indexed
    }

    fn set_indexed(&mut self, indexed: bool) {
        self.indexed = indexed;
    }

    fn settings(&self) -> &DirectorySettings {
        &self.settings
    }

    fn order(&self, cookie: u64) -> Option<NameOrder> {
        let orders = self.orders.borrow();
        orders.iter().find(|order| order.covers(cookie)).cloned()
    }

    fn most_ordered(&self) -> usize {
        1 << 20
    }

    fn begin_order(&self) -> u32 {
        1
    }

    fn keep_order(&self, _: u32, order: &NameOrder) {
        self.orders.borrow_mut().push(NameOrder::clone(order));
    }

    fn is_inline(&self) -> bool {
        self.inline.is_some()
    }

    fn inline_parent(&self) -> InodeNumber {
        self.inline.expect("it is inline").0
    }

    fn set_inline_parent(&mut self, parent: InodeNumber) -> Result<()> {
        self.inline.as_mut().expect("it is inline").0 = parent;
        Ok(())
    }

    fn widen_inline(&mut self, bytes: usize) -> Result<bool> {
        let used: usize = self.blocks.iter().map(|(region, _)| region.len()).sum();
        if used + bytes > self.inline.expect("it is inline").1 {
            return Ok(false);
        }
        let format = self.format();
        if self.blocks.len() == 1 {
            self.blocks.push((Vec::new(), BlockKind::Leaf));
        }
        let region = &mut self.blocks[1].0;
        let start = region.len();
        region.resize(start + bytes, 0);
        directory::init_empty(&mut region[start..], format);
        self.changed.insert(1);
        Ok(true)
    }

    fn end_inline(&mut self) -> Result<()> {
        // A directory that moves out of its inode has changed nothing else before.
        self.changed.clear();
        self.reserve(1)?;
        self.inline = None;
        self.blocks.clear();
        Ok(())
    }
}
