//! Reading and writing tar archives: POSIX pax with GNU's sparse files.

pub(crate) mod apply;
mod directories;
mod layer;
pub(crate) mod read;
mod waiting;
mod way;
pub(crate) mod write;
