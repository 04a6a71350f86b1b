//! Images of other sizes, judged by e2fsck, and their contents, read back by debugfs.
//!
//! mke2fs makes each image with a tree in it, under many sets of features; after every resize
//! e2fsck must have nothing to say and the tree must be what it was.

mod crash;
mod grow;
mod hostile;
mod rig;
mod shrink;
