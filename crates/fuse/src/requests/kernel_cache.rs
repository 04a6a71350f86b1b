//! Notifications that make the kernel drop what it has cached.
//!
//! The kernel may cache names, attributes and pages indefinitely. If the server changes one of
//! them, it notifies the kernel here. On a notification about pages the kernel first writes the
//! dirty ones, and these writes are served by the transport's threads, so none of those may send
//! one. A notification about attributes waits only if the kernel is just evicting the inode. So a
//! thread of the transport sends one only for a node that its request's caller is using; all others
//! are sent from the pool.

use std::sync::{Arc, OnceLock, Weak};

use pext4_fs::Volume;
use pext4_fuse_kernel::Notifier;

use crate::node::node_of;

/// Sends notifications to the kernel; does nothing before [`KernelCache::connect`].
#[derive(Clone, Default)]
pub(crate) struct KernelCache {
    notifier: Arc<OnceLock<Notifier>>,
}

impl KernelCache {
    /// Sends notifications by `notifier` from now on.
    pub(crate) fn connect(&self, notifier: Notifier) {
        self.notifier.get_or_init(|| notifier);
    }

    /// Whether there is a connection that has not ended.
    pub(crate) fn is_connected(&self) -> bool {
        self.notifier.get().is_some_and(Notifier::is_connected)
    }

    /// Makes the kernel drop the attributes of a node. Needed where the reply does not carry new
    /// ones.
    pub(super) fn forget_attributes(&self, node: u64) {
        self.forget(node, -1);
    }

    /// Makes the kernel write and drop the pages of a node from byte `offset` on, and drop its
    /// attributes. If a write fails, the kernel reports that to the process that wrote. The
    /// transport's threads must not call this.
    pub(super) fn release_pages(&self, node: u64, offset: i64) {
        self.forget(node, offset);
    }

    /// The same for all pages of all files that the kernel knows.
    pub(crate) fn release_all_pages(&self, volume: &Weak<Volume>) {
        let held = volume.upgrade().map(|volume| volume.held());
        for inode in held.into_iter().flatten() {
            self.forget(node_of(inode), 0);
        }
    }

    fn forget(&self, node: u64, offset: i64) {
        if let Some(notifier) = self.notifier.get() {
            // An error means that the kernel does not have the node any more.
            let _ = notifier.invalidate(node, offset);
        }
    }
}
