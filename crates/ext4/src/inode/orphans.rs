//! Makes inodes orphans, and no longer: those that recovery has to free or truncate.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::InodeNumber;

use crate::error::Result;
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach};
use crate::orphan::{Chain, OrphanPlace};

/// Metadata blocks that listing an inode as an orphan, or no longer, may dirty: a slot, or the
/// inode, its neighbour on the list and the superblock.
const ORPHAN_CREDITS: u32 = 3;

impl Inodes {
    /// Removes one more place among the orphans of an inode that was finished at another.
    ///
    /// # Errors
    ///
    /// Those of the chain and of the journal.
    pub(crate) fn remove_orphan_place(
        &self,
        number: InodeNumber,
        place: OrphanPlace,
    ) -> Result<()> {
        let mut handle = self.store.start(ORPHAN_CREDITS)?;
        self.orphans.remove(&mut handle, number, place, self)
    }

    /// Makes an inode an orphan, if it is not one yet (at most [`ORPHAN_CREDITS`]).
    ///
    /// # Errors
    ///
    /// Those of the chain.
    pub fn add_orphan(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let (is_orphan, idle) = inode.state(|state| (state.orphan.is_some(), state.idle_slot));
        if is_orphan {
            return Ok(());
        }
        let idle = idle.filter(|(tid, _)| *tid == handle.tid());
        let place = match idle {
            Some((_, place)) => {
                self.orphans.set_busy(handle, place);
                place
            }
            None => self.orphans.add(handle, inode.number(), self)?,
        };
        inode.note(|state| {
            state.orphan = Some(place);
            state.idle_slot = None;
        });
        Ok(())
    }

    /// Removes an inode from the orphans, if it is one (at most [`ORPHAN_CREDITS`]). An inode that
    /// still has links may keep its slot while the transaction runs. No other thread adds or
    /// removes it at the same time: the caller holds its lock, has claimed its reaping, or is the
    /// only one who knows it.
    ///
    /// # Errors
    ///
    /// Those of the chain.
    pub fn remove_orphan(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        if !inode.is_orphan() {
            return Ok(());
        }
        let (place, lives) = inode.state(|state| (state.orphan, state.slot.links > 0));
        let Some(place) = place else {
            return Ok(());
        };
        if lives && self.orphans.set_idle(handle, place) {
            let tid = handle.tid();
            inode.note(|state| {
                state.orphan = None;
                state.idle_slot = Some((tid, place));
            });
            return Ok(());
        }
        self.orphans.remove(handle, inode.number(), place, self)?;
        // Not before: until it has left the chain, a neighbour that leaves it marks it as chained.
        match place {
            OrphanPlace::Slot { .. } => inode.note(|state| state.orphan = None),
            OrphanPlace::Chained => inode.edit(handle, Reach::Attributes, |state| {
                state.orphan = None;
                state.slot.deletion_time = 0;
            }),
        }
        Ok(())
    }
}

impl Chain for Inodes {
    fn set_next(&self, handle: &mut Handle<'_>, inode: InodeNumber, next: u32) -> Result<()> {
        let inode = self.get_orphan(inode, Some(OrphanPlace::Chained))?;
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.deletion_time = next;
            // One of before the mount that is not finished yet may not know it.
            state.orphan = Some(OrphanPlace::Chained);
        });
        Ok(())
    }
}
