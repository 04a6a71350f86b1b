//! Block devices that stack, and the buffer cache.
//!
//! A [`Device`] is an array of bytes. Two kinds store bytes ([`FileDevice`], [`RamDevice`]); the
//! others are stacked on another device and change one thing: [`OverlayDevice`] keeps writes in
//! memory, [`RecordDevice`] logs them, [`FaultDevice`] makes calls fail, [`SlowDevice`] makes them
//! slow, [`FailStopDevice`] fails every flush after one has failed, [`FencedDevice`] refuses all
//! writes from a moment on, [`CountingDevice`] counts what is written.
//!
//! The [`Cache`] holds blocks of a device in memory as [`Buffer`]s. Their bytes are [`Page`]s,
//! which are shared and copied on write. A buffer also keeps what the layers above note with its
//! bytes: in which transactions it is dirty, listed and born, the names in a leaf of a directory,
//! how the users of an attribute block are counted. The cache acts on none of that, but for not
//! evicting a buffer that is dirty or pinned.
//!
//! [`Progress`] is how far long work on an image is, for all crates that do any.
//!
//! There is `unsafe` code in `loops::status`, for a call that no library has.

#![deny(unsafe_code)]

mod buffer;
mod cache;
mod claim;
mod counting;
mod device;
mod fail_stop;
pub mod fault;
mod fenced;
mod file;
pub mod holders;
mod holes;
mod host_attributes;
mod host_file;
mod image_clone;
pub mod loops;
pub mod mountinfo;
mod neighbours;
mod overlay;
mod page;
pub mod partition_table;
mod permissions;
mod progress;
mod ram;
mod range_lock;
mod record;
mod slow;
mod temporary_name;

pub use buffer::{Buffer, BufferState, CountedApart, Stamp};
pub use cache::Cache;
pub use claim::{LockProbe, leads_to};
pub use counting::CountingDevice;
pub use device::Device;
pub use fail_stop::FailStopDevice;
pub use fault::FaultDevice;
pub use fenced::FencedDevice;
pub use file::{Access, FileDevice, RangeEnd};
pub use holes::next_data;
pub use host_file::open_unlocked;
pub use image_clone::{CloneError, CloneMethod, ImageClone};
pub use neighbours::{MAX_SLICES, write_pages};
pub use overlay::OverlayDevice;
pub use page::Page;
pub use permissions::{copy_owner_and_permissions, copy_permissions};
pub use progress::{Amount, Phase, Progress, ProgressState, Stopped};
pub use ram::RamDevice;
pub use record::{Event, RecordDevice};
pub use slow::{Latency, SlowDevice};
pub use temporary_name::temporary_name;
