//! Judges whether a recovered tree is a possible result of a crash.
//!
//! The journal commits operations in order, so names and attributes must be those after *some*
//! number of operations: at least all that an acknowledged sync covers, at most all that had
//! started. Contents are not journalled: data written in place may be newer than the metadata and,
//! without an fsync, older, byte by byte. But it is always data of that file, never data that was
//! truncated or punched before, and never another file's. What a truncation cuts off is whole until
//! the truncation is durable.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use pext4_fs::FileType;

use super::recording::{History, Recording};
use crate::content::{CHUNK, Content};
use crate::model::{Model, Node};
use crate::op::Op;
use crate::tree::{Item, Tree};

/// Judges a tree that was recovered after a cut at this position of the log.
///
/// # Errors
///
/// It is none that the cut can explain.
pub fn judge(recording: &Recording, cut: usize, tree: &Tree) -> Result<(), String> {
    for history in &recording.histories {
        Judge::new(history, cut).state_of(tree)?;
    }
    let Some(others) = &recording.others else {
        return Ok(());
    };
    let changing: Vec<&[u8]> = recording.histories.iter().map(|it| &it.at[..]).collect();
    let [before, after] = [others, tree].map(|tree| tree.without(&changing));
    let found = before.differences(&after, false);
    match found.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "other files changed:\n    {}",
            found.join("\n    ")
        )),
    }
}

/// The knowledge about the run at a cut.
pub struct Judge<'a> {
    history: &'a History,
    cut: usize,
    /// States (numbers of operations) that the recovered tree may be in.
    states: RangeInclusive<usize>,
}

impl fmt::Debug for Judge<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Judge")
            .field("cut", &self.cut)
            .field("states", &self.states)
            .finish_non_exhaustive()
    }
}

impl<'a> Judge<'a> {
    /// The judge of images that were cut at this position of the log.
    #[must_use]
    pub fn new(history: &'a History, cut: usize) -> Self {
        let latest = history.started.partition_point(|&start| start <= cut);
        let acknowledged = history.returned.partition_point(|&end| end <= cut);
        let earliest = (1..=acknowledged)
            .map(|state| covered(history, state))
            .max();
        Self {
            history,
            cut,
            states: earliest.unwrap_or(0).min(latest)..=latest,
        }
    }

    /// The state that a recovered tree is in, or why it is in none.
    pub fn state_of(&self, tree: &Tree) -> Result<usize, String> {
        let tree = &tree.below(&self.history.at);
        let mut best: Option<(usize, Vec<String>)> = None;
        for state in self.states.clone().rev() {
            let found = self.differences(state, &self.history.models[state], tree);
            if found.is_empty() || self.is_between(state, tree) {
                return Ok(state);
            }
            if best
                .as_ref()
                .is_none_or(|(_, fewest)| found.len() < fewest.len())
            {
                best = Some((state, found));
            }
        }
        let (state, found) = best.unwrap_or_default();
        Err(format!(
            "the tree is in none of the states {:?}; nearest is {state}:\n    {}",
            self.states,
            found.join("\n    ")
        ))
    }

    fn differences(&self, state: usize, model: &Model, tree: &Tree) -> Vec<String> {
        model.compare(tree, &mut |node, item| {
            self.content_difference(state, node, item)
        })
    }

    /// Whether the tree is in the middle of a long operation: one file is partly written, allocated
    /// or truncated.
    fn is_between(&self, state: usize, tree: &Tree) -> bool {
        let (Some(op), Some(after)) = (
            self.history.ops.get(state),
            self.history.models.get(state + 1),
        ) else {
            return false;
        };
        if state >= *self.states.end() {
            return false;
        }
        let (Op::Write { of, .. } | Op::Truncate { of, .. } | Op::Allocate { of, .. }) = op else {
            return false;
        };
        let before = &self.history.models[state];
        let Ok(inode) = before.resolve(of) else {
            return false;
        };
        let item = tree.items.values().find(|item| item.facts.inode == inode);
        let Some(size) = item.map(|item| item.facts.size) else {
            return false;
        };
        let between = before.between(after, inode, size);
        between.is_some_and(|model| self.differences(state, &model, tree).is_empty())
    }

    fn content_difference(&self, state: usize, node: &Node, item: &Item) -> Option<String> {
        let right = &node.file()?.content;
        let Some(found) = &item.content else {
            return Some("no content".to_owned());
        };
        if right == found {
            return None;
        }
        if right.size() != found.size() {
            return right.difference(found);
        }
        let chunks: BTreeSet<u64> = right.occupied().chain(found.occupied()).collect();
        for chunk in chunks {
            let bytes = found.read(chunk, CHUNK);
            if let Some(at) = self.foreign_byte(state, item.facts.inode, right, chunk, &bytes) {
                let told = &bytes[at..bytes.len().min(at + 8)];
                let offset = chunk + at as u64;
                return Some(format!(
                    "byte {offset} is of no version that may be seen: {told:02x?}..."
                ));
            }
        }
        None
    }

    /// The first byte of a chunk that no version explains: neither the right one, nor a later one,
    /// nor an earlier one that only writes have replaced since. Bytes are judged one by one, since
    /// writes need not be aligned to sectors: a sector may contain a late write next to early
    /// bytes.
    fn foreign_byte(
        &self,
        state: usize,
        inode: u32,
        right: &Content,
        chunk: u64,
        bytes: &[u8],
    ) -> Option<usize> {
        let mut after = padded(right, chunk, bytes.len());
        let mut open: Vec<usize> = (0..bytes.len())
            .filter(|&at| bytes[at] != after[at])
            .collect();
        // Behind the shortest end so far, later versions explain nothing: what a truncation cuts
        // off is overwritten only once that is durable, and then this would not be the state.
        let mut end = u64::MAX;
        for later in state + 1..=*self.states.end() {
            if let Some(version) = self.version(later, inode, chunk, bytes.len()) {
                end = end.min(self.size(later, inode).saturating_sub(chunk));
                open.retain(|&at| at as u64 >= end || bytes[at] != version[at]);
            }
        }
        let floor = self.last_sync_of(inode);
        for earlier in (floor..state).rev() {
            let Some(before) = self.version(earlier, inode, chunk, bytes.len()) else {
                break;
            };
            let is_write = matches!(self.history.ops[earlier], Op::Write { .. });
            if let Some(&gone) = open
                .iter()
                .find(|&&at| !is_write && before[at] != after[at])
            {
                return Some(gone);
            }
            open.retain(|&at| bytes[at] != before[at]);
            after = before;
        }
        open.first().copied()
    }

    fn size(&self, state: usize, inode: u32) -> u64 {
        let file = self.history.models[state].node(inode).and_then(Node::file);
        file.map_or(0, |file| file.content.size())
    }

    fn version(&self, state: usize, inode: u32, chunk: u64, length: usize) -> Option<Vec<u8>> {
        let file = self.history.models[state].node(inode)?.file()?;
        Some(padded(&file.content, chunk, length))
    }

    /// The state at which this file's data was last known to be durable.
    fn last_sync_of(&self, inode: u32) -> usize {
        let acknowledged = self
            .history
            .returned
            .partition_point(|&end| end <= self.cut);
        let is_sync = |&state: &usize| match &self.history.ops[state - 1] {
            Op::Sync | Op::Remount => true,
            Op::SyncFile { of, .. } => self.history.models[state].resolve(of) == Ok(inode),
            _ => false,
        };
        (1..=acknowledged).rev().find(is_sync).unwrap_or(0)
    }
}

/// The state that must be durable after the operation that leads to `state` has returned.
fn covered(history: &History, state: usize) -> usize {
    let model = &history.models[state];
    let step = match &history.ops[state - 1] {
        Op::Sync | Op::Remount => return state,
        Op::SyncFile { of, data_only } => {
            let node = model.resolve(of).ok().and_then(|inode| model.node(inode));
            match node {
                // Of a directory, a link or a special file: everything.
                Some(node) if node.kind() != FileType::Regular => return state,
                Some(node) if *data_only => node.sized,
                Some(node) => node.touched,
                None => 0,
            }
        }
        _ => 0,
    };
    usize::try_from(step).unwrap_or(state).min(state)
}

/// Bytes of a version, as if it went on with zeroes behind its end.
fn padded(content: &Content, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = content.read(offset, length as u64);
    bytes.resize(length, 0);
    bytes
}
