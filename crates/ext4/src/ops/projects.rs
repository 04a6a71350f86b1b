//! Projects: a number of each inode, by which Linux can limit the space of a tree.
//!
//! A directory that *passes on* its project (`PROJINHERIT`, `chattr +P`) gives it, and the flag, to
//! what is made in it, and takes in nothing of another project: the tree below it has one project.
//! Without the feature `project` every project is 0 (`Inode::as_read_with`). What each project
//! takes is counted where there is the feature `quota` (`crate::quota`).

use pext4_ondisk::feature::ReadOnlyCompat;
use pext4_ondisk::inode::InodeFlags;

use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::SetAttributes;
use crate::volume::Volume;

/// The number that stands for no project; no inode can have it.
const NO_PROJECT: u32 = u32::MAX;

/// The project of a new inode in this directory.
pub(super) fn of_new_inode(directory: &Inode) -> u32 {
    if passes_on(directory) {
        directory.attributes().project
    } else {
        0
    }
}

/// Refuses to give an inode a name in a directory that passes on another project. The caller holds
/// the locks of both.
pub(super) fn check_enters(directory: &Inode, inode: &Inode) -> Result<()> {
    if passes_on(directory) && directory.attributes().project != inode.attributes().project {
        return Err(Refusal::OtherProject.into());
    }
    Ok(())
}

fn passes_on(directory: &Inode) -> bool {
    directory.flags().contains(InodeFlags::PROJINHERIT)
}

impl Volume {
    /// Refuses a project that the inode cannot have, and another one for an inode that stays
    /// immutable.
    pub(super) fn check_project(&self, inode: &Inode, change: &SetAttributes) -> Result<()> {
        let Some(wanted) = change.project else {
            return Ok(());
        };
        let present = inode.attributes();
        if wanted == present.project {
            return Ok(());
        }
        let features = &self.inodes.store.features;
        let has_room = inode.state(|state| {
            state.slot.has_project() || {
                // The change of the attributes enlarges it.
                let mut slot = state.slot.clone();
                slot.grow_extra(self.new_inode_extra_size);
                slot.has_project()
            }
        });
        if !features.has_read_only_compat(ReadOnlyCompat::PROJECT) || !has_room {
            return Err(Refusal::NotSupported.into());
        }
        if wanted == NO_PROJECT {
            return Err(Refusal::Invalid.into());
        }
        let flags = change.flags.unwrap_or(present.flags) & present.flags;
        if InodeFlags::from_bits_retain(flags).contains(InodeFlags::IMMUTABLE) {
            return Err(Refusal::NotPermitted.into());
        }
        Ok(())
    }
}
