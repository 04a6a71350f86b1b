//! The workloads that ext4's scaling work is measured by, and what runs, compares and draws them.
//!
//! A [`Workload`](workloads::Workload) is one small file and speaks to a
//! [`Target`](target::Target): a volume in this process, or a directory of any mounted file
//! system. So one code measures the library, the kernel and everybody's mounts, and a program with
//! virtual cores can drive the same steps. An [`Experiment`](experiment::Experiment) runs one on
//! several [`sides`] in turn and gives [`Results`](results::Results), which [`show`] turns into
//! tables, plots and figures beside what was [`published`].

#![forbid(unsafe_code)]

pub mod clock;
pub mod experiment;
pub mod fill;
pub mod fragmentation;
pub mod instructions;
pub mod published;
pub mod random;
pub mod results;
pub mod run;
pub mod setup;
pub mod show;
pub mod sides;
pub mod target;
pub mod workloads;
