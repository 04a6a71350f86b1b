//! Tar archives: those that are written are POSIX pax with GNU's sparse files; those that are read
//! may be of any format that `pext4_tar` knows.

pub(crate) mod apply;
mod directories;
mod layer;
mod pieces;
pub(crate) mod read;
mod waiting;
mod way;
pub(crate) mod write;
