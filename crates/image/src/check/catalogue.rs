//! Every kind of finding: its name, its meaning and its grade.
//!
//! Names are stable, since scripts depend on them. The doc comment of a kind is its meaning in
//! `docs/CHECK.md`; a test compares the two.

use std::fmt;

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grade {
    /// Worth knowing; nothing is wrong with the file system.
    Note,
    /// Wrong, but what is stored can still be reached as it was stored.
    Problem,
    /// Files, names or contents are lost, or will be if the image is written to.
    Serious,
    /// So wrong that the rest could not be checked.
    Fatal,
}

impl Grade {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Problem => "problem",
            Self::Serious => "serious",
            Self::Fatal => "fatal",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

macro_rules! catalogue {
    ($( #[doc = $meaning:literal] $kind:ident = $name:literal, $grade:ident; )*) => {
        /// What is wrong, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Kind {
            $( #[doc = $meaning] $kind, )*
        }

        impl Kind {
            /// All of them, in the order of the passes.
            pub const ALL: &[Self] = &[$( Self::$kind, )*];

            /// The stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$kind => $name, )*
                }
            }

            /// How grave it is.
            #[must_use]
            pub const fn grade(self) -> Grade {
                match self {
                    $( Self::$kind => Grade::$grade, )*
                }
            }

            /// What it means, in one sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self {
                    $( Self::$kind => $meaning, )*
                }
                .trim()
            }
        }
    };
}

catalogue! {
    /// The primary superblock is no superblock or describes nothing possible; a backup was used.
    SuperblockLost = "superblock-lost", Serious;
    /// The superblock's checksum is wrong.
    SuperblockChecksum = "superblock-checksum", Serious;
    /// The file system is longer than what holds it.
    DeviceTooSmall = "device-too-small", Fatal;
    /// Features are set that exclude each other, or one without another that it needs.
    FeaturesConflict = "features-conflict", Problem;
    /// Something is used whose feature is not set.
    FeatureMissing = "feature-missing", Problem;
    /// A field of the superblock holds what it cannot.
    SuperblockField = "superblock-field", Problem;
    /// The file system was not closed and has no journal to replay.
    StateUnclean = "state-unclean", Note;
    /// The file system was marked as having errors by whoever used it, and not checked since.
    StateErrors = "state-errors", Note;
    /// The superblock remembers errors that were noticed while it was mounted.
    ErrorRecord = "error-record", Note;
    /// The journal holds transactions; what follows is true of the image after their replay.
    JournalPending = "journal-pending", Note;
    /// The journal holds transactions, but the superblock does not ask for their replay.
    JournalUnflagged = "journal-unflagged", Problem;
    /// The journal cannot be replayed.
    JournalUnreplayable = "journal-unreplayable", Serious;
    /// A superseded block of the journal is damaged: Linux refuses this log, pext4 replays it.
    JournalSupersededDamage = "journal-superseded-damage", Problem;
    /// The journal waits for a replay that this checker cannot do; what follows was not checked.
    JournalUnsupported = "journal-unsupported", Note;
    /// The journal's superblock is none, or contradicts the journal.
    JournalSuperblock = "journal-superblock", Serious;
    /// The superblock's copy of the journal's block map differs from the journal's inode.
    JournalBackup = "journal-backup", Note;
    /// A backup superblock cannot be used, or describes another file system than the primary.
    BackupSuperblock = "backup-superblock", Note;
    /// A backup of group descriptors places a group's metadata elsewhere than the primary does.
    BackupDescriptors = "backup-descriptors", Note;
    /// Multiple mount protection has no sound block, or names a user other than a mount.
    MmpBlock = "mmp-block", Problem;
    /// Multiple mount protection says that a mount uses the file system, or used it last.
    MmpInUse = "mmp-in-use", Note;
    /// A group descriptor's checksum is wrong.
    DescriptorChecksum = "descriptor-checksum", Serious;
    /// A group's bitmap or inode table lies where it cannot.
    DescriptorPlace = "descriptor-place", Serious;
    /// A group descriptor's flags cannot be.
    DescriptorFlags = "descriptor-flags", Problem;
    /// Metadata of the file system lies on other metadata.
    MetadataOverlap = "metadata-overlap", Serious;
    /// A block could not be read.
    Unreadable = "unreadable", Serious;
    /// There is more of something than is kept, and the rest of it was not checked.
    LimitReached = "limit-reached", Note;

    /// An inode's checksum is wrong.
    InodeChecksum = "inode-checksum", Serious;
    /// An inode's extra part has an impossible size.
    InodeExtraSize = "inode-extra-size", Problem;
    /// An inode in use is of no known kind.
    InodeMode = "inode-mode", Serious;
    /// An inode in use has a time of deletion.
    InodeDeletionTime = "inode-deletion-time", Problem;
    /// An inode without links is neither deleted nor waiting for it.
    InodeNotDeleted = "inode-not-deleted", Problem;
    /// An inode's flags do not suit its kind or the features.
    InodeFlags = "inode-flags", Problem;
    /// A field of an inode must be zero and is not.
    InodeField = "inode-field", Problem;
    /// An inode's time is encoded as only an old bug did it.
    InodeTime = "inode-time", Problem;
    /// An inode's size does not suit the blocks it has.
    InodeSize = "inode-size", Serious;
    /// An inode's count of blocks is wrong.
    InodeBlocks = "inode-blocks", Problem;
    /// A device, pipe or socket has a size.
    SpecialFile = "special-file", Problem;
    /// A symbolic link's target is not what its size says.
    Symlink = "symlink", Serious;
    /// An inode that is kept for later use is in use.
    ReservedInode = "reserved-inode", Problem;
    /// The root directory is no directory.
    RootMissing = "root-missing", Serious;
    /// The journal's inode is no sound journal file.
    JournalInode = "journal-inode", Serious;
    /// The inode that reserves blocks for more group descriptors is not as it must be.
    ResizeInode = "resize-inode", Problem;
    /// A quota file's inode or header is not as it must be.
    QuotaInode = "quota-inode", Problem;
    /// The orphan file, or a block of it, is not as it must be.
    OrphanFile = "orphan-file", Problem;
    /// The orphan file has entries without being marked so, or is marked and has none.
    OrphanFlag = "orphan-flag", Problem;
    /// An entry of the orphan list or file leads nowhere or to a system file, or the list loops.
    OrphanEntry = "orphan-entry", Problem;
    /// Inodes wait to be deleted or truncated; a mount will do that.
    OrphansPending = "orphans-pending", Note;
    /// A node of an extent tree has a header that cannot be.
    ExtentHeader = "extent-header", Serious;
    /// A node of an extent tree has a wrong checksum.
    ExtentChecksum = "extent-checksum", Serious;
    /// An extent has an impossible length.
    ExtentEntry = "extent-entry", Serious;
    /// Extents or index entries are out of order or overlap.
    ExtentOrder = "extent-order", Serious;
    /// A node of an extent tree does not begin where its parent says, or reaches beyond.
    ExtentIndex = "extent-index", Problem;
    /// A directory is mapped by an extent that reads as zeroes.
    ExtentUnwritten = "extent-unwritten", Serious;
    /// A file is mapped to blocks that do not lie in the file system.
    BlockOutside = "block-outside", Serious;
    /// A file uses blocks that hold metadata of the file system.
    BlockInMetadata = "block-in-metadata", Serious;
    /// Several files, or several places of one, use the same blocks.
    BlockShared = "block-shared", Serious;
    /// A block lies elsewhere in its cluster than in the file.
    ClusterMisaligned = "cluster-misaligned", Problem;
    /// A block of extended attributes has a header that cannot be.
    XattrHeader = "xattr-header", Serious;
    /// A block of extended attributes has a wrong checksum.
    XattrChecksum = "xattr-checksum", Serious;
    /// A list of extended attributes is broken.
    XattrEntry = "xattr-entry", Serious;
    /// The hash of an extended attribute is wrong.
    XattrHash = "xattr-hash", Problem;
    /// A name stands twice in one list of extended attributes.
    XattrDuplicate = "xattr-duplicate", Problem;
    /// An extended attribute in a block is hidden by one of the same name in the inode.
    XattrHidden = "xattr-hidden", Note;
    /// An access control list is not understood.
    XattrList = "xattr-list", Note;
    /// No call can ask for an extended attribute by its name, so no list has it.
    XattrName = "xattr-name", Note;
    /// A block of extended attributes counts another number of users than it has.
    XattrReferences = "xattr-references", Problem;
    /// An extended attribute's value should lie in an inode that does not hold it.
    XattrValueInode = "xattr-value-inode", Serious;
    /// An inode that holds an attribute's value is not as it must be.
    ValueInode = "value-inode", Problem;
    /// An inode that holds an attribute's value counts another number of users than it has.
    ValueReferences = "value-references", Problem;
    /// An inode's account of how it is encrypted cannot be.
    EncryptionContext = "encryption-context", Serious;
    /// Data inside an inode does not suit its size, or is not there.
    InlineData = "inline-data", Serious;

    /// A directory block has no checksum.
    DirectoryTail = "directory-tail", Problem;
    /// A directory block's checksum is wrong.
    DirectoryChecksum = "directory-checksum", Serious;
    /// The chain of records in a directory block is broken.
    DirectoryRecord = "directory-record", Serious;
    /// A directory has a hole.
    DirectoryHole = "directory-hole", Problem;
    /// A directory does not begin with '.', or that leads elsewhere.
    DirectoryDot = "directory-dot", Problem;
    /// The record of '.' is so long that names would fit behind it.
    DirectoryDotLong = "directory-dot-long", Note;
    /// A directory has no '..' in its place, or that does not lead to its parent.
    DirectoryDotDot = "directory-dot-dot", Problem;
    /// A name holds bytes that no name can.
    NameBad = "name-bad", Problem;
    /// A name in an encrypted directory is shorter than any encrypted name.
    NameShort = "name-short", Problem;
    /// A directory has a name twice.
    NameDuplicate = "name-duplicate", Problem;
    /// A name leads to an inode number that does not exist or is not for names.
    EntryInode = "entry-inode", Serious;
    /// A name leads to an inode that is not in use.
    EntryUnused = "entry-unused", Serious;
    /// A name leads to an inode in a part of the table that its group says was never used.
    EntryUninitialised = "entry-uninitialised", Serious;
    /// A name's entry tells another kind of file than the inode.
    EntryFileType = "entry-file-type", Problem;
    /// A name in an encrypted directory leads to what is not encrypted as the directory is.
    EncryptionPolicy = "encryption-policy", Serious;
    /// A second name leads to a directory.
    DirectoryLinkedTwice = "directory-linked-twice", Serious;
    /// The root of a directory's index cannot be.
    HtreeRoot = "htree-root", Problem;
    /// A node of a directory's index cannot be.
    HtreeNode = "htree-node", Problem;
    /// A block of a directory's index has a wrong checksum.
    HtreeChecksum = "htree-checksum", Serious;
    /// Hashes of a directory's index fall.
    HtreeOrder = "htree-order", Problem;
    /// A directory's index leads to a block twice, never, or to one that is not there.
    HtreeBlock = "htree-block", Problem;
    /// A name lies in another block than its hash says, and will not be found.
    HtreeHash = "htree-hash", Serious;

    /// No name leads to a directory.
    DirectoryUnattached = "directory-unattached", Serious;
    /// Directories contain each other, and the root does not lead to them.
    DirectoryLoop = "directory-loop", Serious;
    /// lost+found is no plain directory.
    LostFound = "lost-found", Problem;
    /// No name leads to an inode in use.
    InodeUnattached = "inode-unattached", Serious;
    /// An inode counts another number of names than it has.
    LinkCount = "link-count", Problem;

    /// A block bitmap's checksum is wrong.
    BlockBitmapChecksum = "block-bitmap-checksum", Problem;
    /// An inode bitmap's checksum is wrong.
    InodeBitmapChecksum = "inode-bitmap-checksum", Problem;
    /// Blocks are in use and marked as free: the next write may destroy what they hold.
    BlockMarkedFree = "block-marked-free", Serious;
    /// Blocks are marked as in use and nothing uses them.
    BlockMarkedUsed = "block-marked-used", Problem;
    /// Inodes are in use and marked as free.
    InodeMarkedFree = "inode-marked-free", Serious;
    /// Inodes are marked as in use and are not.
    InodeMarkedUsed = "inode-marked-used", Problem;
    /// Bits behind the end of a bitmap are not set.
    BitmapPadding = "bitmap-padding", Problem;
    /// Blocks or inodes are in use in a group whose bitmap was never written.
    UninitGroupUsed = "uninit-group-used", Serious;
    /// Inodes are in use behind the part of a table that its group says is used.
    TableUnused = "table-unused", Serious;
    /// A group's count of free blocks is wrong.
    GroupFreeBlocks = "group-free-blocks", Problem;
    /// A group's count of free inodes is wrong.
    GroupFreeInodes = "group-free-inodes", Problem;
    /// A group's count of directories is wrong.
    GroupDirectories = "group-directories", Problem;
    /// The superblock's count of free blocks is stale; it is made anew by the next mount.
    FreeBlocksTotal = "free-blocks-total", Note;
    /// The superblock's count of free inodes is stale; it is made anew by the next mount.
    FreeInodesTotal = "free-inodes-total", Note;
    /// The tree of a quota file is broken.
    QuotaTree = "quota-tree", Problem;
    /// A quota file says that somebody takes more or less than is the case.
    QuotaUsage = "quota-usage", Problem;
}

impl Kind {
    /// How many there are.
    pub(super) const COUNT: usize = Self::ALL.len();

    /// Its place in [`Kind::ALL`].
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn names_are_kebab_case_and_unique() {
        let mut names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        for name in &names {
            let is_kebab = name
                .bytes()
                .all(|byte| byte == b'-' || byte.is_ascii_lowercase());
            assert!(is_kebab, "{name}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::COUNT);
        for (index, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(Kind::named(kind.name()), Some(*kind));
        }
    }
}
