//! Requests for names: looked up, made, moved, removed, listed. Each change is noted for the
//! listings that the kernel caches.

use pext4_fs::DeviceNumber;
use pext4_fuse_kernel::{Features, Listing, OpenFlags, Operation, Reply, Request};

use super::replies::{add, add_entry, bytes, done, entry, listed, no_entry, opened};
use super::waiting::Context;
use super::{Requests, caller};
use crate::dispatch::{Answer, Errno, NewMode};
use crate::node::node_of;

impl Requests {
    pub(super) fn serve_names(&self, request: &Request<'_>, reply: Reply) {
        let (dispatch, node) = (&self.dispatch, request.node);
        match request.operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::ReadLink => bytes(dispatch.read_link(node), reply),
            Operation::Unlink { name } => {
                let unlink = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    context.dispatch.unlink(node, name)
                };
                self.change_names([node], [name], unlink, done, reply);
            }
            Operation::RemoveDirectory { name } => {
                let remove = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    context.dispatch.remove_directory(node, name)
                };
                self.change_names([node], [name], remove, done, reply);
            }
            Operation::Rename { .. } | Operation::Link { .. } => self.move_name(request, reply),
            Operation::OpenDirectory { flags } => self.open_directory(node, flags, reply),
            Operation::ReleaseDirectory { handle } => {
                self.listings.close(node, handle);
                reply.done();
            }
            Operation::List {
                cookie,
                size,
                flags,
            } => {
                let mut listing = Listing::new(size);
                let answer = dispatch.list(node, cookie, flags, &mut |name, file_type| {
                    add(&mut listing, name, file_type)
                });
                listed(answer, &listing, reply);
            }
            Operation::ListWithAttributes {
                cookie,
                size,
                flags,
            } => {
                let mut listing = Listing::new(size);
                let is_lasting = dispatch.are_names_lasting(node);
                let answer = dispatch.list_with_attributes(
                    node,
                    cookie,
                    flags,
                    &mut |name, found| add_entry(&mut listing, name, found, is_lasting),
                    |refused| self.context().forget(refused, 1),
                );
                listed(answer, &listing, reply);
            }
            _ => self.make(request, reply),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: Reply) {
        match self.dispatch.lookup(parent, name).transpose() {
            Some(found) => entry(found, reply),
            None => no_entry(self.dispatch.is_absence_lasting(), reply),
        }
    }

    fn open_directory(&self, node: u64, flags: i32, reply: Reply) {
        if self.features.contains(Features::NO_OPEN_DIRECTORY) {
            return reply.error(Errno::NO_SUCH_CALL.0);
        }
        let (handle, flags) = match self.dispatch.lists_past_cache(flags) {
            true => (0, OpenFlags::empty()),
            false => self.listings.open(node),
        };
        reply.opened(handle, flags);
    }

    /// Runs a request that changes names in `directories`.
    fn change_names<const D: usize, const N: usize, T: 'static>(
        &self,
        directories: [u64; D],
        bytes: [&[u8]; N],
        request: impl Fn(Context<'_>, [&[u8]; N]) -> Answer<T> + Send + 'static,
        send: fn(Answer<T>, Reply),
        reply: Reply,
    ) {
        let waits = self.dispatch.commits_names(&directories);
        let change = move |context: Context<'_>, bytes: [&[u8]; N]| {
            let answer = request(context, bytes);
            for node in directories {
                context.listings.note_change(node);
            }
            answer
        };
        self.run_or_offload(waits, bytes, change, send, reply);
    }

    /// Makes an inode.
    fn make(&self, request: &Request<'_>, reply: Reply) {
        let (caller, parent) = (caller(request), request.node);
        match request.operation {
            Operation::MakeNode {
                name,
                mode,
                umask,
                device,
            } => {
                let device = DeviceNumber {
                    major: device.major,
                    minor: device.minor,
                };
                let make = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    let mode = NewMode { mode, umask };
                    context
                        .dispatch
                        .make_node(caller, parent, name, mode, device)
                };
                self.change_names([parent], [name], make, entry, reply);
            }
            Operation::MakeDirectory { name, mode, umask } => {
                let make = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    let mode = NewMode { mode, umask };
                    context.dispatch.make_directory(caller, parent, name, mode)
                };
                self.change_names([parent], [name], make, entry, reply);
            }
            Operation::MakeUnnamed { mode, umask } => {
                let make = move |context: Context<'_>, []: [&[u8]; 0]| {
                    let mode = NewMode { mode, umask };
                    context.dispatch.make_unnamed(caller, parent, mode)
                };
                self.run_or_offload(false, [], make, opened, reply);
            }
            Operation::MakeSymlink { name, target } => {
                let make = move |context: Context<'_>, [name, target]: [&[u8]; 2]| {
                    context.dispatch.make_symlink(caller, parent, name, target)
                };
                self.change_names([parent], [name, target], make, entry, reply);
            }
            _ => reply.error(Errno::NO_SUCH_CALL.0),
        }
    }

    /// Moves a name, or makes a further one.
    fn move_name(&self, request: &Request<'_>, reply: Reply) {
        let (caller, parent) = (caller(request), request.node);
        match request.operation {
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let rename = move |context: Context<'_>, [from, to]: [&[u8]; 2]| {
                    let dispatch = context.dispatch;
                    dispatch.rename(caller, parent, from, new_parent, to, flags)?;
                    if parent != new_parent {
                        note_new_parents(context, [(parent, from), (new_parent, to)]);
                    }
                    Ok(())
                };
                self.change_names([parent, new_parent], [name, new_name], rename, done, reply);
            }
            Operation::Link { node, new_name } => {
                let link = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    context.dispatch.link(node, parent, name)
                };
                self.change_names([parent], [new_name], link, entry, reply);
            }
            _ => reply.error(Errno::NO_SUCH_CALL.0),
        }
    }
}

/// Notes that the entry `..` of the directories that have these names may have changed.
fn note_new_parents(context: Context<'_>, names: [(u64, &[u8]); 2]) {
    for (parent, name) in names {
        let Ok(Some(found)) = context.dispatch.lookup(parent, name) else {
            continue;
        };
        let node = node_of(found.attributes.inode);
        context.listings.note_change(node);
        // The kernel may have forgotten the directory meanwhile.
        context.forget(node, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pext4_fs::Attributes;

    use super::{Context, OpenFlags, note_new_parents};
    use crate::dispatch::{Caller, Dispatch, Listed, NewMode};
    use crate::node::{ROOT_NODE, node_of};
    use crate::pending_errors::PendingErrors;
    use crate::requests::KernelCache;
    use crate::requests::listings::Listings;
    use crate::testing;

    /// A directory below the root; returns its node, held once.
    fn make_directory(dispatch: &Dispatch, name: &[u8]) -> u64 {
        let caller = Caller {
            uid: 0,
            gid: 0,
            thread: 0,
        };
        let mode = NewMode {
            mode: 0o755,
            umask: 0,
        };
        let made = dispatch.make_directory(caller, ROOT_NODE, name, mode);
        node_of(made.expect("room").attributes.inode)
    }

    #[test]
    fn a_moved_directory_that_the_kernel_has_forgotten_leaves_nothing_behind() {
        let volume = Arc::new(testing::volume());
        let dispatch = testing::dispatch(&volume);
        let (kernel, listings) = (KernelCache::default(), Listings::new());
        let context = Context {
            dispatch: &dispatch,
            kernel: &kernel,
            listings: &listings,
            writeback_errors: &PendingErrors::new(),
        };
        let node = make_directory(&dispatch, b"moved");
        listings.open(node);
        // The kernel forgets it while the server has looked it up.
        dispatch.forget(node, 1);
        note_new_parents(context, [(ROOT_NODE, b"moved"), (ROOT_NODE, b"none")]);
        let (_, flags) = listings.open(node);
        assert_eq!(flags, OpenFlags::CACHE_ENTRIES, "it begins anew");
    }

    #[test]
    fn an_entry_without_room_that_the_kernel_has_forgotten_leaves_nothing_behind() {
        let volume = Arc::new(testing::volume());
        let dispatch = testing::dispatch(&volume);
        let (kernel, listings) = (KernelCache::default(), Listings::new());
        let context = Context {
            dispatch: &dispatch,
            kernel: &kernel,
            listings: &listings,
            writeback_errors: &PendingErrors::new(),
        };
        let node = make_directory(&dispatch, b"last");
        listings.open(node);
        let mut take = |listed: &Listed, _: Option<&Attributes>| {
            let is_it = node_of(listed.inode) == node;
            // The kernel forgets it while the server holds it for the reply.
            context.forget(node, u64::from(is_it));
            !is_it
        };
        let give_back = |refused| context.forget(refused, 1);
        let listed = dispatch.list_with_attributes(ROOT_NODE, 0, 0, &mut take, give_back);
        assert_eq!(listed, Ok(()));
        let (_, flags) = listings.open(node);
        assert_eq!(flags, OpenFlags::CACHE_ENTRIES, "it begins anew");
    }
}
