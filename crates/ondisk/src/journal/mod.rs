//! jbd2's bytes: the journal's superblock and the records of its log. All of it is big-endian.
//!
//! A log is a ring of blocks behind the superblock. A transaction in it is any number of
//! descriptor blocks, each followed by the blocks that its tags name, and revoke blocks, closed by
//! one commit block; all of them carry the transaction's number. How a record is laid out and
//! summed follows from the journal's features: [`RecordFormat`] holds that choice, and every codec
//! here takes it.
//!
//! Sources: the kernel's documentation of jbd2 and the field lists of e2fsprogs' headers; the
//! sums and offsets were read back from journals that e2fsck accepts.

pub mod commit;
pub mod descriptor;
pub mod fast_commit;
pub mod feature;
pub mod format;
pub mod header;
pub mod revoke;
pub mod superblock;

pub use commit::Commit;
pub use descriptor::{DescriptorWriter, Tag, TagFlags};
pub use feature::{JournalCompat, JournalIncompat, JournalReadOnlyCompat};
pub use format::{RecordChecksum, RecordFormat};
pub use header::{BlockType, Header};
pub use revoke::RevokeWriter;
pub use superblock::JournalSuperblock;
