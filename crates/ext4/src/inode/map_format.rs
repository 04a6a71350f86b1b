//! Converting a file's map between its two formats at the owner's request (`chattr -e`, `chattr
//! +e`).
//!
//! As on Linux: to pointers, one written run within the twelve direct pointers; to extents, any map
//! whose conversion fits one transaction. The nodes of the new tree are reserved before the first
//! change, and the pointer blocks are freed under the same handle.

use std::collections::BTreeSet;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::Corrupt;
use pext4_ondisk::extent::{self, Node};
use pext4_ondisk::indirect::{self, DIRECT};
use pext4_ondisk::inode::InodeFlags;

use super::extents::NodeStore;
use super::indirect::{Contents, Most, contents};
use super::nodes::Nodes;
use crate::error::{Refusal, Result};
use crate::groups::CREDITS_PER_GROUP;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach, Root};
use crate::store::Store;

/// A file's map in the other format, before blocks are allocated for its nodes.
pub(crate) enum OtherMap {
    /// Pointers in the inode alone.
    Pointers(Root),
    /// A tree of the extents of what was a block map.
    Tree(Contents),
}

impl Inodes {
    /// The map that the file would have in the other format, and the metadata blocks besides the
    /// inode that changing to it may dirty. The caller holds the file's lock.
    ///
    /// # Errors
    ///
    /// `Refused(NotSupported)` if the map would need pointer blocks, or its conversion more than a
    /// transaction can hold, the file has fs-verity, or clusters have several blocks;
    /// `Refused(Invalid)` if the file system has no extents; `Corrupt`, `Io`.
    pub(crate) fn map_in_other_format(&self, inode: &Inode) -> Result<(OtherMap, u32)> {
        let root = inode.root();
        // Linux gives fs-verity to files with extents only, and makes no pointers in clusters.
        if inode.is_inline() || inode.has_verity() || self.cluster() > 1 {
            return Err(Refusal::NotSupported.into());
        }
        let other = if Self::uses_extents(inode) {
            pointers_of(&self.store, &root).map(|root| (OtherMap::Pointers(root), 0))
        } else if self.new_files_use_extents() {
            self.tree_of(inode, &root)
        } else {
            // The file system has no extents.
            Err(Refusal::Invalid.into())
        };
        let other = other.map_err(|error| error.in_inode(inode.number()))?;
        if inode.size() > self.largest_size_by_pointers() {
            return Err(Refusal::NotSupported.into());
        }
        Ok(other)
    }

    fn tree_of(&self, inode: &Inode, root: &Root) -> Result<(OtherMap, u32)> {
        let most = self.store.journal().max_credits() / 2;
        let nodes = Nodes::reading(self, inode);
        let in_node = extent::capacity(nodes.block_size());
        // More of either than this would need more credits as well.
        let limits = Most {
            extents: (most as usize).saturating_mul(in_node),
            pointer_blocks: most as usize,
        };
        let found = contents(root, &nodes, limits)?;
        let found = found.ok_or(Refusal::NotSupported)?;
        let needed = extent::nodes_needed(found.extents.len(), nodes.block_size());
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        let freed = u32::try_from(found.pointer_blocks.len()).unwrap_or(u32::MAX);
        let geometry = &self.store.geometry;
        let groups: BTreeSet<_> = found
            .pointer_blocks
            .iter()
            .map(|&block| geometry.group_of(block))
            .collect();
        let groups = u32::try_from(groups.len()).unwrap_or(u32::MAX);
        let credits = groups
            .saturating_add(needed)
            .saturating_mul(CREDITS_PER_GROUP)
            .saturating_add(needed)
            .saturating_add(freed);
        match credits > most {
            true => Err(Refusal::NotSupported.into()),
            false => Ok((OtherMap::Tree(found), credits)),
        }
    }

    /// Switches the file's map to the other format, before anything else is changed under this
    /// handle. `other` comes from [`Self::map_in_other_format`]; the caller has held the file's
    /// lock since.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if there is no room for the nodes of the tree; nothing is changed then.
    pub(crate) fn set_map_format(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        other: &OtherMap,
    ) -> Result<()> {
        let _map = inode.map.lock();
        let mut nodes = Nodes::changing(self, inode, handle, self.home_goal(inode), 0..0);
        nodes.are_pointers = false;
        let root = match other {
            OtherMap::Pointers(root) => Ok(*root),
            OtherMap::Tree(found) => grow(&mut nodes, found),
        };
        let change = nodes.into_change();
        let changed = root.and_then(|root| {
            let fits = inode.edit(change.handle, Reach::Data, |state| {
                state.slot.block = root;
                state.slot.flags.toggle(InodeFlags::EXTENTS);
                self.store.count_blocks(&mut state.slot, change.blocks)
            });
            match fits {
                true => Ok(()),
                false => Err(Refusal::FileTooLarge.into()),
            }
        });
        if let Err(error) = &changed
            && change.has_begun
        {
            let what = format!("the map of inode {} was left half changed", inode.number());
            self.store.stop_half_done(&what, error);
        }
        for (block, length) in change.unused() {
            self.groups.free(change.handle, block, length)?;
        }
        changed.map_err(|error| error.in_inode(inode.number()))
    }
}

/// Makes the tree of these extents, frees the pointer blocks, and returns the root.
fn grow(nodes: &mut Nodes<'_, '_>, found: &Contents) -> Result<Root> {
    let block_size = nodes.block_size();
    let needed = extent::nodes_needed(found.extents.len(), block_size);
    nodes.reserve(u32::try_from(needed).map_err(|_| Refusal::NoSpace)?)?;
    let blocks = (0..needed)
        .map(|_| nodes.allocate())
        .collect::<Result<Vec<_>>>()?;
    let mut blocks = blocks.into_iter();
    let built = extent::build(&found.extents, block_size, || blocks.next());
    let built = built.ok_or_else(|| Corrupt::new("block map", "needs too high a tree"))?;
    for (block, bytes) in &built.nodes {
        nodes.edit(*block, |page| page.copy_from_slice(bytes))?;
    }
    for &block in &found.pointer_blocks {
        nodes.free(block)?;
    }
    Ok(built.root)
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
