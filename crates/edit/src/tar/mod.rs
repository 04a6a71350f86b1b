//! Reading and writing tar archives: POSIX pax with GNU's sparse files.

pub(crate) mod apply;
mod layer;
pub(crate) mod read;
pub(crate) mod write;
