//! The workloads that ext4's scaling work is measured by, and what runs, compares and draws them.
//!
//! A [`Workload`](workloads::Workload) is one small file and speaks to a
//! [`Target`](target::Target): a volume in this process, or a directory of any mounted file
//! system. So one code measures the library, the kernel and everybody's mounts, and a program with
//! virtual cores can drive the same steps.

#![forbid(unsafe_code)]

pub mod random;
pub mod target;
pub mod workloads;
