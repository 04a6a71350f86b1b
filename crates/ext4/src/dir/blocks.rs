//! What a directory needs from its file, and from the volume.

use pext4_ondisk::directory::{self, Format};
use pext4_ondisk::dirhash::{HashVersion, Hasher};
use pext4_ondisk::htree;
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};

use crate::error::{Error, Result};

/// The form of a directory's block, which decides where its checksum lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Entries, and the leaf's checksum tail.
    Leaf,
    /// The root or a node of an index, and its own checksum tail.
    Index,
    /// Either, as [`kind_of`] tells from the bytes: an indexed directory is being searched block by
    /// block. Never asked of block 0, never given to `edit` or `append`.
    Either,
}

/// One directory's file. The caller holds the directory's lock.
pub trait DirectoryBlocks {
    /// The directory.
    fn inode(&self) -> InodeNumber;

    /// Blocks of the file: its size divided by the block size.
    fn count(&self) -> u32;

    /// Shows a block below [`Self::count`], its checksum verified according to `kind`.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a hole or a wrong checksum, `Io`, and whatever `look` answers.
    fn read<R>(
        &self,
        block: LogicalBlock,
        kind: BlockKind,
        look: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R>;

    /// Changes a block below [`Self::count`] within the caller's transaction. From now on its
    /// checksum is made according to `kind`, which differs from before when block 0 becomes the
    /// root of an index.
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

    /// Makes sure that the next `blocks` calls of [`Self::append`] find space. Called at most once
    /// an operation, before its first change; always followed by that many appends, unless the
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
    /// `Io`; never for want of space once it was reserved.
    fn append(&mut self, kind: BlockKind) -> Result<LogicalBlock>;

    /// Whether the inode has the flag INDEX.
    fn is_indexed(&self) -> bool;

    /// Sets the inode's flag INDEX.
    fn set_indexed(&mut self);

    /// How this volume writes directories.
    fn settings(&self) -> &DirectorySettings;

    /// How this directory's leaves are laid out.
    fn format(&self) -> Format {
        if self.is_inline() {
            self.settings().format.inline()
        } else {
            self.settings().format
        }
    }

    /// Whether the directory lies in its inode. Then its blocks are regions of the inode, one or
    /// two leaves without `.` and `..`; the following methods are for such directories alone.
    fn is_inline(&self) -> bool;

    /// The parent that a directory in its inode names.
    fn inline_parent(&self) -> InodeNumber;

    /// Lets a directory in its inode name another parent.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn set_inline_parent(&mut self, parent: InodeNumber) -> Result<()>;

    /// Gives the second region that many bytes more, free; false, and nothing changed, where the
    /// inode lacks the room.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn widen_inline(&mut self, bytes: usize) -> Result<bool>;

    /// Takes all names out of the inode: the directory has no block then, and space for one is
    /// reserved.
    ///
    /// # Errors
    ///
    /// As [`Self::reserve`]; the directory is as it was then.
    fn end_inline(&mut self) -> Result<()>;
}

/// How a volume writes directories. The same for all of them and for the whole mount, except that
/// `indexing` is off for directories whose names are folded or encrypted.
#[derive(Clone, Copy, Debug)]
pub struct DirectorySettings {
    /// Bytes in a block.
    pub block_size: u32,
    /// Whether blocks end in checksum tails, and whether entries tell the kind of file.
    pub format: Format,
    /// Directories may be indexed (`dir_index`).
    pub indexing: bool,
    /// Directories may exceed 2 GiB and their index may have a third level (`large_dir`).
    pub large: bool,
    /// Hash function of new indexes (`s_def_hash_version`, `s_flags`, `s_hash_seed`).
    pub hasher: Hasher,
    /// Chosen at random at each mount: keeps the author of an image from making names whose
    /// cookies collide.
    pub cookie_key: u64,
}

impl DirectorySettings {
    /// The most blocks a directory may have.
    pub(super) fn max_blocks(&self) -> u32 {
        directory::max_blocks(self.large, self.block_size)
    }

    /// The most levels of nodes between an index's root and its leaves.
    pub(super) fn max_levels(&self) -> u8 {
        if self.large { 2 } else { 1 }
    }

    /// The hash function of an index of that version; `None` if it is not known here.
    pub(super) fn hasher_of(&self, version: HashVersion) -> Option<Hasher> {
        match version {
            HashVersion::Legacy | HashVersion::HalfMd4 | HashVersion::Tea => Some(Hasher {
                version,
                ..self.hasher
            }),
            HashVersion::SipHash => None,
        }
    }

    /// What orders the names of a directory without a usable index.
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

/// The hash of a name by one of the hash functions above.
pub(super) fn hash(hasher: &Hasher, name: &[u8]) -> u32 {
    hasher
        .hash(name)
        .expect("hash functions with a key are not handed out")
        .major
}

/// Whether a block of an indexed directory, not its first, is a leaf or a node of the index.
///
/// A node begins with an unused entry as long as the block, so that an old kernel sees an empty
/// leaf. An empty leaf without a tail looks the same, but then there are no checksums either.
#[must_use]
pub fn kind_of(bytes: &[u8]) -> BlockKind {
    if htree::looks_like_node(bytes) {
        BlockKind::Index
    } else {
        BlockKind::Leaf
    }
}

/// Shows a block and says where it lies if its bytes are wrong.
pub(super) fn look<B: DirectoryBlocks, R>(
    blocks: &B,
    block: LogicalBlock,
    kind: BlockKind,
    look: impl FnOnce(&[u8]) -> std::result::Result<R, Corrupt>,
) -> Result<R> {
    let inode = blocks.inode();
    if block.get() >= blocks.count() {
        let corrupt = Corrupt::new("directory", "points behind its last block");
        return Err(place(inode, block, corrupt));
    }
    blocks.read(block, kind, |bytes| {
        look(bytes).map_err(|corrupt| place(inode, block, corrupt))
    })
}

/// Changes a block and says where it lies if its bytes are wrong.
pub(super) fn change<B: DirectoryBlocks, R>(
    blocks: &mut B,
    block: LogicalBlock,
    kind: BlockKind,
    change: impl FnOnce(&mut [u8]) -> std::result::Result<R, Corrupt>,
) -> Result<R> {
    let inode = blocks.inode();
    blocks
        .edit(block, kind, change)?
        .map_err(|corrupt| place(inode, block, corrupt))
}

/// Names the directory and its block in what a decoder found wrong.
pub(super) fn place(inode: InodeNumber, block: LogicalBlock, corrupt: Corrupt) -> Error {
    let problem = format!("{} (block {block} of the directory)", corrupt.problem());
    Error::Corrupt(Corrupt::new(corrupt.structure(), problem).in_inode(inode))
}
