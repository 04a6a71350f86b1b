//! Keeps the block counts that the kernel caches for growing files from becoming stale.
//!
//! The kernel caches attributes indefinitely. With its writeback cache it counts the size and the
//! times of a file that it writes late itself, but not its blocks: `du` would show what an open
//! file had when the kernel last asked. So after a late write the kernel is made to drop the
//! attributes, not at once but at most once in [`DELAY`] for each file, and it asks again if
//! somebody wants to know.
//!
//! A write at the start of a file is not announced. Most files are written by one request and
//! closed, and then the kernel drops the attributes by itself.
//!
//! A node is in `due` from the first write to the notification, so that writes in between only look
//! there. One job for all nodes waits in the pool at a time.

use std::sync::Arc;
use std::time::Duration;

use pext4_sync::order::Class;
use pext4_sync::{Map, Mutex, thread};

use super::KernelCache;
use crate::offload::Offload;

/// The time between a write and the notification.
const DELAY: Duration = Duration::from_millis(100);

/// The files whose counts the kernel must be told of.
pub(super) struct BlockCounts {
    due: Map<u64, ()>,
    /// The same in the order of their writes. The job runs while it is not empty.
    waiting: Mutex<Vec<u64>>,
    kernel: KernelCache,
}

impl BlockCounts {
    pub(super) fn new(kernel: KernelCache) -> Self {
        Self {
            due: Map::new(Class::Leaf),
            waiting: Mutex::new(Class::Leaf, Vec::new()),
            kernel,
        }
    }

    /// Notes that the kernel has written to a node, from byte `offset` on. The notification is sent
    /// from a thread of `pool`, since the kernel may be about to evict the node.
    pub(super) fn note_late_write(self: &Arc<Self>, node: u64, offset: u64, pool: &Offload) {
        if offset == 0 || self.due.contains_key(&node) {
            return;
        }
        if self.due.insert(node, ()).is_some() {
            return;
        }
        let is_first = {
            let mut waiting = self.waiting.lock();
            waiting.push(node);
            waiting.len() == 1
        };
        if is_first {
            let counts = Arc::clone(self);
            pool.run(move || {
                thread::sleep(DELAY);
                counts.tell();
            });
        }
    }

    fn tell(&self) {
        let nodes = std::mem::take(&mut *self.waiting.lock());
        for node in nodes {
            // First, so that a write that comes during the notification is told again.
            self.due.remove(&node);
            self.kernel.forget_attributes(node);
        }
    }
}
