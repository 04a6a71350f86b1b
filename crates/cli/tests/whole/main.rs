//! The command `pext4` as a person runs it, and its mounts.
//!
//! One program, so that it links once; each module has a topic of its own.

mod common;

mod build;
mod calls;
mod casefold;
mod check;
mod edit;
mod encryption;
mod ending;
mod full_output;
mod full_volumes;
mod kernel;
mod kernel_mounts;
mod lab;
mod lab_report;
mod mkfs;
mod mount;
mod mount_helper;
mod multi_mount;
mod new_files;
mod overlay;
mod partitions;
mod programs;
mod progress;
mod projects;
mod resize;
mod together;
mod tools;
mod unmounting;
mod users;
mod verity;
