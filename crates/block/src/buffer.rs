//! One block in memory.
//!
//! Life: the [`Cache`](crate::Cache) makes a buffer as a placeholder, holds its state for writing
//! while the device is read, and then marks it loaded; from then on the bytes are there. It leaves
//! memory when the cache evicts it, which happens only while nobody else holds it, it is dirty in
//! no transaction and nobody has pinned it; or when its block is discarded.
//!
//! Locking: the state is under the lock of class `Buffer`, whose readers do not meet while nobody
//! writes, and for which one spins, as it is held for a change of a few bytes or one copy of the block
//! (who spins while the device is read sleeps in the end); pins and flags are atomic.

use std::fmt;

use pext4_ondisk::{BlockNumber, Tid};
use pext4_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use pext4_sync::{BiasedLock, BiasedReadGuard, BiasedWriteGuard, Class};

use crate::page::Page;

/// Which checksum a block gets when its version is sealed: the owner of the block knows what the
/// numbers mean, the layers below carry them.
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
    /// No checksum at all.
    pub const NONE: Self = Self {
        kind: 0,
        inode: 0,
        generation: 0,
    };
}

/// How the users of a block are counted that several cores use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedApart {
    /// In this transaction.
    pub tid: Tid,
    /// By this number, of the blocks that are counted so in it.
    pub number: u32,
}

/// What a buffer's lock protects.
#[derive(Debug)]
pub struct BufferState {
    /// The live bytes. Checksums in them may be stale: they are made on the sealed copy.
    pub page: Page,
    /// The transaction that this buffer still owes its bytes to.
    pub dirty_in: Option<Tid>,
    /// The last transaction on whose list it was put.
    pub listed_in: Option<Tid>,
    /// The transaction in which this life of the block began, if it began in memory.
    pub born_in: Option<Tid>,
    /// That its users are counted core by core, if that is done in the transaction that runs.
    pub counted_apart: Option<CountedApart>,
    /// The core that last counted a user, if one has.
    pub counted_by: Option<usize>,
    /// Which checksum the bytes get.
    pub stamp: Stamp,
}

/// One block of the device, in memory. Its lock comes first, on the line of what counts references.
#[repr(C)]
pub struct Buffer {
    state: BiasedLock<BufferState>,
    /// [immutable]
    block: BlockNumber,
    /// [atomic] Reasons to stay in memory.
    pins: AtomicU32,
    /// [atomic; set once, under the state's lock] The bytes are there.
    loaded: AtomicBool,
    /// [atomic] A reader above has checked the checksum of what the device gave.
    verified: AtomicBool,
    /// [atomic; set under the shard's lock] It left the cache: another may stand for its block.
    gone: AtomicBool,
    /// [atomic] Used since the clock's hand last passed.
    used: AtomicBool,
    /// [atomic; set once, under the shard's lock] The cache has forgotten it.
    discarded: AtomicBool,
}

impl Buffer {
    /// A buffer whose bytes are there.
    pub(crate) fn loaded(block: BlockNumber, page: Page) -> Self {
        let buffer = Self::placeholder(block, page);
        buffer.set_loaded();
        buffer
    }

    /// A buffer whose bytes are still to come.
    pub(crate) fn placeholder(block: BlockNumber, page: Page) -> Self {
        let state = BufferState {
            page,
            dirty_in: None,
            listed_in: None,
            born_in: None,
            counted_apart: None,
            counted_by: None,
            stamp: Stamp::NONE,
        };
        Self {
            block,
            state: BiasedLock::new(Class::Buffer, state),
            pins: AtomicU32::new(0),
            loaded: AtomicBool::new(false),
            verified: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            used: AtomicBool::new(false),
            discarded: AtomicBool::new(false),
        }
    }

    /// Its number on the device.
    #[must_use]
    pub fn block(&self) -> BlockNumber {
        self.block
    }

    /// Locks the state for looking.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> BiasedReadGuard<'_, BufferState> {
        self.state.read_spinning()
    }

    /// Locks the state for changing.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> BiasedWriteGuard<'_, BufferState> {
        self.state.write_spinning()
    }

    /// Locks the state for changing, if nobody has it locked.
    #[must_use]
    pub fn try_write(&self) -> Option<BiasedWriteGuard<'_, BufferState>> {
        self.state.try_write()
    }

    /// The bytes as they are now; later changes do not reach them.
    #[must_use]
    pub fn page(&self) -> Page {
        self.read().page.clone()
    }

    /// Sets the bytes; what the buffer owes and its stamp stay.
    ///
    /// # Panics
    /// If the length is not that of a block.
    pub fn replace_page(&self, page: Page) {
        let mut state = self.write();
        assert_eq!(
            state.page.len(),
            page.len(),
            "a page is as long as its block"
        );
        state.page = page;
    }

    /// Keeps the buffer in memory until as many [`Buffer::unpin`]s.
    pub fn pin(&self) {
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back one [`Buffer::pin`].
    pub fn unpin(&self) {
        let before = self.pins.fetch_sub(1, Ordering::Release);
        debug_assert!(
            before > 0,
            "{:?} is unpinned more often than pinned",
            self.block
        );
    }

    /// Whether anyone has pinned it.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Whether a reader has checked the bytes that came from the device. A block that was made
    /// here counts as checked: its checksum is made when it is sealed.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Acquire)
    }

    /// Has the bytes that came from the device checked, unless a reader has done so.
    ///
    /// # Errors
    /// Those of `check`; the next reader asks again then.
    pub fn verify<E>(
        &self,
        check: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if self.is_verified() {
            return Ok(());
        }
        let state = self.read();
        // Once more under the lock: who changes a block had it checked first, and leaves its checksum to the seal.
        if self.is_verified() {
            return Ok(());
        }
        check(&state.page)?;
        self.set_verified();
        Ok(())
    }

    /// Notes that the bytes have been checked.
    pub fn set_verified(&self) {
        self.verified.store(true, Ordering::Release);
    }

    /// Whether the block was discarded, so that another buffer may stand for it now. Asked by who
    /// holds a buffer without owning its block.
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

    /// Whether the cache would still give this buffer for its block.
    pub(crate) fn is_current(&self) -> bool {
        self.is_loaded() && !self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Notes a use; looks first, so that a hot buffer's line is not written each time.
    pub(crate) fn note_use(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last call.
    pub(crate) fn take_use(&self) -> bool {
        let used = self.used.load(Ordering::Relaxed);
        if used {
            self.used.store(false, Ordering::Relaxed);
        }
        used
    }

    /// Whether it may leave memory, asked by the only holder.
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
