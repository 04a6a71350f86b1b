//! Bytes that lie: what was wrong, in which structure, and where.
//!
//! Every decoder of this crate returns `Result<T, Corrupt>`. The place is filled in by whoever
//! knows it: a decoder that only sees bytes names the structure and the problem, its caller adds
//! the block, inode or group with the `in_...` builders.

use std::borrow::Cow;
use std::fmt;

use crate::number::{BlockNumber, GroupNumber, InodeNumber};

/// A structure on disk that cannot be what it claims to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt(Box<Details>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Details {
    structure: &'static str,
    problem: Cow<'static, str>,
    block: Option<BlockNumber>,
    inode: Option<InodeNumber>,
    group: Option<GroupNumber>,
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
        }))
    }

    /// The same, known to lie in this block of the device; an earlier answer stays.
    #[must_use]
    pub fn in_block(mut self, block: BlockNumber) -> Self {
        self.0.block.get_or_insert(block);
        self
    }

    /// The same, known to belong to this inode; an earlier answer stays.
    #[must_use]
    pub fn in_inode(mut self, inode: InodeNumber) -> Self {
        self.0.inode.get_or_insert(inode);
        self
    }

    /// The same, known to lie in this block group; an earlier answer stays.
    #[must_use]
    pub fn in_group(mut self, group: GroupNumber) -> Self {
        self.0.group.get_or_insert(group);
        self
    }

    /// The same, with more to say about it.
    #[must_use]
    pub fn adding(mut self, what: &str) -> Self {
        self.0.problem = format!("{}; {what}", self.0.problem).into();
        self
    }

    /// The structure, in the format's own words.
    #[must_use]
    pub fn structure(&self) -> &'static str {
        self.0.structure
    }

    /// What is wrong with it.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.0.problem
    }

    /// The block it lies in, where known.
    #[must_use]
    pub fn block(&self) -> Option<BlockNumber> {
        self.0.block
    }

    /// The inode it belongs to, where known.
    #[must_use]
    pub fn inode(&self) -> Option<InodeNumber> {
        self.0.inode
    }

    /// The group it lies in, where known.
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
}
