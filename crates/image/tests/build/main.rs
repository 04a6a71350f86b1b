//! Images built from directories, archives and container images: checked by e2fsck, mounted by the
//! kernel and compared with their sources.

#![allow(clippy::unwrap_used, reason = "what a test expects needs no words")]

mod archives;
mod changing;
mod dangling;
mod determinism;
mod directories;
#[path = "../common/e2fsck.rs"]
mod e2fsck;
mod ends;
mod hostile;
mod layouts;
mod left_out;
mod marks;
mod oracle;
mod overlays;
mod quotas;
mod random;
mod selections;
mod sizes;
