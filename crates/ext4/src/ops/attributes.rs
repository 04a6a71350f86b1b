//! Attributes: `stat`, and all that changes them.

use std::sync::Arc;

use pext4_ondisk::inode::{Inode as Slot, InodeFlags};
use pext4_ondisk::time::Time;

use super::INODE_CREDITS;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, Reach, present};
use crate::types::{Attributes, FileType, InodeNumber, SetAttributes, SetTime};
use crate::volume::Volume;

impl Volume {
    /// What `stat` tells.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)`, `Corrupt`, `Io`.
    pub fn attributes(&self, inode: InodeNumber) -> Result<Attributes> {
        self.run(|| Ok(self.inodes.get(inode)?.attributes()))
    }

    /// Changes attributes, size included.
    ///
    /// # Errors
    ///
    /// `Refused(NotPermitted)` for immutable and append-only files (unless that flag itself is
    /// cleared), `Refused(IsADirectory | Invalid | FileTooLarge | NoSpace | ReadOnly)`.
    pub fn set_attributes(&self, inode: InodeNumber, change: &SetAttributes) -> Result<Attributes> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let inode = if change.size.is_some() {
                self.regular(inode)?
            } else {
                self.inodes.get(inode)?
            };
            let _lock = super::lock_exclusive(&inode)?;
            check_flags(&inode, change)?;
            if let Some(size) = change.size {
                self.inodes.set_size(&inode, size)?;
            }
            if *change
                != (SetAttributes {
                    size: change.size,
                    ..SetAttributes::default()
                })
            {
                self.change_slot(&inode, change)?;
            }
            Ok(inode.attributes())
        })
    }

    fn change_slot(&self, inode: &Arc<Inode>, change: &SetAttributes) -> Result<()> {
        let mut handle = self.inodes.store.start(INODE_CREDITS)?;
        let now = present();
        inode.edit(&mut handle, Reach::Attributes, |state| {
            apply(&mut state.slot, change, now)
        });
        Ok(())
    }
}

fn check_flags(inode: &Inode, change: &SetAttributes) -> Result<()> {
    const LOCKED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);
    let flags = inode.state(|state| state.slot.flags);
    let only_flags = *change
        == SetAttributes {
            flags: change.flags,
            ..SetAttributes::default()
        };
    if flags.intersects(LOCKED) && !only_flags {
        return Err(Refusal::NotPermitted.into());
    }
    let only_times = SetAttributes {
        accessed: None,
        modified: None,
        changed: None,
        ..*change
    } == SetAttributes::default();
    if inode.file_type() == FileType::Symlink && change.permissions.is_some() && !only_times {
        return Err(Refusal::NotSupported.into());
    }
    Ok(())
}

/// The flags that may be set as the user likes: those that change nothing but the inode itself, and
/// of directories' flags those that only directories have.
fn settable_flags(slot: &Slot) -> InodeFlags {
    const FORM: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::CASEFOLD);
    /// `EXT4_EOFBLOCKS_FL`, which nobody sets any more.
    const OBSOLETE: InodeFlags = InodeFlags::from_bits_retain(0x40_0000);
    const DIRECTORIES: InodeFlags = InodeFlags::DIRSYNC
        .union(InodeFlags::TOPDIR)
        .union(InodeFlags::PROJINHERIT);
    let settable = InodeFlags::USER_MODIFIABLE & !(FORM | OBSOLETE);
    if slot.file_type() == Some(FileType::Directory) {
        settable
    } else {
        settable & !DIRECTORIES
    }
}

fn apply(slot: &mut Slot, change: &SetAttributes, now: Time) {
    let time = |wanted: SetTime| match wanted {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if let Some(permissions) = change.permissions {
        slot.mode = (slot.mode & !0o7777) | (permissions & 0o7777);
    }
    if let Some(uid) = change.uid {
        slot.uid = uid;
    }
    if let Some(gid) = change.gid {
        slot.gid = gid;
    }
    if let Some(flags) = change.flags {
        let settable = settable_flags(slot);
        slot.flags = (slot.flags & !settable) | (InodeFlags::from_bits_retain(flags) & settable);
    }
    if let Some(accessed) = change.accessed {
        slot.accessed = time(accessed);
    }
    if let Some(modified) = change.modified {
        slot.modified = time(modified);
    }
    if let (Some(wanted), Some(created)) = (change.created, &mut slot.created) {
        *created = time(wanted);
    }
    slot.changed = change.changed.map_or(now, time);
}
