//! Reading and writing tar archives: POSIX pax with GNU's sparse files.

pub(crate) mod apply;
pub(crate) mod read;
pub(crate) mod write;
