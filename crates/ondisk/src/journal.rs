//! The format of jbd2: the journal's superblock and the records of its log. All of it is
//! big-endian.
//!
//! A log is a ring of blocks after the superblock. A transaction in it is any number of descriptor
//! blocks, each followed by the blocks that its tags describe, and of revoke blocks, ended by one
//! commit block; all of them have the transaction's number. The layout and the checksums of records
//! depend on the journal's features: [`RecordFormat`] combines them, and every codec here takes it.
//!
//! Sources: the kernel's documentation of jbd2 and the field lists of e2fsprogs' headers; checksums
//! and offsets were verified with journals that e2fsck accepts.

pub mod commit;
pub mod descriptor;
pub mod fast_commit;
pub mod feature;
pub mod format;
pub mod header;
pub mod revoke;
pub mod superblock;

pub use commit::{Commit, TransactionSum};
pub use descriptor::{DescriptorWriter, Tag, TagFlags};
pub use feature::{JournalCompat, JournalIncompat, JournalReadOnlyCompat};
pub use format::{RecordChecksum, RecordFormat};
pub use header::{BlockType, Header};
pub use revoke::RevokeWriter;
pub use superblock::JournalSuperblock;

/// The maximum size of a journal in blocks, as `mke2fs(8)` documents it.
pub const MAX_BLOCKS: u32 = 10_240_000;
