//! Block devices that stack, and the buffer cache.
//!
//! A [`Device`] is a row of bytes. Two of them hold bytes ([`FileDevice`], [`RamDevice`]); the
//! others stand on another one and change one thing: [`OverlayDevice`] keeps writes in memory,
//! [`RecordDevice`] writes them down, [`FaultDevice`] lets them fail, [`SlowDevice`] lets them
//! take time, [`WaryDevice`] believes no flush after one has failed.
//!
//! The [`Cache`] holds blocks of a device in memory as [`Buffer`]s, whose bytes are [`Page`]s:
//! shared, and copied when a shared one is changed. It obeys what the journal says about a buffer
//! (dirty in a transaction, pinned) and knows nothing of transactions itself.

#![forbid(unsafe_code)]

mod beside;
pub mod buffer;
pub mod cache;
mod claim;
pub mod device;
pub mod fault;
pub mod file;
pub mod holders;
pub mod loops;
pub mod mountinfo;
pub mod overlay;
pub mod page;
pub mod ram;
pub mod record;
pub mod slow;
pub mod wary;

pub use beside::name_beside;
pub use buffer::{Buffer, BufferState, CountedApart, Stamp};
pub use cache::Cache;
pub use device::Device;
pub use fault::FaultDevice;
pub use file::{Access, FileDevice, open_to_look};
pub use overlay::OverlayDevice;
pub use page::Page;
pub use ram::RamDevice;
pub use record::{Event, RecordDevice};
pub use slow::{Latency, SlowDevice};
pub use wary::WaryDevice;
