//! Reads the tree of a quota file: which of its blocks are nodes, and where the entries are.

use std::collections::HashSet;

use pext4_ondisk::Corrupt;
use pext4_ondisk::quota::{self, BLOCK_SIZE, DEPTH, Header, ROOT};
use pext4_sync::hash::{NumberHash, NumberMap};

use super::Place;
use crate::error::Result;

/// The tree of a quota file.
pub(super) struct Tree {
    pub(super) header: Header,
    /// The blocks of the file that are nodes.
    pub(super) nodes: HashSet<u32, NumberHash>,
}

/// A block of the file, and where it is.
pub(super) type Read<'a> = &'a dyn Fn(u32) -> Result<([u8; BLOCK_SIZE], Place)>;

pub(super) fn corrupt(problem: impl Into<String>) -> Corrupt {
    Corrupt::new("quota file", problem.into())
}

impl Tree {
    /// Reads all of a tree, each block once; returns the places of the entries too.
    pub(super) fn read(header: Header, read: Read<'_>) -> Result<(Self, NumberMap<u32, Place>)> {
        let mut tree = Self {
            header,
            nodes: HashSet::default(),
        };
        let mut places = NumberMap::default();
        let mut leaves: HashSet<u32, NumberHash> = HashSet::default();
        let mut left = vec![(ROOT, 0)];
        while let Some((number, depth)) = left.pop() {
            tree.check_number(number)?;
            if depth == DEPTH {
                if leaves.insert(number) {
                    read_leaf(number, read, &mut places)?;
                }
                continue;
            }
            if !tree.nodes.insert(number) {
                return Err(corrupt(format!("its block {number} has two parents")).into());
            }
            let (node, _) = read(number)?;
            let children = quota::references(&node).filter(|&child| child != 0);
            left.extend(children.map(|child| (child, depth + 1)));
        }
        match leaves.iter().find(|&leaf| tree.nodes.contains(leaf)) {
            Some(both) => Err(corrupt(format!("its block {both} is a node and a leaf")).into()),
            None => Ok((tree, places)),
        }
    }

    /// Refuses a block number that the file does not have.
    pub(super) fn check_number(&self, number: u32) -> Result<()> {
        let all = self.header.blocks;
        if (ROOT..all).contains(&number) {
            return Ok(());
        }
        Err(corrupt(format!("leads to its block {number} of {all}")).into())
    }
}

fn read_leaf(number: u32, read: Read<'_>, places: &mut NumberMap<u32, Place>) -> Result<()> {
    let (leaf, place) = read(number)?;
    for (offset, entry) in quota::placed_entries(&leaf) {
        let place = place.behind(offset);
        if places.insert(entry.id, place).is_some() {
            return Err(corrupt(format!("has two entries for number {}", entry.id)).into());
        }
    }
    Ok(())
}
