//! The checker against images made by others, against images broken on purpose, and beside e2fsck.

mod bases;
mod beside;
mod bounds;
mod broken;
mod clean;
mod corruptions;
mod hostile;
mod image;
