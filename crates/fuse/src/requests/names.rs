//! Requests for names: looked up, made, moved, removed, listed.

use pext4_fs::DeviceNumber;
use pext4_fuse_kernel::{Listing, Operation, Reply, Request};

use super::replies::{add, add_entry, bytes, done, entry, listed, no_entry, opened};
use super::waiting::Context;
use super::{Requests, caller};
use crate::dispatch::{Answer, Errno, NewMode};

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
                self.change_names(&[node], [name], unlink, done, reply);
            }
            Operation::RemoveDirectory { name } => {
                let remove = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    context.dispatch.remove_directory(node, name)
                };
                self.change_names(&[node], [name], remove, done, reply);
            }
            Operation::Rename { .. } | Operation::Link { .. } => self.move_name(request, reply),
            Operation::List { cookie, size } => {
                let mut listing = Listing::new(size);
                let answer = dispatch.list(node, cookie, &mut |name, file_type| {
                    add(&mut listing, name, file_type)
                });
                listed(answer, &listing, reply);
            }
            Operation::ListWithAttributes { cookie, size } => {
                let mut listing = Listing::new(size);
                let answer = dispatch.list_with_attributes(node, cookie, &mut |name, found| {
                    add_entry(&mut listing, name, found)
                });
                listed(answer, &listing, reply);
            }
            _ => self.make(request, reply),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: Reply) {
        match self.dispatch.lookup(parent, name).transpose() {
            Some(found) => entry(found, reply),
            None => no_entry(reply),
        }
    }

    /// Runs a request that changes names in `directories`.
    fn change_names<const N: usize, T: 'static>(
        &self,
        directories: &[u64],
        bytes: [&[u8]; N],
        request: impl Fn(Context<'_>, [&[u8]; N]) -> Answer<T> + Send + 'static,
        send: fn(Answer<T>, Reply),
        reply: Reply,
    ) {
        let waits = self.dispatch.commits_names(directories);
        self.run_or_offload(waits, bytes, request, send, reply);
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
                self.change_names(&[parent], [name], make, entry, reply);
            }
            Operation::MakeDirectory { name, mode, umask } => {
                let make = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    let mode = NewMode { mode, umask };
                    context.dispatch.make_directory(caller, parent, name, mode)
                };
                self.change_names(&[parent], [name], make, entry, reply);
            }
            Operation::MakeNameless { mode, umask } => {
                let make = move |context: Context<'_>, []: [&[u8]; 0]| {
                    let mode = NewMode { mode, umask };
                    context.dispatch.make_nameless(caller, parent, mode)
                };
                self.run_or_offload(false, [], make, opened, reply);
            }
            Operation::MakeSymlink { name, target } => {
                let make = move |context: Context<'_>, [name, target]: [&[u8]; 2]| {
                    context.dispatch.make_symlink(caller, parent, name, target)
                };
                self.change_names(&[parent], [name, target], make, entry, reply);
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
                    context
                        .dispatch
                        .rename(caller, parent, from, new_parent, to, flags)
                };
                self.change_names(&[parent, new_parent], [name, new_name], rename, done, reply);
            }
            Operation::Link { node, new_name } => {
                let link = move |context: Context<'_>, [name]: [&[u8]; 1]| {
                    context.dispatch.link(node, parent, name)
                };
                self.change_names(&[parent], [new_name], link, entry, reply);
            }
            _ => reply.error(Errno::NO_SUCH_CALL.0),
        }
    }
}
