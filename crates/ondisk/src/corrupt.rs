//! The error of corrupt metadata: what is wrong, in which structure, and where.
//!
//! Every decoder of this crate returns `Result<T, Corrupt>`. A decoder that sees only bytes names
//! the structure and the problem; its caller adds the block, inode or group with the `in_...`
//! builders.

use std::borrow::Cow;
use std::fmt;

use crate::number::{BlockNumber, GroupNumber, InodeNumber};

/// Metadata on disk that violates the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt(Box<Details>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Details {
    structure: &'static str,
    problem: Cow<'static, str>,
    block: Option<BlockNumber>,
    inode: Option<InodeNumber>,
    group: Option<GroupNumber>,
    remedy: Option<Cow<'static, str>>,
    is_checksum: bool,
}

impl Corrupt {
    /// `structure` ("extent node", "superblock") has `problem` ("magic is 0x0000, not 0xF30A").
    #[must_use]
    pub fn new(structure: &'static str, problem: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Details {
            structure,
            problem: problem.into(),
            block: None,
            inode: None,
            group: None,
            remedy: None,
            is_checksum: false,
        }))
    }

    /// `structure` does not have the checksum that its bytes make; those of 16 bits are widened.
    #[must_use]
    pub fn checksum(
        structure: &'static str,
        stored: impl Into<u32>,
        computed: impl Into<u32>,
    ) -> Self {
        let (stored, computed) = (stored.into(), computed.into());
        let problem = format!("checksum is {stored:#X}, should be {computed:#X}");
        let mut corrupt = Self::new(structure, problem);
        corrupt.0.is_checksum = true;
        corrupt
    }

    /// Adds the block that contains the structure, unless a block is already known.
    #[must_use]
    pub fn in_block(mut self, block: BlockNumber) -> Self {
        self.0.block.get_or_insert(block);
        self
    }

    /// Adds the inode that owns the structure, unless an inode is already known.
    #[must_use]
    pub fn in_inode(mut self, inode: InodeNumber) -> Self {
        self.0.inode.get_or_insert(inode);
        self
    }

    /// Adds the block group that contains the structure, unless a group is already known.
    #[must_use]
    pub fn in_group(mut self, group: GroupNumber) -> Self {
        self.0.group.get_or_insert(group);
        self
    }

    /// The same error with `what` appended to the problem.
    #[must_use]
    pub fn adding(mut self, what: &str) -> Self {
        self.0.problem = format!("{}; {what}", self.0.problem).into();
        self
    }

    /// Replaces what may help, for users.
    #[must_use]
    pub fn advising(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// What may help. It is not part of the text of the error.
    #[must_use]
    pub fn remedy(&self) -> &str {
        let own = self.0.remedy.as_deref();
        own.unwrap_or("`e2fsck -f` repairs it (keep a copy of the image)")
    }

    /// The name of the structure in the format's terms.
    #[must_use]
    pub fn structure(&self) -> &'static str {
        self.0.structure
    }

    /// The problem.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.0.problem
    }

    /// Whether a checksum is wrong: the structure was damaged after it was written. Else its
    /// content is impossible.
    #[must_use]
    pub fn is_of_checksum(&self) -> bool {
        self.0.is_checksum
    }

    /// The block that contains the structure, if known.
    #[must_use]
    pub fn block(&self) -> Option<BlockNumber> {
        self.0.block
    }

    /// The inode that owns the structure, if known.
    #[must_use]
    pub fn inode(&self) -> Option<InodeNumber> {
        self.0.inode
    }

    /// The group that contains the structure, if known.
    #[must_use]
    pub fn group(&self) -> Option<GroupNumber> {
        self.0.group
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "corrupt {}", self.0.structure)?;
        let mut separator = " (";
        let mut place = |name: &str, number: Option<u64>| -> fmt::Result {
            if let Some(number) = number {
                write!(formatter, "{separator}{name} {number}")?;
                separator = ", ";
            }
            Ok(())
        };
        place("group", self.0.group.map(|group| u64::from(group.get())))?;
        place("inode", self.0.inode.map(|inode| u64::from(inode.get())))?;
        place("block", self.0.block.map(BlockNumber::get))?;
        if separator == ", " {
            formatter.write_str(")")?;
        }
        write!(formatter, ": {}", self.0.problem)
    }
}

impl std::error::Error for Corrupt {}

#[cfg(test)]
mod tests {
    use super::{BlockNumber, Corrupt, InodeNumber};

    #[test]
    fn says_what_and_where() {
        let bare = Corrupt::new("superblock", "magic is 0x0000, not 0xEF53");
        assert_eq!(
            bare.to_string(),
            "corrupt superblock: magic is 0x0000, not 0xEF53"
        );
        let placed = bare
            .in_block(BlockNumber(9))
            .in_inode(InodeNumber(2))
            .in_block(BlockNumber(1));
        assert_eq!(
            placed.to_string(),
            "corrupt superblock (inode 2, block 9): magic is 0x0000, not 0xEF53"
        );
    }

    #[test]
    fn a_wrong_checksum_is_known_as_one() {
        let wrong = Corrupt::checksum("extent node", 0x12_u16, 0x34_u16).adding("twice");
        assert_eq!(
            wrong.to_string(),
            "corrupt extent node: checksum is 0x12, should be 0x34; twice"
        );
        assert!(wrong.is_of_checksum());
        assert!(!Corrupt::new("extent node", "checksum is lost").is_of_checksum());
    }
}
