//! Times of last access. Reading writes nothing by itself; whoever serves readers says when something
//! was read, and what is noted of that is little, so that readers of one file do not meet.

use super::INODE_CREDITS;
use crate::error::Result;
use crate::inode::{Reach, present};
use crate::types::{AccessTimes, Attributes, InodeNumber};
use crate::volume::Volume;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::time::Time;

/// A time of access that is older than this, in seconds, is replaced by every policy but `Never`.
const OLD: i64 = 24 * 3600;

impl Volume {
    /// Notes that a file was read, a directory listed or a link followed, as the policy wants it. Where
    /// it wants nothing, and on a volume that takes no changes, nothing is written and no lock taken.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)`, `Corrupt`, `Io`, the journal's once it has stopped.
    pub fn note_access(&self, inode: InodeNumber, policy: AccessTimes) -> Result<()> {
        if policy == AccessTimes::Never || self.is_read_only() {
            return Ok(());
        }
        self.run(|| {
            let inode = self.inodes.get(inode)?;
            let now = present();
            if !is_due(&inode.attributes(), policy, now) {
                return Ok(());
            }
            let _lock = super::lock_exclusive(&inode)?;
            let mut handle = self.inodes.store.start(INODE_CREDITS)?;
            inode.edit(&mut handle, Reach::Attributes, |state| {
                state.slot.accessed = now;
            });
            Ok(())
        })
    }
}

/// Whether an access now is to be noted. What nobody can name any more has no time that anyone needs.
fn is_due(told: &Attributes, policy: AccessTimes, now: Time) -> bool {
    if told.flags & InodeFlags::NOATIME.bits() != 0 || told.links == 0 {
        return false;
    }
    let is_older = told.accessed <= told.modified || told.accessed <= told.changed;
    match policy {
        AccessTimes::Never => false,
        AccessTimes::Strict => told.accessed != now,
        AccessTimes::Relative => {
            is_older || now.seconds.saturating_sub(told.accessed.seconds) >= OLD
        }
    }
}
