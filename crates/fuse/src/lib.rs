//! The FUSE server of pext4: a [`Volume`](pext4_fs::Volume) as a directory of the system.
//!
//! Transport and dispatch are apart. [`dispatch`] knows what each request of the FUSE protocol
//! means for a volume, and nothing of how requests arrive; `fuser_transport` carries them over
//! `/dev/fuse` with the crate `fuser`. A faster transport is a new file beside it.
//!
//! Life of a mount: [`mount::check`] says early what is missing; [`Server::mount`] attaches the
//! volume and starts the threads; [`Server::wait`] returns when the directory was unmounted (by
//! `umount`, by `fusermount3 -u`, or through an [`Unmounter`], which signals use), after the volume
//! has been closed.
//!
//! The kernel is the only one who changes a mounted volume, so that it may keep everything: names,
//! also those that do not exist, attributes, link targets and data, dirty data included. What
//! remains of the server's work is what the kernel does not know yet, or must make durable.

#![forbid(unsafe_code)]

pub mod complaints;
pub mod dispatch;
mod entrants;
mod fuser_transport;
pub mod mount;
mod node;
mod offload;
pub mod options;
mod overdue;
mod placement;
mod server;
mod signals;

pub use complaints::Complaints;
pub use dispatch::Dispatch;
pub use mount::{MountError, Unmounter};
pub use options::{OptionError, Options};
pub use server::{EndError, Server};
pub use signals::{end_on_signals, ending_signals};
