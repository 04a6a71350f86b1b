//! Requests for extended attributes, and `ioctl`.

use std::sync::Arc;

use pext4_fuse_kernel::{Operation, Reply, Request};

use super::replies::{done, sized};
use super::waiting::Context;
use super::{Requests, caller};
use crate::dispatch::{Dispatch, Errno, NewXattr};

impl Requests {
    pub(super) fn serve_values(&self, request: &Request<'_>, reply: Reply) {
        let (caller, node) = (caller(request), request.node);
        match request.operation {
            Operation::SetXattr {
                name,
                value,
                flags,
                clears_set_group_id,
            } => {
                let flags = flags.cast_signed();
                let set = move |context: Context<'_>, [name, value]: [&[u8]; 2]| {
                    let new = NewXattr {
                        value,
                        flags,
                        clears_set_group_id,
                    };
                    let set = context.dispatch.set_xattr(caller, node, name, new);
                    context.kernel.forget_attributes(node);
                    set
                };
                let waits = self.dispatch.commits_changes();
                self.run_or_offload(waits, [name, value], set, done, reply);
            }
            Operation::GetXattr { name, room } => {
                sized(self.dispatch.xattr(node, name), room, reply);
            }
            Operation::ListXattr { room } => {
                sized(self.dispatch.xattr_names(caller, node), room, reply);
            }
            Operation::RemoveXattr { name } => {
                let remove = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    let removed = context.dispatch.remove_xattr(node, name);
                    context.kernel.forget_attributes(node);
                    removed
                };
                let waits = self.dispatch.commits_changes();
                self.run_or_offload(waits, [name], remove, done, reply);
            }
            _ => reply.error(Errno::NO_SUCH_CALL.0),
        }
    }

    /// Executes a command of `ioctl`.
    pub(super) fn control(
        &self,
        request: &Request<'_>,
        (command, input, room): (u32, &[u8], u32),
        reply: Reply,
    ) {
        let (caller, node) = (caller(request), request.node);
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        let (input, room) = (input.to_vec(), room as usize);
        let work = move |reply: Reply| {
            if Dispatch::changes_flags(command) && !dispatch.is_read_only() {
                kernel.release_pages(node, 0);
            }
            match dispatch.control(caller, node, command, &input) {
                Ok(mut bytes) => {
                    kernel.forget_attributes(node);
                    bytes.truncate(room);
                    reply.controlled(&bytes);
                }
                Err(errno) => reply.error(errno.0),
            }
        };
        // The transport's threads serve the writes of the kernel's dirty pages, so none of them may
        // wait for these writes. They should not wait for the device either.
        if Dispatch::changes_flags(command) {
            self.run_page_release(request, Errno::BUSY, reply, work);
        } else if Dispatch::takes_long(command) {
            self.waiting.run(move || work(reply));
        } else {
            work(reply);
        }
    }
}
