//! One block in memory.
//!
//! Life: the [`Cache`](crate::Cache) makes a buffer as a placeholder, holds its state for writing
//! while the device is read, and then marks it loaded; from then on its bytes are valid. The cache
//! evicts it only if it has no other references, is dirty in no transaction and is not pinned. It
//! also leaves the cache when its block is discarded.
//!
//! Locking: the state is under a lock of class `Buffer`. Its readers write no common cache line
//! while there is no writer. Waiters spin, as the lock is held for a change of a few bytes or one
//! copy of the block; a thread that waits for a read of the device sleeps after a while. Pins,
//! flags and the count of changes are atomic.

use std::fmt;
use std::mem::offset_of;

use pext4_ondisk::directory::Fingerprints;
use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use pext4_sync::{BiasedLock, BiasedReadGuard, BiasedWriteGuard, Class, memory};

use crate::page::Page;

/// Selects the checksum that a block gets when its version is sealed. Only the owner of the block
/// interprets the numbers; the layers below pass them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stamp {
    /// The kind of block.
    pub kind: u32,
    /// The inode it belongs to, 0 for none.
    pub inode: u32,
    /// That inode's generation.
    pub generation: u32,
}

impl Stamp {
    /// The block has no checksum.
    pub const NONE: Self = Self {
        kind: 0,
        inode: 0,
        generation: 0,
    };
}

/// Identifies a block whose users each core counts for itself in one transaction (see
/// `mbcache/own_counts.rs` of `pext4-fs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedApart {
    /// The transaction.
    pub tid: Tid,
    /// The block's number among those counted so in it.
    pub number: u32,
}

/// What a buffer's lock protects. What a change of the bytes reads and writes comes first, close
/// to the lock ([`Buffer::fetch_for_writing`]).
#[derive(Debug)]
#[repr(C)]
pub struct BufferState {
    page: Page,
    /// The transaction in which the buffer is dirty: it still needs a version of the bytes.
    pub dirty_in: Option<Tid>,
    /// If the bytes are a leaf of a directory whose names are found by them.
    fingerprints: Option<Fingerprints>,
    /// Selects the checksum that the bytes get.
    pub stamp: Stamp,
    /// The last transaction on whose list it was put.
    pub listed_in: Option<Tid>,
    /// The transaction that began the block's present use, if that began while it was in memory.
    pub born_in: Option<Tid>,
    /// Set if its users are counted core by core in the running transaction.
    pub counted_apart: Option<CountedApart>,
    /// The core that last counted a user, if one has.
    pub counted_by: Option<usize>,
}

/// Bytes at the start of a buffer's state that every change of its bytes needs.
const CHANGED_OFTEN: usize = offset_of!(BufferState, listed_in);

impl BufferState {
    /// The live bytes. Checksums in them may be stale: they are made on the sealed copy.
    #[must_use]
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The live bytes, to be changed. Fingerprints of them are dropped.
    pub fn page_mut(&mut self) -> &mut Page {
        self.fingerprints = None;
        &mut self.page
    }

    /// Replaces the live bytes by the same with their checksum. Fingerprints stay: they do not
    /// depend on it.
    pub fn replace_by_sealed(&mut self, page: Page) {
        self.page = page;
    }

    /// The fingerprints of the bytes as they are now, if they were kept.
    #[must_use]
    pub fn fingerprints(&self) -> Option<&Fingerprints> {
        self.fingerprints.as_ref()
    }

    /// Keeps the fingerprints of the bytes, until they are changed by [`BufferState::page_mut`].
    pub fn keep_fingerprints(&mut self, fingerprints: Fingerprints) {
        self.fingerprints = Some(fingerprints);
    }

    /// Drops the fingerprints.
    pub fn drop_fingerprints(&mut self) {
        self.fingerprints = None;
    }

    /// Tells virtual cores that the page and what is known of it are read.
    pub fn tell_read(&self) {
        memory::used(|used| {
            used.read(std::slice::from_ref(&self.page));
            used.read(std::slice::from_ref(&self.fingerprints));
        });
    }

    /// Tells virtual cores that the page and what is known of it are read, and changed within a
    /// transaction.
    pub fn tell_change(&self) {
        memory::used(|used| {
            used.read(std::slice::from_ref(&self.page));
            used.read(std::slice::from_ref(&self.fingerprints));
            used.written(std::slice::from_ref(&self.page));
            used.written(std::slice::from_ref(&self.fingerprints));
            used.written(std::slice::from_ref(&self.dirty_in));
            used.written(std::slice::from_ref(&self.stamp));
        });
    }

    /// The live bytes and their fingerprints, which the caller changes together.
    pub fn leaf_mut(&mut self) -> (&mut Page, Option<&mut Fingerprints>) {
        (&mut self.page, self.fingerprints.as_mut())
    }
}

/// One block of the device, in memory. The count of changes and the lock are the first fields, in
/// the cache line of the reference count.
#[repr(C)]
pub struct Buffer {
    /// [atomic; changed under the state's lock] A count that the block's owner keeps.
    changes: AtomicU64,
    state: BiasedLock<BufferState>,
    /// [immutable]
    block: BlockNumber,
    /// [atomic] Number of pins; a pinned buffer is not evicted.
    pins: AtomicU32,
    /// [atomic; set once, under the state's lock] The bytes are valid.
    loaded: AtomicBool,
    /// [atomic] A layer above has checked the checksum of the bytes from the device.
    verified: AtomicBool,
    /// [atomic; set under the shard's lock] It is not in the cache any more: its block may have
    /// another buffer.
    removed: AtomicBool,
    /// [atomic] Used since the clock hand last passed.
    used: AtomicBool,
    /// [atomic; set once, under the locks of the shard and of the state] It was removed because its
    /// block was discarded.
    discarded: AtomicBool,
}

impl Buffer {
    /// A buffer whose bytes are valid.
    pub(crate) fn loaded(block: BlockNumber, page: Page) -> Self {
        let buffer = Self::placeholder(block, page);
        buffer.set_loaded();
        buffer
    }

    /// A buffer whose bytes are not valid yet.
    pub(crate) fn placeholder(block: BlockNumber, page: Page) -> Self {
        let state = BufferState {
            page,
            dirty_in: None,
            fingerprints: None,
            stamp: Stamp::NONE,
            listed_in: None,
            born_in: None,
            counted_apart: None,
            counted_by: None,
        };
        Self {
            changes: AtomicU64::new(0),
            block,
            state: BiasedLock::new(Class::Buffer, state),
            pins: AtomicU32::new(0),
            loaded: AtomicBool::new(false),
            verified: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            used: AtomicBool::new(false),
            discarded: AtomicBool::new(false),
        }
    }

    /// Its number on the device.
    #[must_use]
    pub fn block(&self) -> BlockNumber {
        self.block
    }

    /// Locks the state for reading.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> BiasedReadGuard<'_, BufferState> {
        self.state.read_spinning()
    }

    /// Locks the state for writing.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> BiasedWriteGuard<'_, BufferState> {
        self.state.write_spinning()
    }

    /// Requests the cache lines that a change of the bytes will write, for a caller that is about
    /// to lock the state for writing.
    pub fn fetch_for_writing(&self) {
        self.state.fetch_for_writing(CHANGED_OFTEN);
    }

    /// Locks the state for writing; `None` if it is locked.
    #[must_use]
    pub fn try_write(&self) -> Option<BiasedWriteGuard<'_, BufferState>> {
        self.state.try_write()
    }

    /// The bytes as they are now; later changes do not affect the returned page.
    #[must_use]
    pub fn page(&self) -> Page {
        self.read().page.clone()
    }

    /// A count of changes, as the block's owner keeps it with [`Buffer::count_change`]; 0 when the
    /// buffer was made. Sequentially consistent.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Adds to the count of changes; wraps around. The caller has locked `state`, this buffer's,
    /// and has changed the bytes already. Sequentially consistent.
    pub fn count_change(&self, _state: &BiasedWriteGuard<'_, BufferState>, step: u64) {
        self.changes.fetch_add(step, Ordering::SeqCst);
    }

    /// Sets the bytes; the transactions and the stamp of the buffer are unchanged.
    ///
    /// # Panics
    ///
    /// If the length is not that of a block.
    pub fn replace_page(&self, page: Page) {
        let mut state = self.write();
        assert_eq!(
            state.page.len(),
            page.len(),
            "a page is as long as its block"
        );
        *state.page_mut() = page;
    }

    /// Keeps the buffer in memory until the matching [`Buffer::unpin`].
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Releases one [`Buffer::pin`].
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(
            before > 0,
            "{:?} is unpinned more often than pinned",
            self.block
        );
    }

    /// Whether it is pinned.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Whether a reader has checked the bytes from the device. A block that was made in memory
    /// counts as checked: its checksum is made when it is sealed.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    /// Checks the bytes from the device by `check`, unless a reader has done so.
    ///
    /// # Errors
    ///
    /// Those of `check`; the next reader then checks again.
    pub fn verify<E>(
        &self,
        check: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.verify_partly(|page| check(page).map(|()| true))
    }

    /// As [`Buffer::verify`], with a check that tells whether it was complete: if not, the next
    /// reader checks again.
    ///
    /// # Errors
    ///
    /// Those of `check`.
    pub fn verify_partly<E>(
        &self,
        check: impl FnOnce(&[u8]) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        if self.is_verified() {
            return Ok(());
        }
        let state = self.read();
        // Once more under the lock: a writer checks the block before it changes it, and leaves the
        // checksum stale.
        if self.is_verified() {
            return Ok(());
        }
        if check(&state.page)? {
            self.set_verified();
        }
        Ok(())
    }

    /// Notes that the bytes have been checked.
    pub fn set_verified(&self) {
        self.verified.store(true, Ordering::Release);
    }

    /// Whether the block was discarded, so that it may have another buffer now. For callers that
    /// keep a buffer without owning its block.
    #[must_use]
    pub fn is_discarded(&self) -> bool {
        self.discarded.load(Ordering::Acquire)
    }

    pub(crate) fn set_discarded(&self) {
        self.discarded.store(true, Ordering::Release);
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    pub(crate) fn set_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    /// Whether [`Cache::get`](crate::Cache::get) would still return this buffer for its block.
    pub(crate) fn is_current(&self) -> bool {
        self.is_loaded() && !self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
    }

    /// Marks it as used; reads the flag first, so that a hot buffer's cache line is not written
    /// each time.
    pub(crate) fn note_use(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Clears the mark; returns whether it was set.
    pub(crate) fn take_use(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        if used {
            self.used.store(false, Ordering::Relaxed);
        }
        used
    }

    /// Whether it may be evicted, apart from its references.
    pub(crate) fn is_idle(&mut self) -> bool {
        !self.is_pinned() && self.state.get_mut().dirty_in.is_none()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Buffer")
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}
