//! The transport over `/dev/fuse`, with the crate `fuser`.
//!
//! At the start of the session the server asks for all the caching that the kernel offers. If a
//! kernel lacks some of it, it sends more requests. The server answers `OPEN`, `OPENDIR`, `CREATE`
//! and `FLUSH` with `ENOSYS`: the kernel then opens files without a request, makes them with
//! `MKNOD` (which needs no `RELEASE` later), and closes them as soon as it has written its dirty
//! pages.
//!
//! The kernel sends `LSEEK` without writing its dirty pages first, so the server would report a
//! hole where data is still in these pages. So before a search the server makes the kernel write
//! and drop the pages.
//!
//! `fuser` takes the node number of a new node from the attributes' inode number. Both are equal
//! except for the root, which is never new.

mod block_counts;
mod kernel_cache;
mod replies;
mod space_retry;
mod translate;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use pext4_fs::{Attributes, SetTime};

use crate::access_policy::AccessPolicy;
use crate::dispatch::{Answer, Change, Dispatch, Errno, Listed, Named, NewMode, Whence};
use crate::offload::Offload;
use crate::pending_errors::PendingErrors;
use crate::placement::{self, Servers};
use block_counts::BlockCounts;
pub(crate) use kernel_cache::KernelCache;
use replies::{add, attributes, caller, done, entry, error, no_entry, sized};
use space_retry::{Context, Write, WritebackError};
use translate::{kind, time_from_fuser, time_to_set};

/// Most bytes of one write request; the kernel uses the same bound for reads.
const MAX_BYTES: u32 = 1 << 20;

/// Background requests (readahead and writeback) that the kernel may have in flight.
const MAX_BACKGROUND: u16 = 64;

/// The file system object whose methods `fuser` calls.
pub(crate) struct FuserTransport {
    dispatch: Arc<Dispatch>,
    /// Runs requests that wait for the volume.
    waiting: Offload,
    /// Runs jobs that wait for the kernel to write a file's pages. These writes may have to wait in
    /// `waiting`, so a job that waits for them never occupies a worker there. They also need the
    /// transport's threads, so none of these may run such a job: the pool has a worker from the
    /// start.
    page_release: Arc<Offload>,
    kernel: KernelCache,
    block_counts: Arc<BlockCounts>,
    /// Errors of writes that the kernel had acknowledged to their programs before.
    writeback_errors: Arc<PendingErrors<WritebackError>>,
    access_policy: AccessPolicy,
    servers: Servers,
}

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl FuserTransport {
    /// A transport that passes requests to `dispatch`.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    pub(crate) fn new(dispatch: Arc<Dispatch>, access_policy: AccessPolicy) -> io::Result<Self> {
        let kernel = KernelCache::default();
        Ok(Self {
            dispatch,
            waiting: Offload::new(),
            page_release: Arc::new(Offload::with_worker()?),
            block_counts: Arc::new(BlockCounts::new(kernel.clone())),
            kernel,
            writeback_errors: Arc::new(PendingErrors::new()),
            access_policy,
            servers: Servers::new(),
        })
    }

    /// The sender of notifications to the kernel, to be connected as soon as there is a session.
    pub(crate) fn kernel(&self) -> KernelCache {
        self.kernel.clone()
    }

    /// Makes a file durable. The kernel sends this request only if it has no error of a write from
    /// the page cache to report to the caller instead. It does not update the cached block count
    /// itself, so it must drop the attributes.
    fn sync(&self, node: INodeNo, data_only: bool, reply: ReplyEmpty) {
        let dispatch = Arc::clone(&self.dispatch);
        let (kernel, writeback_errors) = (self.kernel.clone(), Arc::clone(&self.writeback_errors));
        self.waiting.run(move || {
            writeback_errors.take(node.0);
            let synced = dispatch.sync(node.0, data_only);
            if !dispatch.is_read_only() {
                kernel.forget_attributes(node);
            }
            done(synced, reply);
        });
    }
}

/// The capabilities that the server asks the kernel for.
fn wanted(read_only: bool, access_policy: AccessPolicy) -> InitFlags {
    let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_NO_OPEN_SUPPORT
        | InitFlags::FUSE_NO_OPENDIR_SUPPORT
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_HAS_IOCTL_DIR
        | InitFlags::FUSE_DONT_MASK
        | InitFlags::FUSE_HANDLE_KILLPRIV_V2
        | InitFlags::FUSE_EXPORT_SUPPORT;
    wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, !read_only);
    // With this flag the kernel checks permissions even without `default_permissions`.
    wanted.set(
        InitFlags::FUSE_POSIX_ACL,
        access_policy.is_checked_by_kernel(),
    );
    wanted
}

impl Filesystem for FuserTransport {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in wanted(self.dispatch.is_read_only(), self.access_policy).iter() {
            // A kernel without the capability sends more requests.
            let _ = config.add_capabilities(flag);
        }
        // Both are within what fuser allows.
        let _ = config.set_max_write(MAX_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        // It is a power of ten.
        let _ = config.set_time_granularity(self.dispatch.time_granularity());
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _call = self.servers.begin_call(request.pid());
        match self.dispatch.lookup(parent.0, name.as_bytes()) {
            Ok(None) => no_entry(reply),
            Ok(Some(found)) => entry(Ok(found), reply),
            Err(errno) => entry(Err(errno), reply),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        if self.dispatch.forget(node.0, count) {
            self.writeback_errors.take(node.0);
        }
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        writer: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let _call = self.servers.begin_call(request.pid());
        // The kernel names an open file if it asks on behalf of a write; `stat` must not fail.
        match writer.and_then(|_| self.writeback_errors.take(node.0)) {
            Some(failed) => self.report_writeback_error(node, failed, reply),
            None => attributes(self.dispatch.attributes(node.0), reply),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        file: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _call = self.servers.begin_call(request.pid());
        if size.is_some() {
            // A new size starts the content afresh; `close` and `fsync` still report the lost
            // write.
            self.writeback_errors.take(node.0);
        }
        let change = Change {
            mode,
            uid,
            gid,
            size,
            accessed: accessed.map(time_to_set),
            modified: modified.map(time_to_set),
            changed: changed.map(|time| SetTime::To(time_from_fuser(time))),
        };
        let caller = caller(request);
        let named = match file {
            Some(_) => Named::OpenFile,
            None => Named::Node,
        };
        let set = move |context: Context<'_>| {
            let dispatch = context.dispatch;
            dispatch.set_attributes(caller, node.0, &change, named)
        };
        match size {
            Some(size) => self.grow_or_offload((node, size), set, attributes, reply),
            None => {
                let set = move |context: Context<'_>, []: [&[u8]; 0]| set(context);
                self.run_or_offload([], set, attributes, reply);
            }
        }
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let _call = self.servers.begin_call(request.pid());
        match self.dispatch.read_link(node.0) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let caller = caller(request);
        let make = move |context: Context<'_>, [name]: [&[u8]; 1]| {
            context
                .dispatch
                .make_node(caller, parent.0, name, NewMode { mode, umask }, device)
        };
        self.run_or_offload([name.as_bytes()], make, entry, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let caller = caller(request);
        let make = move |context: Context<'_>, [name]: [&[u8]; 1]| {
            context
                .dispatch
                .make_directory(caller, parent.0, name, NewMode { mode, umask })
        };
        self.run_or_offload([name.as_bytes()], make, entry, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _call = self.servers.begin_call(request.pid());
        done(self.dispatch.unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _call = self.servers.begin_call(request.pid());
        done(
            self.dispatch.remove_directory(parent.0, name.as_bytes()),
            reply,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let caller = caller(request);
        let make = move |context: Context<'_>, [name, target]: [&[u8]; 2]| {
            context
                .dispatch
                .make_symlink(caller, parent.0, name, target)
        };
        let names = [name.as_bytes(), target.as_os_str().as_bytes()];
        self.run_or_offload(names, make, entry, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let (caller, flags) = (caller(request), flags.bits());
        let rename = move |context: Context<'_>, [from, to]: [&[u8]; 2]| {
            context
                .dispatch
                .rename(caller, parent.0, from, new_parent.0, to, flags)
        };
        let names = [name.as_bytes(), new_name.as_bytes()];
        self.run_or_offload(names, rename, done, reply);
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let link = move |context: Context<'_>, [name]: [&[u8]; 1]| {
            context.dispatch.link(node.0, new_parent.0, name)
        };
        self.run_or_offload([new_name.as_bytes()], link, entry, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(error(Errno::NO_SUCH_CALL));
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(error(Errno::NO_SUCH_CALL));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(error(Errno::NO_SUCH_CALL));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(error(Errno::NO_SUCH_CALL));
    }

    fn access(&self, request: &Request, node: INodeNo, wanted: AccessFlags, reply: ReplyEmpty) {
        if self.access_policy.is_checked_by_kernel() {
            return reply.error(error(Errno::NO_SUCH_CALL));
        }
        let _call = self.servers.begin_call(request.pid());
        let write = wanted.contains(AccessFlags::W_OK);
        let execute = wanted.contains(AccessFlags::X_OK);
        let answer = self.dispatch.check_access_of_root(node.0, write, execute);
        done(answer, reply);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _request = placement::begin_data_request();
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self
                .dispatch
                .read(node.0, offset, &mut buffer[..size], flags.0);
            match read {
                Ok(length) => reply.data(&buffer[..length]),
                Err(errno) => reply.error(error(errno)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _request = placement::begin_data_request();
        let write = Write {
            node,
            offset,
            caller: caller(request),
            clears_set_id: flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            is_writeback: flags.contains(WriteFlags::FUSE_WRITE_CACHE),
        };
        self.write_or_offload(write, data, reply);
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        let _request = placement::begin_data_request();
        self.sync(node, data, reply);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        let _request = placement::begin_data_request();
        self.sync(node, data, reply);
    }

    fn readdir(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectory,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let listed = self
            .dispatch
            .list(node.0, cookie, &mut |listed, file_type| {
                let number = INodeNo(u64::from(listed.inode.get()));
                !reply.add(
                    number,
                    listed.cookie,
                    kind(file_type),
                    OsStr::from_bytes(&listed.name),
                )
            });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        cookie: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let mut take = |listed: &Listed, found: Option<&Attributes>| add(&mut reply, listed, found);
        match self
            .dispatch
            .list_with_attributes(node.0, cookie, &mut take)
        {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _request = placement::begin_data_request();
        let statfs = self.dispatch.statfs();
        reply.statfs(
            statfs.blocks,
            statfs.free_blocks,
            statfs.available_blocks,
            statfs.inodes,
            statfs.free_inodes,
            statfs.block_size,
            statfs.name_length,
            statfs.block_size,
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let caller = caller(request);
        let set = move |context: Context<'_>, [name, value]: [&[u8]; 2]| {
            let set = context
                .dispatch
                .set_xattr(caller, node.0, name, value, flags);
            context.kernel.forget_attributes(node);
            set
        };
        self.run_or_offload([name.as_bytes(), value], set, done, reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        room: u32,
        reply: ReplyXattr,
    ) {
        let _call = self.servers.begin_call(request.pid());
        sized(self.dispatch.xattr(node.0, name.as_bytes()), room, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, room: u32, reply: ReplyXattr) {
        let _call = self.servers.begin_call(request.pid());
        sized(
            self.dispatch.xattr_names(caller(request), node.0),
            room,
            reply,
        );
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _call = self.servers.begin_call(request.pid());
        let removed = self.dispatch.remove_xattr(node.0, name.as_bytes());
        self.kernel.forget_attributes(node);
        done(removed, reply);
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        room: u32,
        reply: ReplyIoctl,
    ) {
        let _request = placement::begin_data_request();
        let caller = caller(request);
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        let (input, room) = (input.to_vec(), room as usize);
        let work = move || {
            if Dispatch::changes_flags(command) && !dispatch.is_read_only() {
                kernel.release_pages(node, 0);
            }
            match dispatch.control(caller, node.0, command, &input) {
                Ok(mut bytes) => {
                    kernel.forget_attributes(node);
                    bytes.truncate(room);
                    reply.ioctl(0, &bytes);
                }
                Err(errno) => reply.error(error(errno)),
            }
        };
        // The transport's threads serve the writes of the kernel's dirty pages, so none of them may
        // wait for these writes. They should not wait for the device either.
        if Dispatch::changes_flags(command) {
            self.page_release.run(work);
        } else if Dispatch::takes_long(command) {
            self.waiting.run(work);
        } else {
            work();
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let _call = self.servers.begin_call(request.pid());
        let caller = caller(request);
        let allocate = move |context: Context<'_>| {
            // For `fallocate` the kernel does not say whether the set-id bits must be cleared.
            let dispatch = context.dispatch;
            if dispatch.clear_set_id_unless_capable(caller, node.0)? {
                context.kernel.forget_attributes(node);
            }
            dispatch.allocate(node.0, flags.cast_unsigned(), offset, length)
        };
        let end = offset.saturating_add(length);
        self.grow_or_offload((node, end), allocate, done, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let _request = placement::begin_data_request();
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        self.page_release.run(move || {
            if !dispatch.is_read_only() {
                kernel.release_pages(node, offset);
            }
            match seek(&dispatch, node, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(errno) => reply.error(error(errno)),
            }
        });
    }
}

fn seek(dispatch: &Dispatch, node: INodeNo, offset: i64, whence: i32) -> Answer<i64> {
    // A negative offset is before the first byte.
    let from = u64::try_from(offset).map_err(|_| Errno::NO_SUCH_OFFSET)?;
    let found = dispatch.seek(node.0, from, Whence::from_number(whence)?)?;
    i64::try_from(found).map_err(|_| Errno::INVALID)
}
