//! Attributes: `stat`, and the operations that change them.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::directory::PERMISSIONS;
use pext4_ondisk::inode::{Inode as Slot, InodeFlags};
use pext4_ondisk::time::Time;

use super::kept_content::check_content_changes;
use crate::error::{Refusal, Result};
use crate::inode::data::SLOT_CREDITS;
use crate::inode::map_format::OtherMap;
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::{Attributes, FileType, InodeNumber, SetAttributes, SetTime};
use crate::volume::Volume;

/// The longest tick of the system's clock, in nanoseconds: `store::now` advances by it.
const CLOCK_TICK: i128 = 10_000_000;

impl Volume {
    /// The attributes of an inode, as `stat` returns them.
    ///
    /// # Errors
    ///
    /// `Refused(Stale)`, `Corrupt`, `Io`.
    pub fn attributes(&self, inode: InodeNumber) -> Result<Attributes> {
        self.run(|| Ok(self.user_inode(inode)?.attributes()))
    }

    /// Changes attributes, size included.
    ///
    /// # Errors
    ///
    /// `Refused(NotPermitted)` for a journal that has a name, for immutable and append-only files
    /// (unless the change clears that flag, or sets the times of an append-only file to the
    /// present) and for the size of a file with fs-verity, `Refused(NoKey)` for that of an
    /// encrypted one, `Refused(NotSupported)` for flags that would have no effect, for permissions
    /// of a symbolic link, for a map that cannot have the other format and for a project where the
    /// inode or the image has none, `Refused(Invalid)` for a project that none can be and for
    /// another format of the map of what is stored in its inode,
    /// `Refused(NotEmpty)` for the flag by which case does not matter and a directory with names,
    /// `Refused(IsADirectory | Invalid | FileTooLarge)` for a size, `Refused(NoSpace | ReadOnly)`,
    /// `Corrupt`, `Io`.
    pub fn set_attributes(&self, inode: InodeNumber, change: &SetAttributes) -> Result<Attributes> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let inode = if change.size.is_some() {
                self.regular(inode)?
            } else {
                self.user_inode(inode)?
            };
            if self.inodes.store.is_named_journal(inode.number()) {
                return Err(Refusal::NotPermitted.into());
            }
            let _lock = super::lock_exclusive(&inode)?;
            check_flags(&inode, change)?;
            self.check_casefolding(&inode, change.flags)?;
            if change.size.is_some() {
                check_content_changes(inode.flags())?;
            }
            self.check_project(&inode, change)?;
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

    /// Clears the permission bits in `taken`, as a write does. Allowed on append-only files, which
    /// can be written as well, and refused where a write is.
    ///
    /// # Errors
    ///
    /// As [`Attributes::check_content_changes`]; `Refused(ReadOnly)`.
    pub fn take_permissions(&self, inode: InodeNumber, taken: u16) -> Result<()> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let inode = self.user_inode(inode)?;
            let _lock = super::lock_exclusive(&inode)?;
            check_content_changes(inode.flags())?;
            let left = inode.attributes().permissions() & !taken;
            let mut handle = self.inodes.store.start(SLOT_CREDITS)?;
            set_permissions(&mut handle, &inode, Some(left));
            Ok(())
        })
    }

    /// Sets the times of modification and change, for a cache above the volume that sends the times
    /// of a write some time after it (see [`Volume::write_from_cache`]).
    ///
    /// An immutable file takes the modification time if it is not later than the last change of the
    /// inode: the write came before the change that made the file immutable, whose time remains.
    /// (It may be a tick later: the cache's clock may be finer than ours.) So does an encrypted
    /// file and one with fs-verity, whose writes were refused.
    ///
    /// # Errors
    ///
    /// `Refused(NotPermitted | NoKey)` for a later write to such a file, `Refused(ReadOnly)`.
    pub fn set_times_from_cache(
        &self,
        inode: InodeNumber,
        modified: Time,
        changed: Time,
    ) -> Result<Attributes> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let inode = self.user_inode(inode)?;
            let _lock = super::lock_exclusive(&inode)?;
            let present = inode.attributes().changed;
            let may_write = check_content_changes(inode.flags());
            let changed = if may_write.is_ok() { changed } else { present };
            if nanoseconds(modified) > nanoseconds(present) + CLOCK_TICK {
                may_write?;
            }
            let change = SetAttributes {
                modified: Some(SetTime::To(modified)),
                changed: Some(SetTime::To(changed)),
                ..SetAttributes::default()
            };
            self.change_slot(&inode, &change)?;
            Ok(inode.attributes())
        })
    }

    fn change_slot(&self, inode: &Arc<Inode>, change: &SetAttributes) -> Result<()> {
        let new_map = self.other_format_if_wanted(inode, change)?;
        self.prepare_new_owners(inode, change)?;
        let credits = new_map.as_ref().map_or(0, |(_, credits)| *credits);
        let mut handle = self.inodes.store.start(SLOT_CREDITS + credits)?;
        if let Some((map, _)) = &new_map {
            self.inodes.set_map_format(&mut handle, inode, map)?;
        }
        let now = now();
        inode.edit(&mut handle, Reach::Attributes, |state| {
            // Under the inode's lock, since the change of an extended attribute is planned with the
            // room that there is for it.
            state.slot.grow_extra(self.new_inode_extra_size);
            apply(&mut state.slot, change, now)
        });
        Ok(())
    }

    /// Prepares a change of owners, if there is one. The caller holds the inode's lock.
    fn prepare_new_owners(&self, inode: &Inode, change: &SetAttributes) -> Result<()> {
        if (change.uid, change.gid, change.project) == (None, None, None) {
            return Ok(());
        }
        let present = inode.attributes();
        let owners = [
            change.uid.unwrap_or(present.uid),
            change.gid.unwrap_or(present.gid),
            change.project.unwrap_or(present.project),
        ];
        self.prepare_owners_of(inode, owners)
    }

    /// The map in the other format and the credits for it, if the flags change the format. Special
    /// files and links have no format to change; what is stored in its inode has no map that could
    /// get one.
    fn other_format_if_wanted(
        &self,
        inode: &Inode,
        change: &SetAttributes,
    ) -> Result<Option<(OtherMap, u32)>> {
        let changes = |wanted: u32| (inode.flags().bits() ^ wanted) & InodeFlags::EXTENTS.bits();
        let is_mapped = matches!(inode.file_type(), FileType::Regular | FileType::Directory);
        match change.flags {
            Some(wanted) if changes(wanted) != 0 && is_mapped => {
                if inode.is_inline() {
                    return Err(Refusal::Invalid.into());
                }
                self.inodes.map_in_other_format(inode).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Nanoseconds since 1970.
fn nanoseconds(time: Time) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

/// Sets the permissions, if they are given.
pub(super) fn set_permissions(
    handle: &mut Handle<'_>,
    inode: &Arc<Inode>,
    permissions: Option<u16>,
) {
    let change = SetAttributes {
        permissions,
        ..SetAttributes::default()
    };
    if permissions.is_some() {
        let now = now();
        inode.edit(handle, Reach::Attributes, |state| {
            apply(&mut state.slot, &change, now)
        });
    }
}

/// Refuses changes that the inode's flags forbid, and flags that would have no effect.
fn check_flags(inode: &Inode, change: &SetAttributes) -> Result<()> {
    let flags = inode.flags();
    let only_flags = *change
        == SetAttributes {
            flags: change.flags,
            project: change.project,
            ..SetAttributes::default()
        };
    let is_locked = flags.contains(InodeFlags::IMMUTABLE)
        || (flags.contains(InodeFlags::APPEND) && !is_touch(change));
    if is_locked && !only_flags {
        return Err(Refusal::NotPermitted.into());
    }
    if inode.file_type() == FileType::Symlink && change.permissions.is_some() {
        return Err(Refusal::NotSupported.into());
    }
    match change.flags {
        Some(wanted) => {
            check_new_flags(inode.file_type(), flags, wanted)?;
            check_stays_locked(flags, InodeFlags::from_bits_retain(wanted))
        }
        None => Ok(()),
    }
}

/// Refuses to change the flags of a file that stays immutable.
fn check_stays_locked(present: InodeFlags, wanted: InodeFlags) -> Result<()> {
    let changes = (present ^ wanted) & InodeFlags::USER_MODIFIABLE;
    if (present & wanted).contains(InodeFlags::IMMUTABLE) && !changes.is_empty() {
        return Err(Refusal::NotPermitted.into());
    }
    Ok(())
}

/// Whether a change sets both times to the present and nothing else, as `touch` does, or only that
/// of the last change: an append could do the same. A caller that keeps the times of a file itself
/// says what the present is; then the times of modification and change are equal. Times of appends
/// that it writes back come by [`Volume::set_times_from_cache`].
fn is_touch(change: &SetAttributes) -> bool {
    let present = change.changed.unwrap_or(SetTime::Now);
    let touch = SetAttributes {
        accessed: Some(SetTime::Now),
        modified: Some(present),
        changed: change.changed,
        ..SetAttributes::default()
    };
    let changed = SetAttributes {
        changed: Some(SetTime::Now),
        ..SetAttributes::default()
    };
    *change == touch || *change == changed
}

/// `EXT4_EOFBLOCKS_FL`, which no current kernel sets and checkers report. As on Linux, users cannot
/// change it, and asking for it is no error.
const OBSOLETE: InodeFlags = InodeFlags::from_bits_retain(0x40_0000);

/// Flags that users may change on Linux but not here, because they request something that this
/// version does not do. Other visible flags that users may not change are ignored, as on Linux: a
/// caller that sets one flag passes all flags that it read before.
const FIXED: InodeFlags = InodeFlags::JOURNAL_DATA;

fn check_new_flags(kind: FileType, present: InodeFlags, wanted: u32) -> Result<()> {
    let wanted = InodeFlags::from_bits_retain(wanted);
    let foreign = match kind {
        FileType::Directory => InodeFlags::empty(),
        FileType::Regular => InodeFlags::OF_DIRECTORIES,
        _ => InodeFlags::USER_MODIFIABLE & !(InodeFlags::NODUMP | InodeFlags::NOATIME),
    };
    // The operator `!` would drop bits that have no name.
    let unknown = wanted.difference(InodeFlags::USER_VISIBLE);
    let fixed = (wanted ^ present) & FIXED;
    let misplaced = wanted.difference(present) & foreign;
    if (unknown | fixed | misplaced).is_empty() {
        Ok(())
    } else {
        Err(Refusal::NotSupported.into())
    }
}

fn apply(slot: &mut Slot, change: &SetAttributes, now: Time) {
    let time = |wanted: SetTime| match wanted {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    if let Some(permissions) = change.permissions {
        slot.mode = (slot.mode & !PERMISSIONS) | (permissions & PERMISSIONS);
    }
    if let Some(uid) = change.uid {
        slot.uid = uid;
    }
    if let Some(gid) = change.gid {
        slot.gid = gid;
    }
    if let Some(flags) = change.flags {
        let settable = InodeFlags::USER_MODIFIABLE
            .difference(FIXED.union(OBSOLETE))
            .difference(InodeFlags::EXTENTS);
        let set = InodeFlags::from_bits_retain(flags) & settable;
        slot.flags = slot.flags.difference(settable) | set;
    }
    if let Some(project) = change.project {
        slot.project = project;
    }
    if let Some(accessed) = change.accessed {
        // All times of one call that are "now" are equal: the time of the change, if the caller
        // gives it.
        let present = change.changed.map_or(now, time);
        slot.accessed = match accessed {
            SetTime::Now => present,
            SetTime::To(time) => time,
        };
    }
    if let Some(modified) = change.modified {
        slot.modified = time(modified);
    }
    if let (Some(wanted), Some(created)) = (change.created, &mut slot.created) {
        *created = time(wanted);
    }
    slot.changed = change.changed.map_or(now, time);
}
