//! pext4 as a whole, against a model, against e2fsck, and against the kernel.
//!
//! One program, so that it links once; each module has a topic of its own. Seeds are fixed: a
//! default run tries the same operations everywhere. `pext4_testkit::effort` describes how to try
//! more.

mod big_directory;
mod block_maps;
mod corpus;
mod crash;
mod edges;
mod fast_commits;
mod faults;
mod fragmentation;
mod full;
mod hostile;
mod kernel_both_ways;
mod kernel_fast_commits;
mod kernel_model;
mod orphans;
mod rig;
mod sharing;
mod single;
mod specimen;
mod threads;
