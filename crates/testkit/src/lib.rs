//! Operations, models, crash images and oracles for testing pext4.
//!
//! One language of operations ([`op::Op`]) runs on *subjects*: the [`model::Model`] in memory, a
//! [`volume::VolumeSubject`] (pext4 itself) or a [`mounted::MountedSubject`] (any mounted
//! directory; above all the kernel's ext4, which checks the model itself). The model follows a
//! subject operation by operation and reports where they differ; [`campaign`] makes such runs from
//! seeds and shrinks those that fail.
//!
//! [`crash`] turns the writes of a run into the images that a power cut may leave, [`linear`]
//! judges concurrent histories, [`mutate`] corrupts images on purpose, [`shared_names`] makes some
//! that are hostile, and [`oracle`] runs independent programs: e2fsck, mke2fs, debugfs and the
//! kernel.
//!
//! This crate is never shipped; `std` locks and threads are fine here.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod content;
pub mod crash;
pub mod effort;
pub mod errno;
pub mod fuzz;
pub mod linear;
pub mod model;
pub mod mounted;
pub mod mutate;
pub mod op;
pub mod oracle;
pub mod outcome;
pub mod random;
pub mod shared_names;
pub mod tree;
pub mod volume;

pub use op::Op;
pub use random::Random;
