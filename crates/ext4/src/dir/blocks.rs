//! The blocks of a directory as its algorithms see them: a trait, so that they are tested in memory
//! too. And the volume's settings for directories.

use pext4_ondisk::directory::{self, Format};
use pext4_ondisk::dirhash::{HashVersion, Hasher};
use pext4_ondisk::htree;
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};

use super::leaf_view::{LeafEdit, LeafView};
use crate::error::{Error, Result};
use crate::inode::name_orders::NameOrder;

/// The kind of a directory's block, which determines where its checksum is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Entries, and the leaf's checksum tail.
    Leaf,
    /// The root or a node of an index, and its own checksum tail.
    Index,
    /// The root of an index, of which only `.` and `..` are read, so that its entries may be out of
    /// order; never passed to `edit` or `append`.
    Dots,
    /// Either; [`kind_of`] determines it from the bytes. Used to search an indexed directory block
    /// by block; never for block 0, and never passed to `edit` or `append`.
    Either,
}

/// One directory's file. The caller holds the directory's lock.
pub trait DirectoryBlocks {
    /// The directory.
    fn inode(&self) -> InodeNumber;

    /// Number of blocks of the file: its size divided by the block size.
    fn count(&self) -> u32;

    /// Calls `look` with a block below [`Self::count`], whose checksum was verified according to
    /// `kind`.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a hole or a wrong checksum, `Io`, and the errors of `look`.
    fn read<R>(
        &self,
        block: LogicalBlock,
        kind: BlockKind,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R>;

    /// As [`Self::read`] with a leaf, and with the fingerprints of its records if they are kept.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn read_leaf<R>(
        &self,
        block: LogicalBlock,
        look: impl FnOnce(LeafView<'_>) -> Result<R>,
    ) -> Result<R>;

    /// Changes a block below [`Self::count`] within the caller's transaction. Its checksum is
    /// computed according to `kind` from now on; `kind` changes when block 0 becomes the root of an
    /// index.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn edit<R>(
        &mut self,
        block: LogicalBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R>;

    /// As [`Self::edit`] with a leaf, whose fingerprints stay if `change` changes them as well.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn edit_leaf<R>(
        &mut self,
        block: LogicalBlock,
        change: impl FnOnce(LeafEdit<'_>) -> R,
    ) -> Result<R>;

    /// Makes sure that the next `blocks` calls of [`Self::append`] find space. Called at most once
    /// per operation, before its first change; always followed by that many appends, unless the
    /// operation fails.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)`, `Io`.
    fn reserve(&mut self, blocks: u32) -> Result<()>;

    /// Adds a zeroed block at the end; the size grows by it.
    ///
    /// # Errors
    ///
    /// `Io`; never for lack of space after [`Self::reserve`].
    fn append(&mut self, kind: BlockKind) -> Result<LogicalBlock>;

    /// Whether the inode has the flag INDEX.
    fn is_indexed(&self) -> bool;

    /// Sets or clears the inode's flag INDEX. Without it, all blocks are leaves: the root and the
    /// nodes of an index read as leaves with hardly a name.
    fn set_indexed(&mut self, indexed: bool);

    /// How this volume writes directories.
    fn settings(&self) -> &DirectorySettings;

    /// The layout of this directory's leaves.
    fn format(&self) -> Format {
        if self.is_inline() {
            self.settings().format.inline()
        } else {
            self.settings().format
        }
    }

    /// The locations of its names from this cookie on in the order of their cookies, if that order
    /// was kept and no block has changed since.
    fn order(&self, cookie: u64) -> Option<NameOrder>;

    /// Maximum number of names of an order that is kept.
    fn most_ordered(&self) -> usize;

    /// Called before the first block is read for an order; returns the mark with which it is kept.
    fn begin_order(&self) -> u32;

    /// Keeps that order for later replies of listings.
    fn keep_order(&self, mark: u32, order: &NameOrder);

    /// Whether the directory is stored in its inode. Then its blocks are regions of the inode, one
    /// or two leaves without `.` and `..`. The following methods are only for such directories.
    fn is_inline(&self) -> bool;

    /// The stored parent of a directory in its inode.
    fn inline_parent(&self) -> InodeNumber;

    /// Sets the stored parent of a directory in its inode.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn set_inline_parent(&mut self, parent: InodeNumber) -> Result<()>;

    /// Adds `bytes` free bytes to the second region. False, and nothing changed, if the inode has
    /// no room for them.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn widen_inline(&mut self, bytes: usize) -> Result<bool>;

    /// Removes all names from the inode and reserves space for one block; the directory has no
    /// block yet.
    ///
    /// # Errors
    ///
    /// As [`Self::reserve`]; then the directory is unchanged.
    fn end_inline(&mut self) -> Result<()>;
}

/// How a volume writes directories. The same during the whole mount, and for all directories that
/// compare names alike ([`VolumeDirectories`](super::VolumeDirectories)).
#[derive(Clone, Copy, Debug)]
pub struct DirectorySettings {
    /// Bytes in a block.
    pub block_size: u32,
    /// Whether blocks end in checksum tails, whether entries store the kind of file, and how names
    /// are compared.
    pub format: Format,
    /// Names in a leaf that changes are found by fingerprints.
    pub fingerprints: bool,
    /// Directories may be indexed (`dir_index`).
    pub indexing: bool,
    /// Directories may exceed 2 GiB and their index may have a third level (`large_dir`).
    pub large: bool,
    /// Hash function of new indexes (`s_def_hash_version`, `s_flags`, `s_hash_seed`).
    pub hasher: Hasher,
    /// Chosen at random at each mount, so that the author of an image cannot choose names whose
    /// cookies collide.
    pub cookie_key: u64,
}

impl DirectorySettings {
    /// Maximum number of blocks of a directory.
    pub(super) fn max_blocks(&self) -> u32 {
        directory::max_blocks(self.large, self.block_size)
    }

    /// Maximum number of levels of nodes between an index's root and its leaves.
    pub(super) fn max_levels(&self) -> u8 {
        if self.large { 2 } else { 1 }
    }

    /// The hash function of an index of this version; `None` if it is not supported.
    pub(super) fn hasher_of(&self, version: HashVersion) -> Option<Hasher> {
        match version {
            HashVersion::Legacy | HashVersion::HalfMd4 | HashVersion::Tea => Some(Hasher {
                version,
                ..self.hasher
            }),
            HashVersion::SipHash => None,
        }
    }

    /// The hash function that orders the listing of a directory without a usable index.
    pub(super) fn listing_hasher(&self) -> Hasher {
        let substitute = Hasher {
            version: HashVersion::HalfMd4,
            ..self.hasher
        };
        self.hasher_of(self.hasher.version).unwrap_or(substitute)
    }

    /// The hash function of a new index; `None` if new directories stay linear.
    pub(super) fn hasher_of_new(&self) -> Option<Hasher> {
        if self.indexing {
            self.hasher_of(self.hasher.version)
        } else {
            None
        }
    }
}

/// The hash of a name by a hash function from [`DirectorySettings`].
pub(super) fn hash(hasher: &Hasher, name: &[u8]) -> u32 {
    hasher
        .hash(name)
        .expect("hash functions with a key are not handed out")
        .major
}

/// Whether a block of an indexed directory, other than its first, is a leaf or a node of the index.
///
/// A node starts with an unused entry as long as the block, so that an old kernel sees an empty
/// leaf. An empty leaf without a checksum tail looks the same, but then there is no checksum to
/// verify.
#[must_use]
pub fn kind_of(bytes: &[u8]) -> BlockKind {
    if htree::looks_like_node(bytes) {
        BlockKind::Index
    } else {
        BlockKind::Leaf
    }
}

/// Calls `look` with a block, and adds the block's location to a `Corrupt` that it returns.
pub(super) fn look<B: DirectoryBlocks, R>(
    blocks: &B,
    block: LogicalBlock,
    kind: BlockKind,
    look: impl FnOnce(&[u8]) -> std::result::Result<R, Corrupt>,
) -> Result<R> {
    let inode = blocks.inode();
    check_exists(blocks, block)?;
    blocks.read(block, kind, |bytes| {
        look(bytes).map_err(|corrupt| corrupt_at(inode, block, corrupt))
    })
}

/// As [`look`], with a leaf and the fingerprints of its records.
pub(super) fn look_at_leaf<B: DirectoryBlocks, R>(
    blocks: &B,
    block: LogicalBlock,
    look: impl FnOnce(LeafView<'_>) -> std::result::Result<R, Corrupt>,
) -> Result<R> {
    let inode = blocks.inode();
    check_exists(blocks, block)?;
    blocks.read_leaf(block, |leaf| {
        look(leaf).map_err(|corrupt| corrupt_at(inode, block, corrupt))
    })
}

fn check_exists<B: DirectoryBlocks>(blocks: &B, block: LogicalBlock) -> Result<()> {
    if block.get() < blocks.count() {
        return Ok(());
    }
    let corrupt = Corrupt::new("directory", "points behind its last block");
    Err(corrupt_at(blocks.inode(), block, corrupt))
}

/// Changes a block, and adds the block's location to a `Corrupt` that `change` returns.
pub(super) fn change<B: DirectoryBlocks, R>(
    blocks: &mut B,
    block: LogicalBlock,
    kind: BlockKind,
    change: impl FnOnce(&mut [u8]) -> std::result::Result<R, Corrupt>,
) -> Result<R> {
    let inode = blocks.inode();
    blocks
        .edit(block, kind, change)?
        .map_err(|corrupt| corrupt_at(inode, block, corrupt))
}

/// As [`change`], with a leaf and the fingerprints of its records.
pub(super) fn change_leaf<B: DirectoryBlocks, R>(
    blocks: &mut B,
    block: LogicalBlock,
    change: impl FnOnce(LeafEdit<'_>) -> std::result::Result<R, Corrupt>,
) -> Result<R> {
    let inode = blocks.inode();
    blocks
        .edit_leaf(block, change)?
        .map_err(|corrupt| corrupt_at(inode, block, corrupt))
}

/// Adds the directory and its block to the error of a decoder.
pub(super) fn corrupt_at(inode: InodeNumber, block: LogicalBlock, corrupt: Corrupt) -> Error {
    let problem = format!("{} (block {block} of the directory)", corrupt.problem());
    Error::Corrupt(Corrupt::new(corrupt.structure(), problem).in_inode(inode))
}
