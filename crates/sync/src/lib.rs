//! Locks, atomics and threads: all of pext4's synchronisation goes through this crate.
//!
//! Everything that the engine shares between threads uses the types of this crate. So one page
//! ([`order`]) defines the order of all locks, the feature `lock-order` checks it, the model
//! checker (`--cfg loom`) sees every step, and the caller's shard is determined in one place
//! ([`topology`]).
//!
//! There are two backends: `parking_lot` with the standard atomics, and `loom`. The feature `meter`
//! adds observers: the [`meter`], and traces for tests. With the feature `virtual` the caller may
//! be one of hundreds of cores in virtual time. There is `unsafe` code in these modules: [`stack`],
//! `biased`, `fresh_memory`, [`memory`], `watch::ticks`, [`scheduling`], [`thread`], [`topology`],
//! and of `virtual_cores` its root, `lend` and `memory`.

#![deny(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("pext4 runs on Linux only: its devices, threads and mounts use what Linux has");

mod backend;
#[allow(unsafe_code)]
mod biased;
#[cfg(all(feature = "virtual", not(loom)))]
mod calibration;
mod condvar;
mod held;
mod lock;
mod rwlock;
#[cfg(all(feature = "virtual", not(loom)))]
mod stretches;

pub mod atomic;
pub mod bits;
pub mod counter;
pub mod estimate;
#[cfg(all(feature = "meter", not(loom)))]
#[allow(unsafe_code)]
pub mod fresh_memory;
pub mod hash;
pub mod map;
pub mod memory;
pub mod meter;
pub mod order;
mod panic_watch;
pub mod parts;
pub mod published;
pub mod scheduling;
pub mod set;
mod shard_cache;
pub mod sharded;
pub mod slots;
pub mod spin;
#[allow(unsafe_code)]
pub mod stack;
pub mod thread;
#[cfg(any(not(loom), test))]
mod ticket;
pub mod time;
pub mod topology;
#[cfg(all(feature = "meter", not(loom)))]
pub mod trace;
#[cfg(all(feature = "virtual", not(loom)))]
pub mod virtual_cores;
#[cfg(all(feature = "meter", not(loom)))]
mod watch;

pub use biased::{BiasedLock, BiasedReadGuard, BiasedWriteGuard};
pub use bits::Bits;
pub use condvar::Condvar;
pub use counter::{Counter, Counters};
pub use crossbeam_utils::CachePadded;
pub use estimate::Estimate;
pub use lock::{Mutex, MutexGuard};
pub use map::Map;
pub use order::Class;
pub use panic_watch::PanicWatch;
pub use published::Published;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use set::Set;
pub use shard_cache::{ShardCache, ShardRef};
pub use sharded::Sharded;
pub use slots::Slots;
pub use stack::Stack;

/// As [`model`], for a scenario with too many interleavings: tries those with at most
/// `interruptions` preemptions of a thread.
#[cfg(loom)]
pub fn model_within(interruptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(scenario);
}

/// Runs `scenario` under the model checker, once for every interleaving it can have.
#[cfg(loom)]
pub fn model(scenario: impl Fn() + Sync + Send + 'static) {
    loom::model(scenario);
}
