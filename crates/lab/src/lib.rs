//! The workloads that measure ext4's scaling work, and the code that runs, compares and draws them.
//!
//! A [`Workload`](workloads::Workload) is one small file that calls a [`Target`](target::Target): a
//! volume in this process, or a directory of any mounted file system. The same code therefore
//! measures the library, the kernel and all mounts, and a program with virtual cores can run the
//! same steps. An [`Experiment`](experiment::Experiment) runs a workload on several [`sides`] in
//! turn and returns [`Results`](results::Results), which [`show`] turns into tables, plots and
//! figures next to the [`published`] numbers.

#![forbid(unsafe_code)]

pub mod clock;
pub mod experiment;
pub mod fill;
pub mod fragmentation;
pub mod instructions;
pub mod leftovers;
pub mod published;
pub mod random;
pub mod results;
pub mod run;
pub mod setup;
pub mod show;
pub mod sides;
pub mod target;
pub mod workloads;
