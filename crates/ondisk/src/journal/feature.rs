//! Features of a journal, apart from those of the file system around it.

use bitflags::bitflags;

bitflags! {
    /// May be unknown.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalCompat: u32 {
        /// Checksum v1: the commit block sums the whole transaction with crc32.
        const CHECKSUM = 0x1;
    }
}

bitflags! {
    /// Must be known to read the log.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalIncompat: u32 {
        /// There may be revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// The commit block may have been written before what it commits.
        const ASYNC_COMMIT = 0x4;
        /// Every record is summed, tags keep 16 bits of the sum.
        const CSUM_V2 = 0x8;
        /// Every record is summed, tags keep the whole sum.
        const CSUM_V3 = 0x10;
        /// The end of the journal is an area of fast commits.
        const FAST_COMMIT = 0x20;
    }
}

bitflags! {
    /// Must be known to write the log; none is defined.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalReadOnlyCompat: u32 {}
}

impl JournalIncompat {
    /// The bits that this version does not know, spelled for an error.
    #[must_use]
    pub fn unknown(self) -> Option<String> {
        let bits = self.bits() & !Self::all().bits();
        (bits != 0).then(|| format!("journal features {bits:#x} (incompat)"))
    }
}
