//! The numbers of the format, each with its own type, so that a block of the device cannot be
//! confused with a block of a file, or a group with an inode.
//!
//! Arithmetic is checked, since numbers from the disk may have any value. A plain number is made
//! one of these by the type's name (`BlockNumber(7)`) and given back by `get`; nothing converts
//! implicitly.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The plain number.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The number plus `count`; `None` on overflow.
            #[must_use]
            pub fn checked_add(self, count: impl Into<u64>) -> Option<Self> {
                let sum = u64::from(self.0).checked_add(count.into())?;
                <$inner>::try_from(sum).ok().map(Self)
            }

            /// The number minus `count`; `None` below zero.
            #[must_use]
            pub fn checked_sub(self, count: impl Into<u64>) -> Option<Self> {
                let difference = u64::from(self.0).checked_sub(count.into())?;
                <$inner>::try_from(difference).ok().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, formatter)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($what, " {}"), self.0)
            }
        }
    };
}

number! {
    /// A block of the file system, counted from the start of the device (48 bits are used).
    BlockNumber(u64), "block"
}
number! {
    /// A block of one file, counted from the file's start.
    LogicalBlock(u32), "logical block"
}
number! {
    /// A block group.
    GroupNumber(u32), "group"
}
number! {
    /// An inode; the first is 1, and 0 stands for "none" in the format.
    InodeNumber(u32), "inode"
}

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The inode that reserves descriptor blocks for growth.
    pub const RESIZE: Self = Self(7);
    /// The inode of the internal journal.
    pub const JOURNAL: Self = Self(8);
}

/// A transaction of the journal: jbd2's sequence number.
///
/// Numbers wrap at 2^32, and 0 is a valid number, so they do not implement `Ord`; use
/// [`Tid::is_after`] (rule D15).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Tid(pub u32);

impl Tid {
    /// The next transaction.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The previous transaction.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// Whether this transaction is later than `other`: less than 2^31 numbers after it.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }

    /// Whether this transaction is `other` or later.
    #[must_use]
    pub const fn is_at_or_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() >= 0
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl fmt::Debug for Tid {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "transaction {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockNumber, LogicalBlock, Tid};

    #[test]
    fn transactions_compare_across_the_wrap() {
        let last = Tid(u32::MAX);
        assert!(last.next().is_after(last));
        assert!(!last.is_after(last.next()));
        assert!(last.is_at_or_after(last));
        assert_eq!(Tid(0).previous(), last);
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(LogicalBlock(u32::MAX).checked_add(1u32), None);
        assert_eq!(BlockNumber(3).checked_sub(4u32), None);
        assert_eq!(BlockNumber(3).checked_add(4u32), Some(BlockNumber(7)));
    }
}
