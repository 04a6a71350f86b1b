//! Requests that may find no space, while deleted files are about to be given back.
//!
//! The kernel's message that gives a file back comes to the threads that serve, so those do not wait for it: what
//! finds no space there is carried out again on a thread that may wait (`dispatch/room.rs`), with a copy of its bytes.
//! Whoever asked is answered from there. A thread that may wait for room never waits for the kernel: what the kernel
//! writes may want such a thread first.

use std::sync::Arc;

use fuser::{INodeNo, ReplyAttr, ReplyWrite};

use super::replies::{attributes, error};
use super::{FuserTransport, KernelCache};
use crate::dispatch::{Answer, Caller, Dispatch, Errno};
use crate::offload::Offload;
use crate::overdue::{Late, Overdue};

/// What is to be written where, but for the bytes.
#[derive(Clone, Copy)]
pub(super) struct Write {
    pub(super) node: INodeNo,
    pub(super) offset: u64,
    pub(super) caller: Caller,
    pub(super) takes_set_id: bool,
    /// Whether the kernel writes from its pages, for a caller that is long gone.
    pub(super) is_late: bool,
}

/// What a request is carried out with.
#[derive(Clone, Copy)]
pub(super) struct Sides<'a> {
    pub(super) dispatch: &'a Dispatch,
    pub(super) kernel: &'a KernelCache,
    overdue: &'a Overdue,
}

impl FuserTransport {
    /// Carries out a request that comes with these bytes, and answers it.
    pub(super) fn where_room_is<const N: usize, T: 'static, R: Send + 'static>(
        &self,
        bytes: [&[u8]; N],
        request: impl Fn(Sides<'_>, [&[u8]; N]) -> Answer<T> + Send + 'static,
        tell: fn(Answer<T>, R),
        reply: R,
    ) {
        match self.attempt(|sides| request(sides, bytes)) {
            Some(answer) => tell(answer, reply),
            None => {
                let bytes = bytes.map(<[u8]>::to_vec);
                self.where_one_may_wait(move |sides| {
                    let bytes = bytes.each_ref().map(Vec::as_slice);
                    tell(request(sides, bytes), reply);
                });
            }
        }
    }

    /// Writes, and answers the request. What was not written behind its caller's back is kept for the caller, and the
    /// kernel is made to ask for it, and for the content, which is not what the kernel thinks.
    pub(super) fn write_where_room_is(&self, write: Write, data: &[u8], reply: ReplyWrite) {
        match self.attempt(|sides| sides.write(write, data)) {
            Some(written) => {
                if self.sides().tell_written(write, written, data.len(), reply) {
                    let_go(&self.letting_go, &self.kernel, write.node);
                }
            }
            None => {
                let data = data.to_vec();
                let letting_go = Arc::clone(&self.letting_go);
                self.where_one_may_wait(move |sides| {
                    let written = sides.write(write, &data);
                    if sides.tell_written(write, written, data.len(), reply) {
                        let_go(&letting_go, sides.kernel, write.node);
                    }
                });
            }
        }
    }

    fn sides(&self) -> Sides<'_> {
        Sides {
            dispatch: &self.dispatch,
            kernel: &self.kernel,
            overdue: &self.overdue,
        }
    }

    fn attempt<T>(&self, request: impl FnOnce(Sides<'_>) -> Answer<T>) -> Option<Answer<T>> {
        Dispatch::attempt(|| request(self.sides()))
    }

    fn where_one_may_wait(&self, work: impl FnOnce(Sides<'_>) + Send + 'static) {
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        let overdue = Arc::clone(&self.overdue);
        self.waiting.run(move || {
            work(Sides {
                dispatch: &dispatch,
                kernel: &kernel,
                overdue: &overdue,
            });
        });
    }

    /// Tells a writer the error of a late write before it goes on. Where there was no space and some has
    /// come free since, it need not hear of it. That there is some is not enough: the next write may want more, and so
    /// may every one behind it.
    pub(super) fn tell_writer(&self, node: INodeNo, late: Late, reply: ReplyAttr) {
        if late.errno != Errno::NO_SPACE {
            return reply.error(error(late.errno));
        }
        self.where_one_may_wait(move |sides| {
            if sides.dispatch.has_more_room(late.free_blocks) {
                attributes(sides.dispatch.attributes(node.0), reply);
            } else {
                reply.error(error(late.errno));
            }
        });
    }
}

/// Has the kernel let go of a node's pages, on a thread that no write waits for: it writes the others first.
fn let_go(threads: &Offload, kernel: &KernelCache, node: INodeNo) {
    let kernel = kernel.clone();
    threads.run(move || kernel.let_go(node, 0));
}

impl Sides<'_> {
    fn write(self, write: Write, data: &[u8]) -> Answer<usize> {
        self.take_set_id(write.caller, write.node, write.takes_set_id)?;
        self.dispatch
            .write(write.node.0, write.offset, data, write.is_late)
    }

    /// Answers the request; true if an error was kept for a caller that is gone.
    fn tell_written(
        self,
        write: Write,
        written: Answer<usize>,
        length: usize,
        reply: ReplyWrite,
    ) -> bool {
        let errno = match written {
            // Of what it writes late the kernel takes no count: all or an error.
            Ok(written) if write.is_late && written < length => Errno::NO_SPACE,
            Ok(written) => {
                reply.written(u32::try_from(written).expect("no more than was sent"));
                return false;
            }
            Err(errno) => errno,
        };
        if write.is_late {
            let free_blocks = self.dispatch.free_blocks();
            self.overdue.keep(write.node.0, Late { errno, free_blocks });
        }
        reply.error(error(errno));
        write.is_late
    }

    /// Takes the set-id bits of a file whose content `caller` changes, if `due`. The kernel, which
    /// leaves that to the server, would remember them. It must forget before the caller goes on;
    /// the caller's open file keeps the node, so the kernel has nothing to wait for.
    pub(super) fn take_set_id(self, caller: Caller, node: INodeNo, due: bool) -> Answer<()> {
        if due && self.dispatch.take_set_id(caller, node.0)? {
            self.kernel.forget_attributes(node);
        }
        Ok(())
    }
}
