//! Resized images, checked by e2fsck, and their contents, read back by debugfs.
//!
//! mke2fs makes each image with a tree in it, with many sets of features. After every resize e2fsck
//! must find nothing and the tree must be unchanged.

mod contradictions;
mod crash;
#[path = "../common/e2fsck.rs"]
mod e2fsck;
mod failures;
mod files;
mod grow;
mod hostile;
mod mount_protection;
mod ranges;
mod rig;
mod shrink;
