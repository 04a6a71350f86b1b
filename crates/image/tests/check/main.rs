//! Tests the checker with images of other programs and with corrupted images, and compares it with
//! e2fsck.

mod agreement;
mod bases;
mod beside;
mod bounds;
mod broken;
mod clean;
mod corruptions;
mod descriptors;
#[path = "../common/e2fsck.rs"]
mod e2fsck;
mod hostile;
mod image;
mod limits;
