//! The FUSE server of pext4.
