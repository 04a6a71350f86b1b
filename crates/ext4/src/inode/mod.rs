//! Inodes in memory.
//!
//! Life cycle: an inode number that somebody names is *loaded* into the table or, when it is newly
//! claimed, *born* there. Callers *hold* it (a count, as FUSE's lookups are) and operations work on
//! an `Arc<Inode>`. When the last name and the last hold are gone it is *reaped*: blocks and number
//! are freed and the object stays as *dead* until the last transaction that changed it is durable,
//! because until then it may still owe its slot's bytes. A new life of the same number takes the
//! debt over.
//!
//! Locks, from outer to inner:
//!
//! - `lock` [Directory or Inode] serialises operations: what a reader of the file or directory may
//!   see. Taken before a handle is started.
//! - `map` [InodeMap] guards the shape of the extent tree and the preallocation.
//! - `state` [InodeState] guards the decoded slot. A leaf that the committer takes, so nothing
//!   sleeps under it. What is asked for all the time is read without it (`glance.rs`).

pub mod data;
pub mod extents;
pub(crate) mod form;
mod glance;
pub mod holds;
mod indirect;
mod inline;
pub mod leaves;
pub mod mapping;
mod name_changes;
pub mod table;
pub mod tails;
pub mod truncate;
pub mod values;
mod zeroes;

use std::sync::{Arc, OnceLock};

use pext4_jbd2::{Capture, Handle, Owed};
use pext4_ondisk::inode::{Inode as Slot, InodeFlags};
use pext4_ondisk::time::Time;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, Tid};
use pext4_sync::atomic::{AtomicBool, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{BiasedLock, Mutex};

use crate::inode::glance::Glance;
use crate::inode::holds::Holds;
use crate::inode::leaves::Leaves;
use crate::mballoc::Preallocation;
use crate::orphan::OrphanPlace;
use crate::store::{Store, now};
use crate::types::{Attributes, DeviceNumber, FileType};

/// An inode in memory.
pub struct Inode {
    number: InodeNumber,
    file_type: FileType,
    home: BlockNumber,
    offset: u32,
    /// The block as the journal knows it; see [`table::capture_block`].
    host: u64,
    checksum_seed: Option<u32>,
    block_size: u32,
    /// What operations exclude each other by; see the head of the file.
    pub lock: BiasedLock<()>,
    /// Locks of a directory's leaves, once it is changed leaf by leaf.
    leaves: OnceLock<Box<Leaves>>,
    /// Shape of the extent tree.
    pub map: BiasedLock<Map>,
    state: Mutex<State>,
    /// [atomic; written under state]
    glance: Glance,
    referenced: AtomicBool,
}

/// What the map lock guards beside the tree itself.
#[derive(Default)]
pub struct Map {
    /// Blocks set aside for the file's growth.
    pub preallocation: Option<Arc<Preallocation>>,
    /// Where the last large run was found, where files remember that.
    pub stream_goal: Option<GroupNumber>,
}

/// The decoded slot and what goes with it.
pub struct State {
    /// The slot's fields.
    pub slot: Slot,
    /// Where the inode stands among the orphans, if it does.
    pub orphan: Option<OrphanPlace>,
    /// The slot that it keeps while this transaction runs, though it is no orphan any more.
    pub idle_slot: Option<(Tid, OrphanPlace)>,
    /// The last transaction that an `fsync` must wait for.
    pub sync_tid: Option<Tid>,
    /// The last transaction that an `fdatasync` must wait for.
    pub datasync_tid: Option<Tid>,
    /// The last transaction that changed the slot: memory may go only when it is durable.
    pub last_tid: Option<Tid>,
    /// The transaction that cut the file inside a block, leaving old bytes behind the end.
    pub cut_tid: Option<Tid>,
    /// Whether the bytes between the end of the file and the end of its last block are known zero.
    pub tail_is_zero: bool,
    /// Whether it is listed among those whose end is still to be made zero.
    pub tail_is_listed: bool,
    /// Whether a cut failed half way, so that blocks may be mapped behind the end that nobody is to see again.
    pub cut_is_unfinished: bool,
    /// No name and no hold is left, and somebody is freeing it or has.
    pub dead: bool,
    owed: Owed,
}

/// What a change means for `fdatasync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Needed to read the data back: size, blocks.
    Data,
    /// Times, owners, links.
    Attributes,
}

impl Inode {
    /// An inode from its slot.
    pub(crate) fn new(
        store: &Store,
        number: InodeNumber,
        slot: Slot,
        file_type: FileType,
        place: SlotPlace,
    ) -> Self {
        let class = if file_type == FileType::Directory {
            Class::Directory
        } else {
            Class::Inode
        };
        let state = State {
            slot,
            orphan: None,
            idle_slot: None,
            sync_tid: None,
            datasync_tid: None,
            last_tid: None,
            cut_tid: None,
            tail_is_zero: false,
            tail_is_listed: false,
            cut_is_unfinished: false,
            dead: false,
            owed: Owed::default(),
        };
        Self {
            number,
            file_type,
            home: place.block,
            offset: place.offset,
            host: table::host_of(number, place, store.geometry.inode_size),
            checksum_seed: store.metadata_csum.then_some(store.checksum_seed),
            block_size: store.block_size(),
            lock: BiasedLock::new(class, ()),
            leaves: OnceLock::new(),
            map: BiasedLock::new(Class::InodeMap, Map::default()),
            glance: Glance::of(&state),
            state: Mutex::new(Class::InodeState, state),
            referenced: AtomicBool::new(true),
        }
    }

    /// The inode's number.
    #[must_use]
    pub fn number(&self) -> InodeNumber {
        self.number
    }

    /// Its kind, which never changes.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.file_type
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// The locks of a directory's leaves.
    pub(crate) fn leaves(&self) -> &Leaves {
        self.leaves.get_or_init(Box::default)
    }

    /// Looks at the state.
    pub fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.state.lock())
    }

    /// Changes what is not journalled (hints, marks) in the state.
    pub fn note<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.glance.note(&state);
        result
    }

    /// Changes the slot within a handle (one credit at most, the first time in a transaction).
    pub fn edit<R>(
        &self,
        handle: &mut Handle<'_>,
        reach: Reach,
        change: impl FnOnce(&mut State) -> R,
    ) -> R {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.touch(handle, state);
        let tid = handle.tid();
        state.last_tid = Some(tid);
        state.sync_tid = Some(tid);
        if reach == Reach::Data {
            state.datasync_tid = Some(tid);
        }
        let result = change(state);
        // What is told now is what is read back later.
        state.slot.clamp_times();
        self.glance.note(state);
        result
    }

    /// Lets the state owe its bytes to the handle's transaction.
    fn touch(&self, handle: &mut Handle<'_>, state: &mut State) {
        self.fold_names(state);
        handle.touch_part(&mut state.owed, self.host, |captures| {
            captures.push(self.capture_of(&state.slot));
        });
        self.fold_names(state);
    }

    /// Notes that names of this directory were changed at `time`. Of all that happen in one transaction
    /// one touches it, and within one tick of the clock the others write nothing.
    pub(crate) fn note_names_changed(&self, handle: &mut Handle<'_>, time: Time) {
        let names = &self.glance.names;
        let is_elected = names.claim(handle.tid());
        names.note(handle.tid(), self.glance.clamp_time(time));
        if is_elected {
            self.edit(handle, Reach::Attributes, |_| ());
        }
    }

    /// Lets the state say the time that changes of names have set in the transaction that it is owed to.
    /// It must be neither changed nor captured before.
    fn fold_names(&self, state: &mut State) {
        let names = &self.glance.names;
        let owed_to = state.owed.to().filter(|_| self.is_directory());
        let Some(tid) = owed_to.filter(|&tid| names.has(tid)) else {
            return;
        };
        self.glance.expire_attributes();
        if let Some(time) = names.take(tid) {
            state.slot.modified = time;
            state.slot.changed = time;
        }
    }

    /// Hands the debt of a dead inode to the transaction it belongs to, so that a new life of the
    /// same number can begin: an older version is captured, a version of this handle's own
    /// transaction is dropped because the new life's replaces it.
    pub(crate) fn bury(&self, handle: &mut Handle<'_>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.fold_names(state);
        handle.retire(&mut state.owed, |captures| {
            captures.push(self.capture_of(&state.slot));
        });
        // Whoever still remembers this life looks again.
        state.dead = true;
        self.glance.note(state);
    }

    /// What `stat` tells.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let published = self.glance.attributes(self.number, self.file_type);
        published.unwrap_or_else(|| {
            self.state(|state| {
                let attributes = self.attributes_of(&state.slot);
                self.glance.show_attributes(attributes)
            })
        })
    }

    /// The root of the map, or whatever else `i_block` holds.
    pub(crate) fn root(&self) -> [u8; 60] {
        let published = self.glance.root();
        published.unwrap_or_else(|| self.state(|state| self.glance.show_root(state)))
    }

    /// The last transaction that a sync which reaches so far must wait for.
    pub(crate) fn sync_tid(&self, reach: Reach) -> Option<Tid> {
        let due = self.state(|state| match reach {
            Reach::Data => state.datasync_tid,
            Reach::Attributes => state.sync_tid,
        });
        let names = self.glance.names.claimed();
        let is_later = |&names: &Tid| due.is_none_or(|due| names.is_after(due));
        let names = names.filter(|_| reach == Reach::Attributes);
        names.filter(is_later).or(due)
    }

    fn attributes_of(&self, slot: &Slot) -> Attributes {
        Attributes {
            inode: self.number,
            generation: slot.generation,
            file_type: self.file_type,
            mode: slot.mode,
            uid: slot.uid,
            gid: slot.gid,
            size: slot.size,
            sectors: slot.sectors(self.block_size) + self.inline_sectors(slot),
            links: u32::from(slot.links),
            device: self.device_of(slot),
            accessed: slot.accessed,
            modified: slot.modified,
            changed: slot.changed,
            created: slot.created,
            flags: slot.flags.bits() & InodeFlags::USER_VISIBLE.bits(),
        }
    }

    /// What `stat` tells of a file in its inode beside its blocks, as Linux does: who is told of
    /// none would take it for one hole.
    fn inline_sectors(&self, slot: &Slot) -> u64 {
        if slot.has_inline_data() && self.file_type == FileType::Regular {
            slot.size.div_ceil(512)
        } else {
            0
        }
    }

    fn device_of(&self, slot: &Slot) -> DeviceNumber {
        match self.file_type {
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) = slot.device();
                DeviceNumber { major, minor }
            }
            _ => DeviceNumber::default(),
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.glance.size()
    }

    /// Its flags.
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.glance.flags())
    }

    /// Its mode, and the group that belongs to it.
    pub(crate) fn mode_and_group(&self) -> (u16, u32) {
        self.glance.mode_and_group()
    }

    /// Names that lead here, as the slot counts them.
    pub(crate) fn links(&self) -> u32 {
        self.glance.links()
    }

    /// Its generation.
    pub(crate) fn generation(&self) -> u32 {
        self.glance.generation()
    }

    /// Whether somebody is freeing it, or has.
    pub(crate) fn is_dead(&self) -> bool {
        self.glance.dead()
    }

    /// Keeps it from the next round of eviction; writes only when that is news.
    pub(crate) fn mark_used(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last round; forgets it.
    pub(crate) fn take_used(&self) -> bool {
        self.referenced.load(Ordering::Relaxed) && self.referenced.swap(false, Ordering::Relaxed)
    }

    /// Claims the reaping of an inode without names and holds. True once.
    ///
    /// Whoever takes the last link does so under the state lock and then looks at the holds;
    /// whoever gives the last hold back looks at the links under the state lock afterwards. So one
    /// of the two sees both gone.
    pub(crate) fn claim_reaping(&self, holds: &Holds) -> bool {
        let mut state = self.state.lock();
        let due = state.slot.links == 0 && !state.dead && holds.is_free(self.number);
        state.dead |= due;
        self.glance.note(&state);
        due
    }

    /// The slot as transaction `tid` is owed it, if it still is.
    fn capture(&self, tid: Tid) -> Option<Capture> {
        let slot = {
            let mut state = self.state.lock();
            self.fold_names(&mut state);
            if !state.owed.clear(tid) {
                return None;
            }
            state.slot.clone()
        };
        Some(self.capture_of(&slot))
    }

    fn capture_of(&self, slot: &Slot) -> Capture {
        let mut bytes = vec![0; slot.slot_size()].into_boxed_slice();
        slot.encode(&mut bytes, self.number, self.checksum_seed);
        Capture::Piece {
            block: self.home,
            offset: self.offset,
            bytes,
        }
    }
}

/// Where a slot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// The block of the inode table.
    pub block: BlockNumber,
    /// The byte in it.
    pub offset: u32,
}

/// The present, as inodes store it.
#[must_use]
pub fn present() -> Time {
    let (seconds, nanoseconds) = now();
    Time {
        seconds,
        nanoseconds,
    }
}
