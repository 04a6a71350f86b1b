//! Converting a file's map between its two formats at the owner's request (`chattr -e`, `chattr
//! +e`).
//!
//! Only maps that fit into the inode in both formats are converted, so nothing is allocated and one
//! change of the slot is enough. As on Linux: to pointers, one written run within the twelve direct
//! pointers; to extents, as many runs as the root of a tree has room for.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::extent::{self, Extent, Node};
use pext4_ondisk::indirect::{self, DIRECT, MAX_DEPTH};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{BlockNumber, Corrupt, LogicalBlock};

use crate::error::{Refusal, Result};
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach, Root};
use crate::store::Store;

/// Pointers in a root, including those to pointer blocks.
const POINTERS: usize = DIRECT + MAX_DEPTH;

impl Inodes {
    /// The root that the file's map would have in the other format. The caller holds the file's
    /// lock.
    ///
    /// # Errors
    ///
    /// `Refused(NotSupported)` if the map in the other format would not fit into the inode, the
    /// file has fs-verity, or clusters have several blocks; `Corrupt`.
    pub(crate) fn root_in_other_format(&self, inode: &Inode) -> Result<Root> {
        let root = inode.root();
        // Linux gives fs-verity to files with extents only, and makes no pointers in clusters.
        if inode.is_inline() || inode.has_verity() || self.cluster() > 1 {
            return Err(Refusal::NotSupported.into());
        }
        let other = if Self::uses_extents(inode) {
            pointers_of(&self.store, &root)
        } else if self.new_files_use_extents() {
            tree_of(&self.store, &root)
        } else {
            Err(Refusal::NotSupported.into())
        };
        let other = other.map_err(|error| error.in_inode(inode.number()))?;
        if inode.size() > self.largest_size_by_pointers() {
            return Err(Refusal::NotSupported.into());
        }
        Ok(other)
    }

    /// Switches the file's map to the other format; `other` comes from
    /// [`Self::root_in_other_format`].
    pub(crate) fn set_map_format(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>, other: Root) {
        let _map = inode.map.lock();
        inode.edit(handle, Reach::Data, |state| {
            state.slot.block = other;
            state.slot.flags.toggle(InodeFlags::EXTENTS);
        });
    }
}

fn pointers_of(store: &Store, root: &Root) -> Result<Root> {
    let node = Node::parse(root)?;
    let mut pointers = [0; extent::ROOT_SIZE];
    if node.depth() > 0 || node.len() > 1 {
        return Err(Refusal::NotSupported.into());
    }
    if node.is_empty() {
        return Ok(pointers);
    }
    let run = node.extent(0, &store.bounds())?;
    let end = run.start.get() + u64::from(run.length);
    if run.unwritten || run.end() > DIRECT as u64 || end > u64::from(u32::MAX) {
        return Err(Refusal::NotSupported.into());
    }
    let blocks = run.start.get()..end;
    for (place, block) in (run.logical.get() as usize..).zip(blocks) {
        let pointer = u32::try_from(block).expect("below the end, which has 32 bits");
        indirect::set_entry(&mut pointers, place, pointer);
    }
    Ok(pointers)
}

fn tree_of(store: &Store, root: &Root) -> Result<Root> {
    let has_more = (DIRECT..POINTERS).any(|place| indirect::entry(root, place) != 0);
    let runs = runs_of(store, root)?;
    if has_more || runs.len() > extent::capacity(extent::ROOT_SIZE) {
        return Err(Refusal::NotSupported.into());
    }
    let entries: Vec<_> = runs.iter().map(Extent::encode).collect();
    let mut tree = extent::empty_root();
    extent::splice(&mut tree, 0..0, &entries)?;
    Ok(tree)
}

/// The runs of blocks to which the direct pointers refer.
fn runs_of(store: &Store, root: &Root) -> Result<Vec<Extent>> {
    let mut runs: Vec<Extent> = Vec::new();
    for (place, logical) in (0..DIRECT).zip(0u32..) {
        let pointer = BlockNumber(u64::from(indirect::entry(root, place)));
        if pointer == BlockNumber(0) {
            continue;
        }
        if !store.bounds().contains(pointer, 1) {
            return Err(Corrupt::new("block map", "a pointer leads outside").into());
        }
        let next = Extent {
            logical: LogicalBlock(logical),
            start: pointer,
            length: 1,
            unwritten: false,
        };
        match runs
            .last_mut()
            .and_then(|last| Some((last.joined(&next)?, last)))
        {
            Some((joined, last)) => *last = joined,
            None => runs.push(next),
        }
    }
    Ok(runs)
}
