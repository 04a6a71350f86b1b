//! The requests of a mount: which part of the dispatch executes each, on which thread, and what the
//! kernel is told besides the reply.
//!
//! At the start of the session the server asks for all the caching that the kernel offers. If a
//! kernel lacks some of it, it sends more requests. The server answers `OPEN`, `CREATE` and `FLUSH`
//! with `ENOSYS`: the kernel then opens files without a request (not with `-o strict_open`), makes
//! them with `MKNOD` (which needs no `RELEASE` later), and closes them as soon as it has written
//! its dirty pages. So it does with directories where names never change; elsewhere it asks at each
//! opening (`listings.rs`).
//!
//! The kernel sends `LSEEK` without writing its dirty pages first, so the server would report a
//! hole where data is still in these pages. So before a search the server makes the kernel write
//! and drop the pages.

mod block_counts;
mod content;
mod kept_entries;
mod kernel_cache;
mod listings;
mod names;
mod replies;
mod values;
mod waiting;
mod write;

use std::io;
use std::sync::Arc;

use pext4_fs::{AccessTimes, SetTime, Time};
use pext4_fuse_kernel::{
    Features, Forgotten, NewTime, OpenFlags, Operation, Reply, Request, Serve, SetAttributes,
    Wanted,
};

use crate::access_policy::AccessPolicy;
use crate::dispatch::{Caller, Change, Dispatch, Errno, Named};
use crate::offload::Offload;
use crate::options::KernelOptions;
use crate::pending_errors::PendingErrors;
use crate::placement::{self, Servers};
use block_counts::BlockCounts;
use kept_entries::KeptEntries;
pub(crate) use kernel_cache::KernelCache;
use listings::Listings;
use replies::{attributes, done, statx};
use waiting::{Context, WritebackError};

/// Most bytes of one write request; the kernel uses the same bound for reads.
const MAX_BYTES: u32 = 1 << 20;

/// Background requests (readahead and writeback) that the kernel may have in flight.
const MAX_BACKGROUND: u16 = 64;

/// Executes the requests of a mount.
pub(crate) struct Requests {
    dispatch: Arc<Dispatch>,
    /// Runs requests that wait for the volume.
    waiting: Offload,
    /// Runs jobs that wait for the kernel to write a file's pages. These writes may have to wait in
    /// `waiting`, so a job that waits for them never occupies a worker there. They also need the
    /// transport's threads, so none of these may run such a job: the pool has a worker from the
    /// start.
    page_release: Arc<Offload>,
    /// Entries of rings that requests in `page_release` keep.
    kept_entries: KeptEntries,
    kernel: KernelCache,
    listings: Arc<Listings>,
    block_counts: Arc<BlockCounts>,
    /// Errors of writes that the kernel had acknowledged to their programs before.
    writeback_errors: Arc<PendingErrors<WritebackError>>,
    access_policy: AccessPolicy,
    /// What the server asks the kernel for, if the kernel offers it.
    features: Features,
    servers: Servers,
}

impl Requests {
    /// Executes requests by `dispatch`.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    pub(crate) fn new(
        dispatch: Arc<Dispatch>,
        access_policy: AccessPolicy,
        options: &KernelOptions,
    ) -> io::Result<Self> {
        let kernel = KernelCache::default();
        let features = features(dispatch.is_read_only(), access_policy, options);
        Ok(Self {
            dispatch,
            waiting: Offload::new(),
            page_release: Arc::new(Offload::with_worker()?),
            kept_entries: KeptEntries::default(),
            block_counts: Arc::new(BlockCounts::new(kernel.clone())),
            kernel,
            listings: Arc::new(Listings::new()),
            writeback_errors: Arc::new(PendingErrors::new()),
            access_policy,
            features,
            servers: Servers::new(),
        })
    }

    /// The sender of notifications to the kernel, to be connected as soon as there is a session.
    pub(crate) fn kernel(&self) -> KernelCache {
        self.kernel.clone()
    }

    /// What the server asks the kernel for.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted {
            features: self.features,
            max_write: MAX_BYTES,
            max_background: MAX_BACKGROUND,
            time_granularity: self.dispatch.time_granularity(),
        }
    }

    /// Executes a request for which a process waits, as it does for names and attributes.
    fn call(&self, request: &Request<'_>, reply: Reply) {
        let is_kept = request.is_through_ring;
        let _call = (!is_kept).then(|| {
            let directory = changed_directory(request);
            self.servers.begin_call(request.caller.thread, directory)
        });
        match request.operation {
            Operation::GetAttributes { has_file } => {
                self.get_attributes(request.node, has_file, reply);
            }
            Operation::Statx => statx(self.dispatch.attributes(request.node), reply),
            Operation::SetAttributes(ref set) => self.set_attributes(request, set, reply),
            Operation::Access { mask } => self.check_access(request.node, mask, reply),
            Operation::Open { flags } => self.open(request.node, flags, reply),
            Operation::Allocate {
                offset,
                length,
                mode,
            } => self.allocate(request, mode, (offset, length), reply),
            Operation::SetXattr { .. }
            | Operation::GetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::RemoveXattr { .. } => self.serve_values(request, reply),
            _ => self.serve_names(request, reply),
        }
    }

    /// Runs a request that has the kernel write pages while its caller waits, and that replies. It
    /// is refused if it came through a ring and too many such requests wait already.
    fn run_page_release(
        &self,
        request: &Request<'_>,
        refusal: Errno,
        reply: Reply,
        work: impl FnOnce(Reply) + Send + 'static,
    ) {
        if !request.is_through_ring || self.dispatch.is_read_only() {
            return self.page_release.run(move || work(reply));
        }
        match self.kept_entries.keep() {
            Some(entry) => self.page_release.run(move || {
                work(reply);
                drop(entry);
            }),
            None => reply.error(refusal.0),
        }
    }

    fn get_attributes(&self, node: u64, has_file: bool, reply: Reply) {
        // The kernel names an open file if it asks on behalf of a write; `stat` must not fail.
        let failed = has_file.then(|| self.writeback_errors.take(node)).flatten();
        match failed {
            Some(failed) => self.report_writeback_error(node, failed, reply),
            None => attributes(self.dispatch.attributes(node), reply),
        }
    }

    fn set_attributes(&self, request: &Request<'_>, set: &SetAttributes, reply: Reply) {
        let node = request.node;
        if set.size.is_some() {
            // A new size starts the content afresh; `close` and `fsync` still report the lost
            // write.
            self.writeback_errors.take(node);
        }
        let (caller, change) = (caller(request), change(set));
        let named = match set.has_file {
            true => Named::OpenFile,
            false => Named::Node,
        };
        let set = move |context: Context<'_>| {
            let dispatch = context.dispatch;
            dispatch.set_attributes(caller, node, &change, named)
        };
        match change.size {
            Some(size) => self.grow_or_offload((node, size), set, attributes, reply),
            None => {
                let set = move |context: Context<'_>, []: [&[u8]; 0]| set(context);
                let waits = self.dispatch.commits_changes();
                self.run_or_offload(waits, [], set, attributes, reply);
            }
        }
    }

    fn open(&self, node: u64, flags: i32, reply: Reply) {
        if self.features.contains(Features::NO_OPEN) {
            return reply.error(Errno::NO_SUCH_CALL.0);
        }
        match self.dispatch.check_open(node, flags) {
            Ok(()) => reply.opened(0, OpenFlags::KEEP_CACHE | OpenFlags::NO_FLUSH),
            Err(errno) => reply.error(errno.0),
        }
    }

    fn check_access(&self, node: u64, mask: u32, reply: Reply) {
        const WRITE: u32 = 2;
        const EXECUTE: u32 = 1;
        let (write, execute) = (mask & WRITE != 0, mask & EXECUTE != 0);
        done(
            self.dispatch.check_access_of_root(node, write, execute),
            reply,
        );
    }
}

impl Serve for Requests {
    fn serve(&self, request: Request<'_>, reply: Reply) {
        if request.is_through_ring {
            self.servers.note_kept();
        }
        match request.operation {
            Operation::Access { .. } if self.access_policy.is_checked_by_kernel() => {
                reply.error(Errno::NO_SUCH_CALL.0);
            }
            Operation::Other(_) => reply.error(Errno::NO_SUCH_CALL.0),
            Operation::Release | Operation::Destroy => reply.done(),
            Operation::Read { .. }
            | Operation::Write { .. }
            | Operation::Sync { .. }
            | Operation::Statfs
            | Operation::Control { .. }
            | Operation::Seek { .. } => {
                let _request = placement::begin_data_request();
                self.serve_content(&request, reply);
            }
            _ => self.call(&request, reply),
        }
    }

    fn forget(&self, forgotten: Forgotten<'_>) {
        for (node, count) in forgotten.iter() {
            self.context().forget(node, count);
        }
    }
}

/// The directory in which a request changes names, which the kernel locks meanwhile.
fn changed_directory(request: &Request<'_>) -> Option<u64> {
    let changes = matches!(
        request.operation,
        Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::MakeSymlink { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
    );
    changes.then_some(request.node)
}

/// What the server uses of what the kernel offers.
fn features(read_only: bool, access_policy: AccessPolicy, options: &KernelOptions) -> Features {
    let mut features = Features::ASYNC_READ
        | Features::EXPORT
        | Features::BIG_WRITES
        | Features::NO_MASK
        | Features::CONTROL_DIRECTORIES
        | Features::LIST_WITH_ATTRIBUTES
        | Features::LIST_AS_NEEDED
        | Features::ASYNC_DIRECT
        | Features::PARALLEL_DIRECTORIES
        | Features::MAX_PAGES
        | Features::CLEARS_SET_ID;
    // What the kernel answers from its cache is not noted as an access.
    let notes_each = options.access_times == AccessTimes::Strict;
    features.set(Features::CACHE_LINKS, read_only || !notes_each);
    features.set(Features::WRITEBACK_CACHE, !read_only);
    // On a read-only mount no file can be opened for writing, and no name changes.
    features.set(Features::NO_OPEN, read_only || !options.strict_open);
    features.set(Features::NO_OPEN_DIRECTORY, read_only);
    features.set(Features::OVER_IO_URING, options.io_uring);
    // With this feature the kernel checks permissions even without `default_permissions`.
    let checked_by_kernel = access_policy.is_checked_by_kernel();
    features.set(Features::ACCESS_LISTS, checked_by_kernel);
    // Without that one the kernel never says that the bit goes.
    features.set(Features::SET_GROUP_ID_OF_LISTS, checked_by_kernel);
    features
}

fn caller(request: &Request<'_>) -> Caller {
    Caller {
        uid: request.caller.uid,
        gid: request.caller.gid,
        thread: request.caller.thread,
    }
}

fn change(set: &SetAttributes) -> Change {
    let time = |time: NewTime| match time {
        NewTime::Now => SetTime::Now,
        NewTime::At {
            seconds,
            nanoseconds,
        } => SetTime::To(Time {
            seconds,
            nanoseconds,
        }),
    };
    Change {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        accessed: set.accessed.map(time),
        modified: set.modified.map(time),
        changed: set.changed.map(time),
    }
}
