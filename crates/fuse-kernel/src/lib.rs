//! The kernel's side of FUSE: the protocol, and what carries it.
//!
//! The kernel sends requests and a server replies ([`Serve`]). [`Session`] negotiates the
//! protocol's features, then runs the threads that carry requests: over `/dev/fuse`, or through
//! rings if the server and the system have them. The crate knows nothing of file systems.
//!
//! A request is decoded in place and borrowed by the server; its [`Reply`] is a value that can be
//! sent from any thread, at any later time. A reply that is dropped reports an I/O error, so no
//! process waits for ever.
//!
//! The layouts are facts of the kernel's interface (`linux/fuse.h`, which is also licensed under
//! BSD terms). There is `unsafe` code in `device` and `lease` (calls that no library has) and in
//! `ring`, whose memory the kernel writes.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod device;
mod device_number;
mod handshake;
#[allow(unsafe_code)]
mod lease;
mod listing;
mod reply;
mod request;
#[allow(unsafe_code)]
mod ring;
mod session;
mod wire;

pub use device::Notifier;
pub use device_number::DeviceNumber;
pub use handshake::{Features, Wanted};
pub use lease::{admit_openers, delay_openers};
pub use listing::Listing;
pub use reply::{Born, Entry, OpenFlags, Reply};
pub use request::{Caller, Forgotten, NewTime, Operation, Request, SetAttributes};
pub use ring::DEPTH as RING_DEPTH;
pub use session::{Serve, Session};
pub use wire::{Attributes, Statfs, StatxTime};
