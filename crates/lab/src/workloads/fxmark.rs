//! FxMark's workloads under its names: D(ata) or M(etadata), R(ead) or W(rite), the operation, and
//! L(ow), M(edium) or H(igh) sharing. Written from the descriptions in "Understanding Manycore
//! Scalability of File Systems", USENIX ATC 2016.

pub mod append;
pub mod block;
pub mod lookup;
pub mod rename;
pub mod sync;

use anyhow::Result;

use super::{Node, Target};

/// The source of these workloads.
pub const SOURCE: &str = "FxMark, 2016";
/// Bytes of one read or write.
const BLOCK: usize = 4096;

/// How much tasks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing but the file system.
    Low,
    /// A file or a directory is shared.
    Medium,
    /// The block or the name in it is shared too.
    High,
}

/// Creates `a/b/c/d/file` in a directory.
fn create_path(target: &dyn Target, directory: &Node) -> Result<()> {
    let mut parent = target.make_directory(directory, "a")?;
    for below in ["b", "c", "d"] {
        let next = target.make_directory(&parent, below);
        target.close(std::mem::replace(&mut parent, next?));
    }
    let file = target.create(&parent, "file");
    target.close(parent);
    target.close(file?);
    Ok(())
}
