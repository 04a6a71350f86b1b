//! Batches: what a scan sends to its caller, some names of one directory at a time.

use std::ops::Range;

use super::ScannedEntry;
use crate::build::error::Error;

/// Some names of one directory.
#[derive(Default)]
pub(in crate::build) struct Batch {
    /// The number of the directory; 0 is the root.
    pub directory: u32,
    names: Vec<u8>,
    pub found: Vec<ScannedEntry>,
    /// The errors of names that were skipped because they could not be read.
    pub skipped: Vec<Error>,
}

impl Batch {
    /// An empty batch of a directory, with room for so many names.
    pub fn of(directory: u32, names: usize) -> Self {
        Self {
            directory,
            found: Vec::with_capacity(names),
            ..Self::default()
        }
    }

    /// Adds an entry under a name.
    pub fn push(&mut self, name: &[u8], mut entry: ScannedEntry) {
        let end = |names: &[u8]| u32::try_from(names.len()).expect("the names of one job");
        let start = end(&self.names);
        self.names.extend_from_slice(name);
        entry.name = start..end(&self.names);
        self.found.push(entry);
    }

    /// The name of an entry.
    pub fn name(&self, place: usize) -> &[u8] {
        let Range { start, end } = self.found[place].name;
        &self.names[start as usize..end as usize]
    }

    /// Moves an entry out of the batch, which keeps the name.
    pub fn take(&mut self, place: usize) -> (&[u8], ScannedEntry) {
        let entry = std::mem::take(&mut self.found[place]);
        let Range { start, end } = entry.name;
        (&self.names[start as usize..end as usize], entry)
    }
}
