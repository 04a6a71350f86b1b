//! Writes: run, answered, and their errors kept for programs that were told of success.

use std::sync::Arc;

use pext4_fuse_kernel::Reply;

use super::block_counts::BlockCounts;
use super::replies::attributes;
use super::waiting::{Context, WritebackError};
use super::{KernelCache, Requests};
use crate::dispatch::{Answer, Caller, Errno};
use crate::offload::Offload;

/// A write request without its bytes.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub(super) node: u64,
    pub(super) offset: u64,
    pub(super) caller: Caller,
    pub(super) clears_set_id: bool,
    /// Whether the kernel writes from its page cache: it has acknowledged the write to its process
    /// before.
    pub(super) is_writeback: bool,
}

impl Requests {
    /// As [`Requests::grow_or_offload`], for a write. If a write from the page cache fails,
    /// the error is kept for the process that wrote, and the kernel is made to drop the file's
    /// attributes and pages: the attributes so that it asks for the error, the pages because the
    /// file does not contain what they say.
    pub(super) fn write_or_offload(&self, write: Write, data: &[u8], reply: Reply) {
        let end = write.offset.saturating_add(data.len() as u64);
        let waits = self.dispatch.write_waits(write.node, end);
        let attempt = || self.attempt(|context| context.write(write, data));
        match (!waits).then(attempt).flatten() {
            Some(written) => {
                let context = self.context();
                let replied = context.reply_to_write(write, written, data.len(), reply);
                let (counts, pool) = (&self.block_counts, &self.page_release);
                follow_up(write, replied, &self.kernel, counts, pool);
            }
            None => {
                let data = data.to_vec();
                let counts = Arc::clone(&self.block_counts);
                let pool = Arc::clone(&self.page_release);
                self.offload(move |context| {
                    let written = context.write(write, &data);
                    let replied = context.reply_to_write(write, written, data.len(), reply);
                    follow_up(write, replied, context.kernel, &counts, &pool);
                });
            }
        }
    }

    /// Reports an error of a write from the page cache to the writing process before its next
    /// write. `ENOSPC` is not reported if there are more free blocks than when the write failed.
    /// That there are some is not enough: the next write may need more of them, and so may every
    /// write after it.
    pub(super) fn report_writeback_error(&self, node: u64, failed: WritebackError, reply: Reply) {
        if failed.errno != Errno::NO_SPACE {
            return reply.error(failed.errno.0);
        }
        self.offload(move |context| {
            if context.dispatch.has_more_space(failed.free_blocks) {
                attributes(context.dispatch.attributes(node), reply);
            } else {
                reply.error(failed.errno.0);
            }
        });
    }
}

/// How a write was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replied {
    /// All is written that the reply says.
    Written,
    /// With an error, which the program gets.
    Refused,
    /// With an error, after the kernel had told the program of success.
    TooLate,
}

/// Tells the kernel what it has to know after the reply to a write. `pool` runs what no write waits
/// for.
fn follow_up(
    write: Write,
    replied: Replied,
    kernel: &KernelCache,
    block_counts: &Arc<BlockCounts>,
    pool: &Offload,
) {
    match replied {
        Replied::Written if write.is_writeback => {
            block_counts.note_late_write(write.node, write.offset, pool);
        }
        Replied::Written | Replied::Refused => {}
        // Before it drops a node's pages, the kernel writes the other dirty ones.
        Replied::TooLate => {
            let kernel = kernel.clone();
            pool.run(move || kernel.release_pages(write.node, 0));
        }
    }
}

impl Context<'_> {
    fn write(self, write: Write, data: &[u8]) -> Answer<usize> {
        self.clear_set_id(write.caller, write.node, write.clears_set_id)?;
        self.dispatch.write(write.node, write.offset, data)
    }

    /// Replies to the request. An error is recorded for a process that the kernel has told of
    /// success.
    fn reply_to_write(
        self,
        write: Write,
        written: Answer<usize>,
        length: usize,
        reply: Reply,
    ) -> Replied {
        let errno = match written {
            // For a write from the page cache the kernel ignores the count: all is written, or it
            // is an error.
            Ok(written) if write.is_writeback && written < length => Errno::NO_SPACE,
            Ok(written) => {
                reply.written(u32::try_from(written).expect("no more than was sent"));
                return Replied::Written;
            }
            Err(errno) => errno,
        };
        if write.is_writeback {
            let free_blocks = self.dispatch.free_blocks();
            let failed = WritebackError { errno, free_blocks };
            self.writeback_errors.record(write.node, failed);
        }
        reply.error(errno.0);
        match write.is_writeback {
            true => Replied::TooLate,
            false => Replied::Refused,
        }
    }
}
