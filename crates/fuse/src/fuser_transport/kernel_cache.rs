//! What the kernel is told to forget without having asked.
//!
//! The kernel keeps names, attributes and pages for as long as it likes; where the server knows better, it says so
//! here. A notification about pages makes the kernel write the dirty ones first: their writes come to the threads that
//! serve, so none of those may wait for it. One about attributes waits for nothing but an inode that the kernel is
//! just letting go of, so it is for a node that the caller of the request is using.

use std::sync::{Arc, OnceLock, Weak};

use fuser::{INodeNo, Notifier};
use pext4_fs::Volume;

use crate::node::node_of;

/// The way to the kernel's caches, which there is as soon as the session has begun.
#[derive(Clone, Default)]
pub(crate) struct KernelCache {
    notifier: Arc<OnceLock<Notifier>>,
}

impl KernelCache {
    /// From now on the kernel can be told.
    pub(crate) fn connect(&self, notifier: impl FnOnce() -> Notifier) {
        self.notifier.get_or_init(notifier);
    }

    /// Has the kernel ask anew for the attributes of a node that an answer does not tell it of.
    pub(super) fn forget_attributes(&self, node: INodeNo) {
        self.forget(node, -1);
    }

    /// Has the kernel write and let go of the pages of a node from `offset` on, and ask anew for its attributes. What
    /// it cannot write now it tells the writer. Not for the threads that serve.
    pub(super) fn let_go(&self, node: INodeNo, offset: i64) {
        self.forget(node, offset);
    }

    /// The same with the pages of all files that the kernel knows.
    pub(crate) fn let_all_go(&self, volume: &Weak<Volume>) {
        let held = volume.upgrade().map(|volume| volume.held());
        for inode in held.into_iter().flatten() {
            self.forget(INodeNo(node_of(inode)), 0);
        }
    }

    fn forget(&self, node: INodeNo, offset: i64) {
        if let Some(notifier) = self.notifier.get() {
            // A kernel that has let go of the node has nothing to forget.
            let _ = notifier.inval_inode(node, offset, 0);
        }
    }
}
