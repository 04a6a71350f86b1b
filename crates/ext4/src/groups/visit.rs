//! When a transaction is durable, the blocks that it freed become allocatable.
//!
//! Only groups in which blocks were freed are visited. With `discard` the device discards the
//! blocks first, while they cannot be allocated yet.

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::atomic::{Ordering, fence};

use super::Groups;
use super::buddy::Span;
use crate::statistics::Event;

impl Groups {
    /// Transaction `tid` is durable. Called by the committer, with no lock held.
    pub fn committed(&self, tid: Tid) {
        for number in self.waiting.take(tid) {
            self.release_freed(number, tid);
        }
        self.evict();
        self.report();
    }

    fn release_freed(&self, number: GroupNumber, tid: Tid) {
        if self.store.discards {
            self.discard_freed(number, tid);
        }
        self.count_event(Event::Visited);
        let mut held = self.lock(number);
        let Some(blocks) = held.loaded().and_then(|loaded| loaded.blocks.as_mut()) else {
            return;
        };
        let spans = blocks.pending.take_through(tid);
        let waits = !blocks.pending.is_empty();
        let mut released = 0;
        for span in spans {
            held.release(span);
            released += i64::from(span.length);
        }
        drop(held);
        // Who does not find them pending any more sees that they were released: `has_new_space`.
        fence(Ordering::Release);
        self.counts.pending_clusters.add(-released);
        if waits {
            self.waiting.keep(number);
        }
    }

    /// Discards the freed blocks on the device. The extents stay on the list meanwhile; only the
    /// committer removes them. A failed discard is ignored.
    fn discard_freed(&self, number: GroupNumber, tid: Tid) {
        let spans = {
            let mut held = self.lock(number);
            let blocks = held.loaded().and_then(|loaded| loaded.blocks.as_ref());
            blocks.map_or_else(Vec::new, |blocks| blocks.pending.through(tid))
        };
        let geometry = &self.store.geometry;
        for Span { start, length } in spans {
            let first = geometry.block_of_cluster(number, start).get();
            let offset = first * u64::from(geometry.block_size);
            let bytes = u64::from(length) * u64::from(geometry.cluster_size());
            let _ = self.store.device.discard(offset, bytes);
        }
    }
}
