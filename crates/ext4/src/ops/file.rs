//! The content of regular files.

use std::ops::Range;
use std::sync::Arc;

use pext4_ondisk::Tid;
use pext4_ondisk::time::Time;
use pext4_sync::ShardRef;

use super::encrypted::check_makes_names;
use super::kept_content::check_content_changes;
use super::names::Change;
use super::{INODE_CREDITS, check_directory};
use crate::error::{Refusal, Result};
use crate::inode::allocate::Allocated;
use crate::inode::data::SLOT_CREDITS;
use crate::inode::{Inode, Reach};
use crate::types::{
    AllocateMode, CreateAttributes, Entry, FileType, InodeNumber, MappedRange, Seek,
};
use crate::volume::Volume;

/// Who calls a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// A program that writes now; the write sets the times.
    Caller,
    /// A cache that writes back data some time after the program wrote it, and sets the times
    /// itself.
    Cache,
}

/// Calls `write` with offsets and what is left of `from` until all of it is written, or nothing
/// more fits; returns the number of bytes written.
fn write_all(
    offset: u64,
    from: &[u8],
    write: impl Fn(u64, &[u8]) -> Result<usize>,
) -> Result<usize> {
    let mut done = 0;
    loop {
        let rest = &from[done..];
        let at = offset
            .checked_add(done as u64)
            .ok_or(Refusal::FileTooLarge)?;
        match write(at, rest) {
            Ok(count) if count == rest.len() => return Ok(from.len()),
            // The next attempt finds out why: if there is no space, it waits for space that a
            // commit releases.
            Ok(count) => done += count,
            Err(error) => {
                let fits_in_part = error.is_lack_of_space() || error.is(Refusal::FileTooLarge);
                return match done > 0 && fits_in_part {
                    true => Ok(done),
                    false => Err(error),
                };
            }
        }
    }
}

/// The times of the last modification and of the last change.
fn times_of_change(inode: &Inode) -> (Time, Time) {
    inode.state(|state| (state.slot.modified, state.slot.changed))
}

impl Volume {
    /// The inode of this number, which must be a regular file and not the journal.
    pub(super) fn regular(&self, number: InodeNumber) -> Result<ShardRef<Inode>> {
        if self.inodes.store.is_named_journal(number) {
            return Err(Refusal::NotPermitted.into());
        }
        let inode = self.user_inode(number)?;
        match inode.file_type() {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Refusal::IsADirectory.into()),
            _ => Err(Refusal::Invalid.into()),
        }
    }

    /// Makes a regular file without a name (`O_TMPFILE`). It exists while it is held, and
    /// [`Volume::link`] can give it a name.
    ///
    /// # Errors
    ///
    /// As [`Volume::create`], except errors about the name; `Refused(NotPermitted)` in a directory
    /// that was removed.
    pub fn create_unnamed(&self, parent: InodeNumber, new: &CreateAttributes) -> Result<Entry> {
        self.run(|| {
            self.inodes.store.check_writable()?;
            let directory = self.directory(parent)?;
            let _names = super::lock_shared(&directory)?;
            // Linux has another error than for a name here.
            if directory.links() == 0 {
                return Err(Refusal::NotPermitted.into());
            }
            check_directory(&directory, Change::Add)?;
            check_makes_names(&directory)?;
            self.prepare_owners_of_new(&directory, new)?;
            let mut handle = self.inodes.store.start(INODE_CREDITS)?;
            let inode = self.create_unnamed_inode(&mut handle, &directory, new)?;
            Ok(Entry {
                inode: inode.number(),
                attributes: inode.attributes(),
            })
        })
    }

    /// Reads up to `into.len()` bytes; fewer only at the end of the file. The bytes of an encrypted
    /// file are those that are stored. The time of last access stays as it is: changing it is
    /// [`Volume::note_access`].
    ///
    /// # Errors
    ///
    /// `Refused(IsADirectory | Invalid)`, `Refused(NotPermitted)` for a journal that has a name,
    /// `Corrupt`, `Io`.
    pub fn read(&self, inode: InodeNumber, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.run(|| {
            let inode = self.regular(inode)?;
            let _lock = super::lock_shared(&inode)?;
            self.inodes.read_data(&inode, offset, into)
        })
    }

    /// Writes `from`, extending the file if needed. Returns the number of bytes written: fewer than
    /// given only if the volume became full, or the host.
    ///
    /// # Errors
    ///
    /// `Refused(NoSpace)` if no byte could be written, `Refused(FileTooLarge | ReadOnly |
    /// NotPermitted | NoKey | IsADirectory | Invalid)`, `Corrupt`, `Io`. `NotPermitted` is an
    /// immutable file or one with fs-verity, `NoKey` an encrypted one, `Invalid` one that is
    /// neither regular nor a directory.
    pub fn write(&self, inode: InodeNumber, offset: u64, from: &[u8]) -> Result<usize> {
        self.write_by(Writer::Caller, inode, offset, from)
    }

    /// As [`Volume::write`], for a cache above the volume that writes its pages back some time
    /// after the caller wrote. It leaves the times unchanged: the cache sets them when the caller
    /// writes.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn write_from_cache(&self, inode: InodeNumber, offset: u64, from: &[u8]) -> Result<usize> {
        self.write_by(Writer::Cache, inode, offset, from)
    }

    /// Writes `from` at the end of the file, which is found under the inode's lock: writers that
    /// append do not overwrite each other. Returns the offset at which they were written and their
    /// number, which is less than given only if the volume became full, or the host.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`].
    pub fn append(&self, inode: InodeNumber, from: &[u8]) -> Result<(u64, usize)> {
        let inode = self.run(|| self.regular(inode))?;
        let appended = self.append_under_lock(&inode, from);
        self.reap_forgotten();
        appended
    }

    fn append_under_lock(&self, inode: &Arc<Inode>, from: &[u8]) -> Result<(u64, usize)> {
        // Held until all is written, so that nobody else appends in between.
        let _lock = self.run_locked(|| super::lock_exclusive(inode))?;
        let end = inode.size();
        let written = write_all(end, from, |at, rest| {
            self.run_locked(|| {
                check_content_changes(inode.flags())?;
                self.inodes.write_data(inode, at, rest)
            })
        });
        Ok((end, written?))
    }

    fn write_by(
        &self,
        writer: Writer,
        inode: InodeNumber,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        write_all(offset, from, |at, rest| {
            self.write_some(writer, inode, at, rest)
        })
    }

    fn write_some(
        &self,
        writer: Writer,
        inode: InodeNumber,
        offset: u64,
        from: &[u8],
    ) -> Result<usize> {
        self.run(|| {
            let inode = self.regular(inode)?;
            let _lock = super::lock_exclusive(&inode)?;
            check_content_changes(inode.flags())?;
            if writer == Writer::Caller {
                return self.inodes.write_data(&inode, offset, from);
            }
            let times = times_of_change(&inode);
            let written = self.inodes.write_data(&inode, offset, from)?;
            self.restore_times(&inode, times)?;
            Ok(written)
        })
    }

    fn restore_times(&self, inode: &Arc<Inode>, times: (Time, Time)) -> Result<()> {
        let mut handle = self.inodes.store.start(SLOT_CREDITS)?;
        inode.edit(&mut handle, Reach::Attributes, |state| {
            (state.slot.modified, state.slot.changed) = times;
        });
        Ok(())
    }

    /// `fallocate(2)`.
    ///
    /// # Errors
    ///
    /// As [`Volume::write`]; `Refused(Invalid)` for an empty range, `Refused(NotPermitted)` for
    /// removing content from an append-only file, `Refused(NotSupported)` for anything but a hole
    /// in a file with a block map, which has no unwritten blocks.
    pub fn allocate(
        &self,
        inode: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.allocate_by(Writer::Caller, inode, mode, (offset, length))
    }

    /// As [`Volume::allocate`], for a cache above the volume that sets the times itself (see
    /// [`Volume::write_from_cache`]).
    ///
    /// # Errors
    ///
    /// As [`Volume::allocate`].
    pub fn allocate_from_cache(
        &self,
        inode: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.allocate_by(Writer::Cache, inode, mode, (offset, length))
    }

    fn allocate_by(
        &self,
        writer: Writer,
        inode: InodeNumber,
        mode: AllocateMode,
        (offset, length): (u64, u64),
    ) -> Result<()> {
        if length == 0 {
            return Err(Refusal::Invalid.into());
        }
        let end = offset.checked_add(length).ok_or(Refusal::FileTooLarge)?;
        let inode = self.run(|| self.regular(inode))?;
        let allocated = self.allocate_under_lock(writer, &inode, mode, offset..end);
        self.reap_forgotten();
        allocated
    }

    fn allocate_under_lock(
        &self,
        writer: Writer,
        inode: &Arc<Inode>,
        mode: AllocateMode,
        bytes: Range<u64>,
    ) -> Result<()> {
        // Before the lock is held, another thread may change the format of the map. It is held
        // until what a failed call has allocated was taken back.
        let _lock = self.run_locked(|| super::lock_exclusive(inode))?;
        let kept_times = (writer == Writer::Cache).then(|| times_of_change(inode));
        let mut allocated = Allocated::nothing(inode);
        let result = self.run_locked(|| self.allocate_locked(inode, mode, &bytes, &mut allocated));
        // Where the size stays, blocks behind it are what was asked for, and stay too, as in Linux.
        let keeps_size = matches!(
            mode,
            AllocateMode::KeepSize | AllocateMode::ZeroRange { keep_size: true }
        );
        if result.is_err() && !keeps_size {
            // If this fails too, the first error is the one to tell.
            let _ = self.run_locked(|| self.inodes.take_back(inode, &allocated));
        }
        if let (Ok(()), Some(times)) = (&result, kept_times) {
            self.run_locked(|| self.restore_times(inode, times))?;
        }
        result
    }

    fn allocate_locked(
        &self,
        inode: &Arc<Inode>,
        mode: AllocateMode,
        bytes: &Range<u64>,
        allocated: &mut Allocated,
    ) -> Result<()> {
        check_content_changes(inode.flags())?;
        // Linux says this before it says that the file's format or size does not allow the call.
        if matches!(
            mode,
            AllocateMode::PunchHole | AllocateMode::ZeroRange { .. }
        ) {
            self.check_changeable(inode)?;
        }
        let is_punching = mode == AllocateMode::PunchHole;
        let has_pointers = self.inodes.uses_block_map(inode);
        // A hole may end beyond the largest size of a file with a block map; it is cut there.
        let limit = match is_punching && has_pointers {
            true => u64::MAX,
            false => self.inodes.largest_size(inode),
        };
        if bytes.end > limit {
            return Err(Refusal::FileTooLarge.into());
        }
        // A block map cannot represent unwritten blocks.
        if !is_punching && has_pointers {
            return Err(Refusal::NotSupported.into());
        }
        match mode {
            AllocateMode::Extend => self.inodes.allocate_data(inode, bytes, false, allocated),
            AllocateMode::KeepSize => self.inodes.allocate_data(inode, bytes, true, allocated),
            AllocateMode::PunchHole => {
                let length = bytes.end - bytes.start;
                self.inodes.punch_data(inode, bytes.start, length)
            }
            AllocateMode::ZeroRange { keep_size } => {
                self.inodes.zero_data(inode, bytes, keep_size, allocated)
            }
        }
    }

    /// Whether a call that writes to the file, or allocates, up to `size` may wait for a commit:
    /// the file was just truncated inside a block, and the rest of that block must keep its bytes
    /// until that is durable; or the same of blocks that were unmapped in a cluster that stays. A
    /// guess, which takes no lock.
    #[must_use]
    pub fn write_waits(&self, inode: InodeNumber, size: u64) -> bool {
        let Ok(inode) = self.user_inode(inode) else {
            return false;
        };
        let journal = self.inodes.store.try_journal();
        let is_durable = |tid| journal.is_none_or(|journal| journal.is_durable(tid));
        let waits_for = |tid: Option<Tid>| tid.is_some_and(|tid| !is_durable(tid));
        (size > inode.size() && waits_for(self.inodes.truncate_of_tail(&inode)))
            || waits_for(self.inodes.unmapped_beside(&inode))
    }

    /// `SEEK_DATA`: the next written byte at or after `offset`.
    ///
    /// # Errors
    ///
    /// `Refused(NoSuchOffset)` if there is none, and as [`Volume::read`].
    pub fn seek_data(&self, inode: InodeNumber, offset: u64) -> Result<u64> {
        self.seek(inode, offset, Seek::Data)
    }

    /// `SEEK_HOLE`: the next hole at or after `offset`; the end of the file counts as one.
    ///
    /// # Errors
    ///
    /// `Refused(NoSuchOffset)` at or beyond the end, and as [`Volume::read`].
    pub fn seek_hole(&self, inode: InodeNumber, offset: u64) -> Result<u64> {
        self.seek(inode, offset, Seek::Hole)
    }

    fn seek(&self, inode: InodeNumber, offset: u64, sought: Seek) -> Result<u64> {
        self.run(|| {
            let inode = self.regular(inode)?;
            let _lock = super::lock_shared(&inode)?;
            self.inodes.seek(&inode, offset, sought)
        })
    }

    /// Where the bytes of a file or directory are located on the device: at most `most` ranges,
    /// starting at byte `offset` of the file.
    ///
    /// # Errors
    ///
    /// `Corrupt` or `Io`.
    pub fn extents(
        &self,
        inode: InodeNumber,
        offset: u64,
        most: usize,
    ) -> Result<Vec<MappedRange>> {
        self.run(|| {
            let inode = self.user_inode(inode)?;
            let _lock = super::lock_shared(&inode)?;
            if inode.maps_blocks() {
                self.inodes.mapped_ranges(&inode, offset, most)
            } else {
                Ok(Vec::new())
            }
        })
    }
}
