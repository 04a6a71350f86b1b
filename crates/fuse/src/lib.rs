//! The FUSE server of pext4: mounts a [`Volume`](pext4_fs::Volume) on a directory.
//!
//! Transport and dispatch are separate. The crate `pext4-fuse-kernel` carries the requests of the
//! FUSE protocol; `requests` decides on which thread each is executed, and what the kernel is told
//! besides the reply; `dispatch` executes them on a volume, and does not know how they arrive.
//!
//! Life of a mount: [`mount::check`] reports early what is missing; [`Server::mount`] attaches the
//! volume and starts the threads; [`Server::wait`] closes the volume after the directory was
//! unmounted (by `umount`, by `fusermount3 -u`, or by an [`Unmounter`], which signals use), and
//! then returns.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use pext4_block::FileDevice;
//! use pext4_fs::Volume;
//! use pext4_fuse::{ErrorLog, ImageRange, Options, Server, mount};
//!
//! let mut options = Options::default();
//! options.apply("allow_other,offset=1048576,commit=30")?;
//! let directory = mount::check(Path::new("mnt"))?;
//! let file = Path::new("disk.img").canonicalize()?;
//! let ImageRange { offset, length } = options.image;
//! let wait = FileDevice::USUAL_WAIT; // for a mount that is just closing
//! let device = FileDevice::open_range(&file, offset, length, options.access(), wait)?;
//! let volume = Volume::open(Arc::new(device), options.volume_on(&directory))?;
//! let source = mount::Source { file, offset };
//! let log = Arc::new(ErrorLog::new(|line| eprintln!("{line}")));
//! let server = Server::mount(volume, &directory, &source, &options.kernel, log)?;
//! // Another thread ends it by `unmounter.end()`, a person by `umount mnt`.
//! let unmounter = server.unmounter();
//! server.wait()?;
//! # drop(unmounter);
//! # Ok(())
//! # }
//! ```
//!
//! Only the kernel changes a mounted volume, so it may cache everything: names, also those that do
//! not exist, attributes, link targets and data, including dirty data. The server is asked only for
//! what the kernel has not cached, and for what must become durable.

#![forbid(unsafe_code)]

mod access_policy;
mod dispatch;
pub mod error_log;
pub mod mount;
mod node;
mod offload;
mod openers;
pub mod options;
mod pending_errors;
mod placement;
pub mod report;
mod requests;
mod server;
mod signals;
#[cfg(test)]
mod testing;

pub use error_log::ErrorLog;
pub use mount::{MountError, Unmounter};
pub use openers::OpenersDelay;
pub use options::{ImageRange, OptionError, Options};
pub use pext4_fuse_kernel::delay_openers;
pub use server::{EndError, Server};
pub use signals::{CaughtSignals, ending_signals};
