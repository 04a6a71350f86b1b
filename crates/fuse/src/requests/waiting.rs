//! Requests that may have to wait: those that find no space while deleted files are about to be
//! freed, those that make a file grow that was just truncated, and those that are answered only
//! when they are durable (`-o sync` and `dirsync`, and the flags of files that say the same).
//!
//! The kernel's `FORGET` for a deleted file is read by the transport's threads, so these do not
//! wait for it. A request that finds no space there is repeated, with a copy of its bytes, on a
//! thread that may wait (`dispatch/space_retry.rs`), which also sends the reply. A request that
//! will wait for a commit runs there from the start. A thread that may wait never waits for the
//! kernel, since writes that the kernel sends may need such a thread first.

use std::sync::Arc;

use pext4_fuse_kernel::Reply;

use super::listings::Listings;
use super::{KernelCache, Requests};
use crate::dispatch::{Answer, Caller, Dispatch, Errno};
use crate::pending_errors::PendingErrors;

/// Why a write from the page cache failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WritebackError {
    pub(super) errno: Errno,
    /// Blocks that were free when it failed.
    pub(super) free_blocks: u64,
}

/// What a request needs from the transport, on whichever thread it runs.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) dispatch: &'a Dispatch,
    pub(super) kernel: &'a KernelCache,
    pub(super) listings: &'a Listings,
    pub(super) writeback_errors: &'a PendingErrors<WritebackError>,
}

impl Requests {
    /// Runs a request that comes with `bytes`, and replies with `send`: on another thread if the
    /// request `waits` for a commit, or if it turns out that it has to wait for space.
    pub(super) fn run_or_offload<const N: usize, T: 'static>(
        &self,
        waits: bool,
        bytes: [&[u8]; N],
        request: impl Fn(Context<'_>, [&[u8]; N]) -> Answer<T> + Send + 'static,
        send: fn(Answer<T>, Reply),
        reply: Reply,
    ) {
        let attempt = || self.attempt(|context| request(context, bytes));
        match (!waits).then(attempt).flatten() {
            Some(answer) => send(answer, reply),
            None => {
                let bytes = bytes.map(<[u8]>::to_vec);
                self.offload(move |context| {
                    let bytes = bytes.each_ref().map(Vec::as_slice);
                    send(request(context, bytes), reply);
                });
            }
        }
    }

    /// As [`Requests::run_or_offload`], for a request that may make a file grow to a size.
    pub(super) fn grow_or_offload<T: 'static>(
        &self,
        (node, size): (u64, u64),
        request: impl Fn(Context<'_>) -> Answer<T> + Send + 'static,
        send: fn(Answer<T>, Reply),
        reply: Reply,
    ) {
        let waits = self.dispatch.write_waits(node, size) || self.dispatch.commits_changes();
        let request = move |context: Context<'_>, []: [&[u8]; 0]| request(context);
        self.run_or_offload(waits, [], request, send, reply);
    }

    pub(super) fn context(&self) -> Context<'_> {
        Context {
            dispatch: &self.dispatch,
            kernel: &self.kernel,
            listings: &self.listings,
            writeback_errors: &self.writeback_errors,
        }
    }

    pub(super) fn attempt<T>(
        &self,
        request: impl FnOnce(Context<'_>) -> Answer<T>,
    ) -> Option<Answer<T>> {
        Dispatch::attempt(|| request(self.context()))
    }

    pub(super) fn offload(&self, work: impl FnOnce(Context<'_>) + Send + 'static) {
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        let listings = Arc::clone(&self.listings);
        let writeback_errors = Arc::clone(&self.writeback_errors);
        self.waiting.run(move || {
            work(Context {
                dispatch: &dispatch,
                kernel: &kernel,
                listings: &listings,
                writeback_errors: &writeback_errors,
            });
        });
    }
}

impl Context<'_> {
    /// Releases `count` holds on a node, and drops what is kept for it if none is left. The number
    /// may have its next life at any moment: so whether it is held is asked under the lock of what
    /// is dropped.
    pub(super) fn forget(self, node: u64, count: u64) {
        if self.dispatch.forget(node, count) {
            let is_held = || self.dispatch.is_held(node);
            self.writeback_errors.forget_unless(node, is_held);
            self.listings.forget_unless(node, is_held);
        }
    }

    /// Clears the set-id bits of a file whose content `caller` changes, if `is_due`. The kernel
    /// leaves that to the server, and still has the bits in its cached attributes. It must drop
    /// these before the caller continues; the caller's open file keeps the node, so the kernel has
    /// nothing to wait for.
    pub(super) fn clear_set_id(self, caller: Caller, node: u64, is_due: bool) -> Answer<()> {
        if is_due && self.dispatch.clear_set_id(caller, node)? {
            self.kernel.forget_attributes(node);
        }
        Ok(())
    }
}
