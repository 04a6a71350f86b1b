//! FxMark's workloads, by its names: D(ata) or M(etadata), R(ead) or W(rite), the operation, and
//! L(ow), M(edium) or H(igh) sharing. After "Understanding Manycore Scalability of File Systems",
//! USENIX ATC 2016, described there in words.

pub mod append;
pub mod block;
pub mod lookup;
pub mod rename;
pub mod sync;

use anyhow::Result;

use super::{Node, Target};

/// Where they come from.
pub const SOURCE: &str = "FxMark, 2016";
/// What is read and written at once.
const BLOCK: usize = 4096;

/// How much tasks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nothing but the file system.
    Low,
    /// A file or a directory.
    Medium,
    /// What they touch in it, too.
    High,
}

/// Makes `a/b/c/d/file` in a directory.
fn plant(target: &dyn Target, directory: &Node) -> Result<()> {
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
