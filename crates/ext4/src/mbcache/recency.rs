//! A list of entries, the oldest first, from which any entry can be removed.
//!
//! Links are indexes into one vector. An entry knows its index, so it is removed in constant time,
//! as from a list with pointers.

use std::sync::Arc;

use pext4_sync::atomic::Ordering;

use super::entry::{Entry, NOWHERE};

/// The list.
pub(super) struct Recency {
    nodes: Vec<Node>,
    first: usize,
    last: usize,
    /// The first of the unused places, linked by `next`.
    free: usize,
    length: usize,
}

struct Node {
    before: usize,
    next: usize,
    entry: Option<Arc<Entry>>,
}

impl Default for Recency {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            first: NOWHERE,
            last: NOWHERE,
            free: NOWHERE,
            length: 0,
        }
    }
}

impl Recency {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Adds an entry, which is not on the list, at the end.
    pub fn push(&mut self, entry: &Arc<Entry>) {
        let node = Node {
            before: self.last,
            next: NOWHERE,
            entry: Some(Arc::clone(entry)),
        };
        let place = if self.free == NOWHERE {
            self.nodes.push(node);
            self.nodes.len() - 1
        } else {
            let place = self.free;
            self.free = self.nodes[place].next;
            self.nodes[place] = node;
            place
        };
        match self.last {
            NOWHERE => self.first = place,
            last => self.nodes[last].next = place,
        }
        self.last = place;
        self.length += 1;
        entry.place.store(place, Ordering::Relaxed);
    }

    /// Removes an entry, if it is on the list.
    pub fn remove(&mut self, entry: &Entry) {
        let place = entry.place.swap(NOWHERE, Ordering::Relaxed);
        if place != NOWHERE {
            self.unlink(place);
        }
    }

    /// Removes and returns the oldest entry.
    pub fn pop(&mut self) -> Option<Arc<Entry>> {
        if self.first == NOWHERE {
            return None;
        }
        let entry = self.unlink(self.first);
        entry.place.store(NOWHERE, Ordering::Relaxed);
        Some(entry)
    }

    fn unlink(&mut self, place: usize) -> Arc<Entry> {
        let node = &mut self.nodes[place];
        let (before, next) = (node.before, node.next);
        let entry = node.entry.take().expect("an entry knows its own place");
        node.next = self.free;
        self.free = place;
        match before {
            NOWHERE => self.first = next,
            before => self.nodes[before].next = next,
        }
        match next {
            NOWHERE => self.last = before,
            next => self.nodes[next].before = before,
        }
        self.length -= 1;
        entry
    }
}
