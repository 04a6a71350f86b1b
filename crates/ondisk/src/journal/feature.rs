//! Features of a journal, apart from those of the file system around it.

use bitflags::bitflags;

bitflags! {
    /// Features that a reader may ignore.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalCompat: u32 {
        /// Checksum v1: the commit block has a crc32 of the whole transaction.
        const CHECKSUM = 0x1;
    }
}

bitflags! {
    /// Features that a reader of the log must know.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalIncompat: u32 {
        /// There may be revoke blocks.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BIT64 = 0x2;
        /// The commit block may have been written before what it commits.
        const ASYNC_COMMIT = 0x4;
        /// Every record has a checksum; tags have its low 16 bits.
        const CSUM_V2 = 0x8;
        /// Every record has a checksum; tags have all 32 bits.
        const CSUM_V3 = 0x10;
        /// The end of the journal is an area of fast commits.
        const FAST_COMMIT = 0x20;
    }
}

bitflags! {
    /// Features that a writer of the log must know; none is defined.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalReadOnlyCompat: u32 {}
}

impl JournalIncompat {
    /// The names of the bits that this version does not know, for an error; `None` if it knows all.
    #[must_use]
    pub fn unknown(self) -> Option<String> {
        unknown('I', self.bits() & !Self::all().bits())
    }
}

impl JournalReadOnlyCompat {
    /// As [`JournalIncompat::unknown`].
    #[must_use]
    pub fn unknown(self) -> Option<String> {
        unknown('R', self.bits())
    }
}

/// Bits as e2fsprogs names unknown ones: `FEATURE_I6`.
fn unknown(kind: char, bits: u32) -> Option<String> {
    let set = (0..u32::BITS).filter(|bit| bits & (1 << bit) != 0);
    let names: Vec<String> = set.map(|bit| format!("FEATURE_{kind}{bit}")).collect();
    (bits != 0).then(|| format!("unknown features: {}", names.join(", ")))
}
