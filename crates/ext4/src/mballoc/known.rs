//! Claiming blocks that somebody else has chosen: those that fast commits map.

use pext4_jbd2::Handle;
use pext4_ondisk::{BlockNumber, Corrupt};

use super::Run;
use crate::error::Result;
use crate::groups::Groups;

impl Groups {
    /// Marks those of `length` blocks from `start` on used that are free, and returns them. The
    /// caller has checked that they are blocks of files, and asks for the credits of every group
    /// that they reach.
    ///
    /// # Errors
    ///
    /// `Corrupt` if the bitmap of a group cannot be used.
    pub(crate) fn claim_free(
        &self,
        handle: &mut Handle<'_>,
        start: BlockNumber,
        length: u32,
    ) -> Result<Vec<Run>> {
        let geometry = &self.store.geometry;
        let end = start.get() + u64::from(length);
        let mut claimed = Vec::new();
        let mut at = start;
        while at.get() < end {
            let place = geometry.group_of(at).zip(geometry.offset_in_group(at));
            let (group, offset) = place.expect("the range lies inside the file system");
            let left = u32::try_from(end - at.get()).expect("no longer than the range");
            let group_end = offset.saturating_add(left).min(geometry.blocks_in(group));
            self.make_room_for(group);
            let mut held = self.lock(group);
            if !held.load_blocks() {
                drop(held);
                self.report();
                return Err(Corrupt::new("block bitmap", "cannot be used")
                    .in_group(group)
                    .into());
            }
            let mut from = offset;
            while let Some(span) = held.blocks().buddy.next_run(from, group_end) {
                held.take(handle, span, span.length);
                claimed.push(Run {
                    start: held.block_at(span.start),
                    length: span.length,
                });
                from = span.end();
            }
            at = BlockNumber(at.get() + u64::from(group_end - offset));
        }
        Ok(claimed)
    }
}
