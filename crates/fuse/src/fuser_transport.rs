//! Carries requests over `/dev/fuse` with the crate `fuser`.
//!
//! Opening asks for all the caching that the kernel offers; what a kernel does not offer costs
//! round trips and nothing else. `OPEN`, `OPENDIR`, `CREATE` and `FLUSH` are answered "no such
//! call": the kernel then opens files without asking, makes them with `MKNOD` (which needs no
//! `RELEASE` later), and closes them as soon as it has written its dirty pages.
//!
//! The kernel looks for holes without writing its dirty pages first, and would take what it has not
//! written for a hole. So before a search the server tells it to let go of the pages, which makes
//! it write them.
//!
//! `fuser` takes the node number of a new node from the attributes' inode number: those are equal
//! but for the root, which is never new.

mod kernel_cache;
mod replies;
mod room;
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

use crate::dispatch::{Answer, Change, Dispatch, Errno, Listed, Whence};
use crate::entrants::Entrants;
use crate::offload::Offload;
use crate::overdue::Overdue;
use crate::placement::{self, Servers};
pub(crate) use kernel_cache::KernelCache;
use replies::{add, attributes, caller, done, entry, error, no_entry, sized};
use room::{Sides, Write};
use translate::{kind, time_from_fuser, time_to_set};

/// Most bytes of one write, and so of one read.
const MOST_BYTES: u32 = 1 << 20;

/// Requests the kernel may have under way for readahead and writeback.
const MOST_BACKGROUND: u16 = 64;

/// The transport: what `fuser` calls.
pub(crate) struct FuserTransport {
    dispatch: Arc<Dispatch>,
    /// What waits for the volume.
    waiting: Offload,
    /// What waits for the kernel to write a file's pages. The writes may have to wait in `waiting`, which is never
    /// kept by what waits for them.
    letting_go: Arc<Offload>,
    kernel: KernelCache,
    overdue: Arc<Overdue>,
    entrants: Entrants,
    servers: Servers,
}

thread_local! {
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl FuserTransport {
    /// Carries requests to `dispatch`.
    pub(crate) fn new(dispatch: Arc<Dispatch>, entrants: Entrants) -> Self {
        Self {
            dispatch,
            waiting: Offload::new(),
            letting_go: Arc::new(Offload::new()),
            kernel: KernelCache::default(),
            overdue: Arc::new(Overdue::new()),
            entrants,
            servers: Servers::new(),
        }
    }

    /// The way to the kernel's caches, to be connected as soon as there is a session.
    pub(crate) fn kernel(&self) -> KernelCache {
        self.kernel.clone()
    }

    /// Makes a file durable. The kernel asks for that only if no late write failed that the caller has not heard of.
    /// It counts no blocks itself, and must forget how many there were before it wrote.
    fn sync(&self, node: INodeNo, data_only: bool, reply: ReplyEmpty) {
        let dispatch = Arc::clone(&self.dispatch);
        let (kernel, overdue) = (self.kernel.clone(), Arc::clone(&self.overdue));
        self.waiting.run(move || {
            overdue.take(node.0);
            let synced = dispatch.sync(node.0, data_only);
            if !dispatch.is_read_only() {
                kernel.forget_attributes(node);
            }
            done(synced, reply);
        });
    }
}

/// What the kernel may do by itself.
fn wanted(read_only: bool, entrants: Entrants) -> InitFlags {
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
        | InitFlags::FUSE_NO_EXPORT_SUPPORT;
    wanted.set(InitFlags::FUSE_WRITEBACK_CACHE, !read_only);
    // With it the kernel judges, asked to or not.
    wanted.set(InitFlags::FUSE_POSIX_ACL, entrants.are_judged());
    wanted
}

impl Filesystem for FuserTransport {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in wanted(self.dispatch.is_read_only(), self.entrants).iter() {
            // A kernel without it asks more often.
            let _ = config.add_capabilities(flag);
        }
        // Both are within what fuser allows.
        let _ = config.set_max_write(MOST_BYTES);
        let _ = config.set_max_background(MOST_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.servers.serve(request.pid());
        match self.dispatch.lookup(parent.0, name.as_bytes()) {
            Ok(None) => no_entry(reply),
            Ok(Some(found)) => entry(Ok(found), reply),
            Err(errno) => entry(Err(errno), reply),
        }
    }

    fn forget(&self, _: &Request, node: INodeNo, count: u64) {
        self.overdue.take(node.0);
        self.dispatch.forget(node.0, count);
    }

    fn getattr(
        &self,
        request: &Request,
        node: INodeNo,
        writer: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.servers.serve(request.pid());
        // The kernel names an open file when it asks on behalf of a write; `stat` is not to fail.
        match writer.and_then(|_| self.overdue.take(node.0)) {
            Some(late) => self.tell_writer(node, late, reply),
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
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.servers.serve(request.pid());
        if size.is_some() {
            // Whoever sets a size begins anew; `close` and `fsync` still tell what was lost.
            self.overdue.take(node.0);
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
        attributes(
            self.dispatch
                .set_attributes(caller(request), node.0, &change),
            reply,
        );
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        self.servers.serve(request.pid());
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
        self.servers.serve(request.pid());
        let caller = caller(request);
        let make = move |sides: Sides<'_>, [name]: [&[u8]; 1]| {
            sides
                .dispatch
                .make_node(caller, parent.0, name, mode, umask, device)
        };
        self.where_room_is([name.as_bytes()], make, entry, reply);
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
        self.servers.serve(request.pid());
        let caller = caller(request);
        let make = move |sides: Sides<'_>, [name]: [&[u8]; 1]| {
            sides
                .dispatch
                .make_directory(caller, parent.0, name, mode, umask)
        };
        self.where_room_is([name.as_bytes()], make, entry, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.servers.serve(request.pid());
        done(self.dispatch.unlink(parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.servers.serve(request.pid());
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
        self.servers.serve(request.pid());
        let caller = caller(request);
        let make = move |sides: Sides<'_>, [name, target]: [&[u8]; 2]| {
            sides.dispatch.make_symlink(caller, parent.0, name, target)
        };
        let names = [name.as_bytes(), target.as_os_str().as_bytes()];
        self.where_room_is(names, make, entry, reply);
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
        self.servers.serve(request.pid());
        let (caller, flags) = (caller(request), flags.bits());
        let rename = move |sides: Sides<'_>, [from, to]: [&[u8]; 2]| {
            sides
                .dispatch
                .rename(caller, parent.0, from, new_parent.0, to, flags)
        };
        let names = [name.as_bytes(), new_name.as_bytes()];
        self.where_room_is(names, rename, done, reply);
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.servers.serve(request.pid());
        let link = move |sides: Sides<'_>, [name]: [&[u8]; 1]| {
            sides.dispatch.link(node.0, new_parent.0, name)
        };
        self.where_room_is([new_name.as_bytes()], link, entry, reply);
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
        if self.entrants.are_judged() {
            return reply.error(error(Errno::NO_SUCH_CALL));
        }
        self.servers.serve(request.pid());
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
        placement::serve_apart();
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
        placement::serve_apart();
        let write = Write {
            node,
            offset,
            caller: caller(request),
            takes_set_id: flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            is_late: flags.contains(WriteFlags::FUSE_WRITE_CACHE),
        };
        self.write_where_room_is(write, data, reply);
    }

    fn fsync(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        placement::serve_apart();
        self.sync(node, data, reply);
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, data: bool, reply: ReplyEmpty) {
        placement::serve_apart();
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
        self.servers.serve(request.pid());
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
        self.servers.serve(request.pid());
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
        placement::serve_apart();
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
        self.servers.serve(request.pid());
        let caller = caller(request);
        let set = move |sides: Sides<'_>, [name, value]: [&[u8]; 2]| {
            let set = sides.dispatch.set_xattr(caller, node.0, name, value, flags);
            sides.kernel.forget_attributes(node);
            set
        };
        self.where_room_is([name.as_bytes(), value], set, done, reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        room: u32,
        reply: ReplyXattr,
    ) {
        self.servers.serve(request.pid());
        sized(self.dispatch.xattr(node.0, name.as_bytes()), room, reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, room: u32, reply: ReplyXattr) {
        self.servers.serve(request.pid());
        sized(
            self.dispatch.xattr_names(caller(request), node.0),
            room,
            reply,
        );
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.servers.serve(request.pid());
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
        placement::serve_apart();
        let caller = caller(request);
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        let (input, room) = (input.to_vec(), room as usize);
        let work = move || {
            let answer = if Dispatch::changes_flags(command) && !dispatch.is_read_only() {
                dispatch.control_flags(caller, node.0, command, &input, || kernel.let_go(node, 0))
            } else {
                dispatch.control(caller, node.0, command, &input)
            };
            match answer {
                Ok(mut bytes) => {
                    kernel.forget_attributes(node);
                    bytes.truncate(room);
                    reply.ioctl(0, &bytes);
                }
                Err(errno) => reply.error(error(errno)),
            }
        };
        // The kernel's pages come in through the transport's threads, so none may wait for them, nor for the device.
        if Dispatch::changes_flags(command) {
            self.letting_go.run(work);
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
        self.servers.serve(request.pid());
        let caller = caller(request);
        let allocate = move |sides: Sides<'_>, []: [&[u8]; 0]| {
            // Here the kernel does not say who may leave the bits.
            sides.take_set_id(caller, node, !caller.is_root())?;
            let dispatch = sides.dispatch;
            dispatch.allocate(node.0, flags.cast_unsigned(), offset, length)
        };
        self.where_room_is([], allocate, done, reply);
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
        placement::serve_apart();
        let (dispatch, kernel) = (Arc::clone(&self.dispatch), self.kernel.clone());
        self.letting_go.run(move || {
            if !dispatch.is_read_only() {
                kernel.let_go(node, offset);
            }
            match seek(&dispatch, node, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(errno) => reply.error(error(errno)),
            }
        });
    }
}

fn seek(dispatch: &Dispatch, node: INodeNo, offset: i64, whence: i32) -> Answer<i64> {
    // No byte lies before the start.
    let from = u64::try_from(offset).map_err(|_| Errno::NO_SUCH_OFFSET)?;
    let found = dispatch.seek(node.0, from, Whence::from_number(whence)?)?;
    i64::try_from(found).map_err(|_| Errno::INVALID)
}
