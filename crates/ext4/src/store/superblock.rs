//! The superblock of a mounted volume: a journalled object like any other (class `Superblock`). Its
//! decoded form is changed under a handle, and its bytes are made at capture. The free counts in it
//! are updated when the volume closes, as in Linux.

use std::io;
use std::sync::Arc;

use pext4_jbd2::{Capture, Handle, Owed, Owing};
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::superblock::{self, OFFSET, SIZE, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, Tid};
use pext4_sync::Mutex;
use pext4_sync::atomic::{AtomicU64, Ordering};
use pext4_sync::order::Class;

use super::Store;
use crate::error::Result;

/// The superblock in memory.
pub(super) struct SuperblockState {
    home: BlockNumber,
    /// Where in the block it begins, in bytes.
    offset: u32,
    /// Features known to be set, packed, so that they can be tested without a lock.
    set: AtomicU64,
    inner: Mutex<SuperblockInner>,
}

struct SuperblockInner {
    superblock: Superblock,
    owed: Owed,
}

impl Store {
    /// Calls `look` with the superblock, under its lock.
    pub fn superblock<R>(&self, look: impl FnOnce(&Superblock) -> R) -> R {
        look(&self.superblock.inner.lock().superblock)
    }

    /// Changes the superblock within a handle (one credit).
    pub fn edit_superblock<R>(
        &self,
        handle: &mut Handle<'_>,
        change: impl FnOnce(&mut Superblock) -> R,
    ) -> R {
        let state = &self.superblock;
        let mut inner = state.inner.lock();
        let inner = &mut *inner;
        handle.touch(
            &mut inner.owed,
            1,
            || Arc::clone(state) as Arc<dyn Owing>,
            |captures| captures.push(state.capture_of(&inner.superblock)),
        );
        change(&mut inner.superblock)
    }

    /// Sets features that a change of the image requires, if they are not set (one credit).
    pub fn need_features(
        &self,
        handle: &mut Handle<'_>,
        compat: Compat,
        read_only_compat: ReadOnlyCompat,
    ) {
        let needed = packed(compat, read_only_compat);
        if self.superblock.set.load(Ordering::Relaxed) & needed == needed {
            return;
        }
        self.edit_superblock(handle, |superblock| {
            superblock.features.compat |= compat;
            superblock.features.read_only_compat |= read_only_compat;
            superblock.raise_revision();
        });
        self.superblock.set.fetch_or(needed, Ordering::Relaxed);
    }

    /// Changes the superblock and writes it to its home block at once, bypassing the journal;
    /// durable on return. Only for mount and close, when no transaction can contain it.
    ///
    /// # Errors
    ///
    /// `Io` if the device fails.
    pub fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let bytes = {
            let mut inner = self.superblock.inner.lock();
            change(&mut inner.superblock);
            inner.superblock.encode()
        };
        self.patch_cached_superblock(&bytes)?;
        self.device.write_at(OFFSET, &bytes)?;
        self.device.flush()?;
        Ok(())
    }

    /// Updates the cached block, from which journalled versions are made, to match the home block.
    fn patch_cached_superblock(&self, bytes: &[u8]) -> io::Result<()> {
        let buffer = self.cache.get(self.superblock.home)?;
        let start = self.superblock.offset as usize;
        let mut state = buffer.write();
        state.page_mut().make_mut()[start..start + SIZE].copy_from_slice(bytes);
        Ok(())
    }
}

impl SuperblockState {
    pub(super) fn new(superblock: Superblock, block_size: u32) -> Self {
        let (home, offset) = superblock::place(block_size);
        let features = &superblock.features;
        let set = packed(features.compat, features.read_only_compat);
        let inner = SuperblockInner {
            superblock,
            owed: Owed::default(),
        };
        Self {
            home,
            offset,
            set: AtomicU64::new(set),
            inner: Mutex::new(Class::Superblock, inner),
        }
    }

    /// Records an error in memory only.
    pub(super) fn record_error(&self, corrupt: &Corrupt, code: u8, seconds: i64) {
        let mut inner = self.inner.lock();
        inner.superblock.record_error(corrupt, code, seconds);
    }

    fn capture_of(&self, superblock: &Superblock) -> Capture {
        Capture::Piece {
            block: self.home,
            offset: self.offset,
            bytes: superblock.encode().to_vec(),
        }
    }
}

impl Owing for SuperblockState {
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>) {
        let mut inner = self.inner.lock();
        if inner.owed.clear(tid) {
            captures.push(self.capture_of(&inner.superblock));
        }
    }
}

/// Features in one word.
fn packed(compat: Compat, read_only_compat: ReadOnlyCompat) -> u64 {
    u64::from(compat.bits()) << 32 | u64::from(read_only_compat.bits())
}
