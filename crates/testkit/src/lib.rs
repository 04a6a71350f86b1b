//! Operations, models, crash images and oracles for testing pext4.
//!
//! One language of operations ([`op::Op`]) is run on *subjects*: the [`model::Model`] in memory, a
//! [`volume::VolumeSubject`] (pext4 itself) or a [`mounted::MountedSubject`] (any mounted
//! directory, the kernel's ext4 above all, which is how the model itself is checked). The model
//! follows a subject operation by operation and says where the two part; [`campaign`] makes such
//! runs from seeds and shrinks the ones that fail.
//!
//! [`crash`] turns the writes a run sent to its device into the images a power cut could have left,
//! [`linear`] judges concurrent histories, [`mutate`] spoils images on purpose, and [`oracle`] asks
//! programs that are not ours: e2fsck, mke2fs, debugfs and the kernel.
//!
//! Never shipped; `std` locks and threads are fine here.

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
pub mod tree;
pub mod volume;

pub use op::Op;
pub use random::Random;
