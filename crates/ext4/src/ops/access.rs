//! Times of last access. Reading does not set them: the caller that serves readers reports each
//! access, and only those that the policy asks for are written, so that readers of one file write
//! no common cache line.

use crate::error::Result;
use crate::inode::Reach;
use crate::inode::data::SLOT_CREDITS;
use crate::store::now;
use crate::types::{AccessTimes, Attributes, InodeNumber};
use crate::volume::Volume;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::time::Time;

/// Every policy but `Never` replaces an access time that is older than this, in seconds.
const MAX_AGE: i64 = 24 * 3600;

impl Volume {
    /// Sets the access time after a file was read, a directory listed or a link followed, if the
    /// policy requires it. If it does not, or the volume is read-only, this writes nothing and
    /// takes no lock.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)`, `Corrupt`, `Io`, the journal's once it has stopped.
    pub fn note_access(&self, inode: InodeNumber, policy: AccessTimes) -> Result<()> {
        if policy == AccessTimes::Never || self.is_read_only() {
            return Ok(());
        }
        self.run(|| {
            let inode = self.user_inode(inode)?;
            if !is_due(&inode.attributes(), policy, now()) {
                return Ok(());
            }
            let _lock = super::lock_exclusive(&inode)?;
            // Another caller may have set the time meanwhile, or removed the last name.
            let now = now();
            if !is_due(&inode.attributes(), policy, now) {
                return Ok(());
            }
            let mut handle = self.inodes.store.start(SLOT_CREDITS)?;
            inode.edit(&mut handle, Reach::Attributes, |state| {
                state.slot.accessed = now;
            });
            Ok(())
        })
    }
}

/// Whether the policy requires the access time to be set. An inode without names keeps the time it
/// has.
fn is_due(attributes: &Attributes, policy: AccessTimes, now: Time) -> bool {
    if attributes.flags & InodeFlags::NOATIME.bits() != 0 || attributes.links == 0 {
        return false;
    }
    let is_older =
        attributes.accessed <= attributes.modified || attributes.accessed <= attributes.changed;
    match policy {
        AccessTimes::Never => false,
        AccessTimes::Strict => attributes.accessed != now,
        AccessTimes::Relative => {
            is_older || now.seconds.saturating_sub(attributes.accessed.seconds) >= MAX_AGE
        }
    }
}
