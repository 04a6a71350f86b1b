//! Requests for content: read, written, made durable, searched, allocated.

use std::cell::RefCell;
use std::sync::Arc;

use pext4_fuse_kernel::{Operation, Reply, Request, Statfs};

use super::replies::done;
use super::waiting::Context;
use super::write::Write;
use super::{Requests, caller};
use crate::dispatch::{Answer, Dispatch, Errno, Whence};

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Requests {
    pub(super) fn serve_content(&self, request: &Request<'_>, reply: Reply) {
        let node = request.node;
        match request.operation {
            Operation::Read {
                offset,
                size,
                flags,
            } => self.read(node, (offset, size), flags, reply),
            Operation::Write {
                offset,
                data,
                is_writeback,
                clears_set_id,
            } => {
                let write = Write {
                    node,
                    offset,
                    caller: caller(request),
                    clears_set_id,
                    is_writeback,
                };
                self.write_or_offload(write, data, reply);
            }
            Operation::Sync { data_only } => self.sync(node, data_only, reply),
            Operation::Statfs => self.statfs(reply),
            Operation::Seek { offset, whence } => self.seek(request, offset, whence, reply),
            Operation::Control {
                command,
                input,
                room,
            } => self.control(request, (command, input, room), reply),
            _ => reply.error(Errno::NO_SUCH_CALL.0),
        }
    }

    fn read(&self, node: u64, (offset, size): (u64, u32), flags: i32, reply: Reply) {
        let size = size.min(super::MAX_BYTES) as usize;
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.dispatch.read(node, offset, &mut buffer[..size], flags) {
                Ok(length) => reply.bytes(&buffer[..length]),
                Err(errno) => reply.error(errno.0),
            }
        });
    }

    /// Makes a file durable. The kernel sends this request only if it has no error of a write from
    /// the page cache to report to the caller instead. It does not update the cached block count
    /// itself, so it must drop the attributes.
    fn sync(&self, node: u64, data_only: bool, reply: Reply) {
        let dispatch = Arc::clone(&self.dispatch);
        let (kernel, writeback_errors) = (self.kernel.clone(), Arc::clone(&self.writeback_errors));
        self.waiting.run(move || {
            writeback_errors.take(node);
            let synced = dispatch.sync(node, data_only);
            if !dispatch.is_read_only() {
                kernel.forget_attributes(node);
            }
            done(synced, reply);
        });
    }

    fn statfs(&self, reply: Reply) {
        let statfs = self.dispatch.statfs();
        reply.statfs(&Statfs {
            blocks: statfs.blocks,
            free_blocks: statfs.free_blocks,
            available_blocks: statfs.available_blocks,
            inodes: statfs.inodes,
            free_inodes: statfs.free_inodes,
            block_size: statfs.block_size,
            name_length: statfs.name_length,
            fragment_size: statfs.block_size,
            ..Statfs::default()
        });
    }

    /// If the kernel is told that there is no such call, it takes all files for data from then on.
    fn seek(&self, request: &Request<'_>, offset: i64, whence: i32, reply: Reply) {
        let node = request.node;
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        self.run_page_release(request, Errno::NO_SUCH_CALL, reply, move |reply| {
            if !dispatch.is_read_only() {
                kernel.release_pages(node, offset);
            }
            match seek(&dispatch, node, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(errno) => reply.error(errno.0),
            }
        });
    }

    pub(super) fn allocate(
        &self,
        request: &Request<'_>,
        mode: u32,
        (offset, length): (u64, u64),
        reply: Reply,
    ) {
        let (caller, node) = (caller(request), request.node);
        let allocate = move |context: Context<'_>| {
            // For `fallocate` the kernel does not say whether the set-id bits must be cleared.
            let dispatch = context.dispatch;
            if dispatch.clear_set_id_unless_capable(caller, node)? {
                context.kernel.forget_attributes(node);
            }
            let allocated = dispatch.allocate(node, mode, offset, length);
            if allocated.is_err() {
                // It may have allocated a part, and the kernel drops the count of blocks only after
                // success.
                context.kernel.forget_attributes(node);
            }
            allocated
        };
        let end = offset.saturating_add(length);
        self.grow_or_offload((node, end), allocate, done, reply);
    }
}

fn seek(dispatch: &Dispatch, node: u64, offset: i64, whence: i32) -> Answer<i64> {
    // A negative offset is before the first byte.
    let from = u64::try_from(offset).map_err(|_| Errno::NO_SUCH_OFFSET)?;
    let found = dispatch.seek(node, from, Whence::from_number(whence)?)?;
    i64::try_from(found).map_err(|_| Errno::INVALID)
}
