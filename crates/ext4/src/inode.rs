//! Inodes in memory.
//!
//! Life cycle: the table *loads* an inode when somebody names its number, or *inserts* it when it
//! is created. Callers *hold* it (a count, like FUSE's lookup count), and operations work on an
//! `Arc<Inode>`. When the last name and the last hold are gone it is *reaped*: its blocks and its
//! number are freed, and the object stays in the table as *dead* until the last transaction that
//! changed it is durable, because until then it may still owe its slot's bytes. If the number is
//! allocated again before that, the old object hands its debt to its transaction first
//! ([`Inode::retire`]).
//!
//! Locks, from outer to inner:
//!
//! - `lock` [Directory or Inode] serialises operations: it guards what a reader of the file or
//!   directory can see. Taken before a handle is started.
//! - `map` (`InodeMap`) is held while the map of blocks changes, and guards the preallocation. The
//!   map changes only under `lock`, held exclusively, so readers under `lock` need no more.
//! - `state` (`InodeState`) guards the decoded slot. The committer takes it, so nothing sleeps
//!   while holding it. The fields that are read most often can be read without it
//!   (`published_fields.rs`).

mod account;
pub mod allocate;
mod clusters;
pub mod data;
pub mod extents;
pub mod filling;
pub mod holds;
mod indirect;
mod inline;
pub mod inodes;
pub(crate) mod map_format;
pub mod mapping;
mod name_changes;
pub mod name_orders;
mod nodes;
mod orphans;
mod published_fields;
pub(crate) mod shared_blocks;
mod slots;
mod state;
pub mod table;
pub mod tails;
pub mod truncate;
pub mod values;
mod walk_limit;
mod zeroes;

use std::sync::Arc;

use pext4_jbd2::{Capture, Handle};
use pext4_ondisk::checksum::InodeSeed;
use pext4_ondisk::extent::{self, Extent, ROOT_SIZE};
use pext4_ondisk::inode::{Inode as Slot, InodeFlags, set_checksum};
use pext4_ondisk::time::Time;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber, Tid};
use pext4_sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use pext4_sync::order::Class;
use pext4_sync::{BiasedLock, Mutex};

use crate::inode::account::Account;
use crate::inode::holds::Holds;
use crate::inode::name_changes::times_after;
use crate::inode::published_fields::{Marks, PublishedFields};
use crate::mballoc::Preallocation;
use crate::store::Store;
use crate::types::{Attributes, DeviceNumber, FileType};

pub(crate) use crate::inode::account::{key_of, owner_of};
pub(crate) use crate::inode::nodes::Runs;
pub use crate::inode::state::{Reach, State};

/// The root of a file's map, which lies in its inode.
pub(crate) type Root = [u8; ROOT_SIZE];

/// An inode in memory.
pub struct Inode {
    number: InodeNumber,
    file_type: FileType,
    home: BlockNumber,
    offset: u32,
    /// The number by which the journal knows the block; see [`table::capture_block`].
    host: u64,
    checksum_seed: Option<u32>,
    block_size: u32,
    /// Serialises operations; see the head of the file.
    pub lock: BiasedLock<()>,
    /// What belongs to the map; see the head of the file.
    pub map: Mutex<Map>,
    state: Mutex<State>,
    /// [atomic; written under state]
    published: PublishedFields,
    referenced: AtomicBool,
    /// The mark of the orders of its names that are right, or 0. [atomic; `name_orders` says when
    /// it changes]
    name_order: AtomicU32,
    /// What is known of the map of a directory; see `shared_blocks`. [atomic; set under `lock`]
    map_is: AtomicU8,
    /// Whether `map` has a preallocation. [atomic; changes under `map`]
    has_preallocation: AtomicBool,
}

/// What the map lock guards besides the tree itself.
#[derive(Default)]
pub struct Map {
    /// Blocks preallocated for the file's growth.
    pub preallocation: Option<Arc<Preallocation>>,
    /// The group of the last large run, if each file has its own stream goal.
    pub stream_goal: Option<GroupNumber>,
}

impl Inode {
    /// An inode from its slot.
    pub(crate) fn new(
        store: &Store,
        number: InodeNumber,
        slot: Slot,
        file_type: FileType,
        place: SlotPlace,
        account: Option<Box<Account>>,
    ) -> Self {
        let class = if file_type == FileType::Directory {
            Class::Directory
        } else {
            Class::Inode
        };
        let state = State::new(slot, account);
        Self {
            number,
            file_type,
            home: place.block,
            offset: place.offset,
            host: table::host_of(number, place, store.geometry.inode_size),
            checksum_seed: store.geometry.checksum_seed(),
            block_size: store.block_size(),
            lock: BiasedLock::new(class, ()),
            map: Mutex::new(Class::InodeMap, Map::default()),
            published: PublishedFields::new(&state),
            state: Mutex::new(Class::InodeState, state),
            referenced: AtomicBool::new(true),
            name_order: AtomicU32::new(0),
            map_is: AtomicU8::new(shared_blocks::map_is::UNCHECKED),
            has_preallocation: AtomicBool::new(false),
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

    /// Calls `look` with the state, under its lock.
    pub fn state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.state.lock())
    }

    /// Changes the part of the state that is not journalled (hints, marks).
    pub fn note<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.published.update(&state);
        result
    }

    /// Changes the slot within a handle (one credit at most, the first time in a transaction).
    pub fn edit<R>(
        &self,
        handle: &mut Handle<'_>,
        reach: Reach,
        change: impl FnOnce(&mut State) -> R,
    ) -> R {
        self.edit_locked(handle, &mut self.state.lock(), reach, change)
    }

    /// As [`Inode::edit`], if `may` agrees. Otherwise the inode is not even touched: it may be one
    /// that has ended and that another has replaced in the table, which must not owe its bytes.
    pub(crate) fn edit_if<R>(
        &self,
        handle: &mut Handle<'_>,
        reach: Reach,
        may: impl FnOnce(&State) -> bool,
        change: impl FnOnce(&mut State) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        may(&state).then(|| self.edit_locked(handle, &mut state, reach, change))
    }

    fn edit_locked<R>(
        &self,
        handle: &mut Handle<'_>,
        state: &mut State,
        reach: Reach,
        change: impl FnOnce(&mut State) -> R,
    ) -> R {
        self.touch(handle, state);
        state.note_change(handle.tid(), reach);
        let result = change(state);
        // Clamped now, so that readers see the same times before and after the inode leaves memory.
        state.slot.clamp_times();
        if let Some(account) = &mut state.account {
            account.settle(handle, &state.slot);
        }
        self.published.update(state);
        result
    }

    /// Makes the state owe its bytes to the handle's transaction.
    fn touch(&self, handle: &mut Handle<'_>, state: &mut State) {
        self.fold_names(state);
        handle.touch_part(&mut state.owed, self.host, |captures| {
            self.capture_slot(&state.slot, captures);
        });
        self.fold_names(state);
    }

    /// Notes that names of this directory were changed at `time`. In each transaction one of the
    /// callers touches the inode; within one tick of the clock the others write nothing.
    pub(crate) fn note_names_changed(&self, handle: &mut Handle<'_>, time: Time) {
        if pext4_sync::time::is_frozen() {
            // Whoever holds the clock wants its time, though the directory may have a later one.
            return self.edit(handle, Reach::Attributes, |state| {
                (state.slot.modified, state.slot.changed) = (time, time);
            });
        }
        let names = &self.published.names;
        let is_elected = names.claim(handle.tid());
        names.note(handle.tid(), self.published.clamp_time(time));
        if is_elected {
            self.edit(handle, Reach::Attributes, |_| ());
        }
    }

    /// Folds the time that changes of names have set, in the transaction to which the state is
    /// owed, into the state. Must run before the state is changed or captured.
    fn fold_names(&self, state: &mut State) {
        let names = &self.published.names;
        let owed_to = state.owed.to().filter(|_| self.is_directory());
        let Some(tid) = owed_to.filter(|&tid| names.has(tid)) else {
            return;
        };
        self.published.expire_attributes();
        if let Some(time) = names.take(tid) {
            let slot = &mut state.slot;
            (slot.modified, slot.changed) = times_after(time, (slot.modified, slot.changed));
        }
    }

    /// Hands the debt of a dead inode to the transaction to which it is owed, so that a new inode
    /// can use the number: a version owed to an older transaction is captured; a version owed to
    /// this handle's own transaction is dropped, because the new inode's version replaces it.
    pub(crate) fn retire(&self, handle: &mut Handle<'_>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.fold_names(state);
        handle.retire(&mut state.owed, |captures| {
            self.capture_slot(&state.slot, captures);
        });
        // A core that still remembers this object looks the number up again.
        state.dead = true;
        self.published.update(state);
    }

    /// The attributes, as `stat` returns them.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let published = self.published.attributes(self.number, self.file_type);
        published.unwrap_or_else(|| {
            self.state(|state| {
                let attributes = self.attributes_of(&state.slot);
                self.published.publish_attributes(attributes)
            })
        })
    }

    /// Whether blocks are preallocated for the file's growth. For a caller that holds neither
    /// `lock` nor `map` this may change at any time.
    pub(crate) fn may_have_preallocation(&self) -> bool {
        self.has_preallocation.load(Ordering::Acquire)
    }

    /// Publishes whether blocks are preallocated, after a change of that.
    pub(crate) fn note_preallocation(&self, map: &Map) {
        let has_one = map.preallocation.is_some();
        if self.has_preallocation.load(Ordering::Relaxed) != has_one {
            self.has_preallocation.store(has_one, Ordering::Release);
        }
    }

    /// The content of `i_block`: the root of the map, or whatever else the inode stores there.
    pub(crate) fn root(&self) -> Root {
        let published = self.published.root();
        published.unwrap_or_else(|| self.state(|state| self.published.publish_root(state)))
    }

    /// An extent of the map that needs no look at the root.
    pub(crate) fn known_extent(&self) -> Option<Extent> {
        self.published.extent()
    }

    /// Remembers an extent for [`Self::known_extent`], if it is a written one of a root that does
    /// not change often and has it itself. The caller has read it from `root` under a lock that
    /// keeps the map from changing, which it still holds.
    pub(crate) fn remember_extent(&self, root: &Root, extent: &Extent) {
        if self.published.extent().is_some() || extent.unwritten {
            return;
        }
        let is_stable = self.published.root().is_some();
        let has_extents = self.flags().contains(InodeFlags::EXTENTS);
        if is_stable && has_extents && is_leaf_root(root) {
            self.state(|_| self.published.publish_extent(extent));
        }
    }

    /// The last transaction that a sync of this reach must wait for.
    pub(crate) fn sync_tid(&self, reach: Reach) -> Option<Tid> {
        let due = self.state(|state| match reach {
            Reach::Data => state.datasync_tid,
            Reach::Attributes => state.sync_tid,
        });
        let names = self.published.names.claimed();
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
            project: slot.project,
        }
    }

    /// Sectors that `stat` adds for content stored in the inode, as Linux does: a reader that sees
    /// a size but no sectors would take the file for one hole.
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
        self.published.size()
    }

    /// Its flags.
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.published.flags())
    }

    /// Whether its content is protected by hashes, which lie in its blocks beyond its end.
    pub(crate) fn has_verity(&self) -> bool {
        self.flags().contains(InodeFlags::VERITY)
    }

    /// Its mode and group, read together.
    pub(crate) fn mode_and_group(&self) -> (u16, u32) {
        self.published.mode_and_group()
    }

    /// Its owner.
    pub(crate) fn owner(&self) -> u32 {
        self.published.owner()
    }

    /// The link count of the slot.
    pub(crate) fn links(&self) -> u32 {
        self.published.links()
    }

    /// Its generation.
    pub(crate) fn generation(&self) -> u32 {
        self.published.generation()
    }

    /// Whether a thread is freeing the inode or has freed it.
    pub(crate) fn is_dead(&self) -> bool {
        self.published.has(Marks::DEAD)
    }

    /// Whether it is recorded as an orphan.
    pub(crate) fn is_orphan(&self) -> bool {
        self.published.has(Marks::IS_ORPHAN)
    }

    /// See [`State::truncate_is_unfinished`].
    pub(crate) fn truncate_is_unfinished(&self) -> bool {
        self.published.has(Marks::TRUNCATE_IS_UNFINISHED)
    }

    /// See [`State::tail_is_zero`].
    pub(crate) fn tail_is_zero(&self) -> bool {
        self.published.has(Marks::TAIL_IS_ZERO)
    }

    /// Whether the inode maps blocks at all: short links and special files use `i_block` for other
    /// purposes, and an empty map counts as none.
    pub(crate) fn maps_blocks(&self) -> bool {
        self.published.has(Marks::MAPS_BLOCKS)
    }

    /// The block of its attributes; 0 is none.
    pub(crate) fn attribute_block(&self) -> BlockNumber {
        self.published.attribute_block()
    }

    /// Protects the inode from the next round of eviction; writes only if the mark is not set.
    pub(crate) fn mark_used(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since the last round of eviction; clears the mark.
    pub(crate) fn take_used(&self) -> bool {
        self.referenced.load(Ordering::Relaxed) && self.referenced.swap(false, Ordering::Relaxed)
    }

    /// Claims the right to reap an inode without names and holds. Returns true once.
    ///
    /// A thread that removes the last link does so under the state lock and then checks the holds.
    /// A thread that gives back the last hold checks the links under the state lock afterwards. So
    /// one of the two sees that both are gone.
    pub(crate) fn claim_reaping(&self, holds: &Holds) -> bool {
        let mut state = self.state.lock();
        let due = state.slot.links == 0 && !state.dead && holds.is_free(self.number);
        if due {
            state.dead = true;
            self.published.update(&state);
        }
        due
    }

    /// Appends the version of the slot that is owed to transaction `tid`, if it still is.
    fn capture(&self, tid: Tid, captures: &mut Vec<Capture>) {
        let mut state = self.state.lock();
        self.fold_names(&mut state);
        if !state.owed.clear(tid) {
            return;
        }
        let length = state.slot.slot_size();
        Capture::push_piece(captures, (self.home, self.offset), length, |bytes| {
            let slot = &state.slot;
            slot.encode(bytes, self.number, None);
            let (extra, generation) = (slot.extra_isize, slot.generation);
            // Whoever waits for the state needs no checksum.
            drop(state);
            if let Some(seed) = self.checksum_seed {
                let seed = InodeSeed::new(seed, self.number, generation);
                set_checksum(bytes, extra, seed);
            }
        });
    }

    /// Appends the version of this slot.
    fn capture_slot(&self, slot: &Slot, captures: &mut Vec<Capture>) {
        let length = slot.slot_size();
        Capture::push_piece(captures, (self.home, self.offset), length, |bytes| {
            slot.encode(bytes, self.number, self.checksum_seed);
        });
    }
}

/// Whether extents, and not nodes, are in the root of a tree.
fn is_leaf_root(root: &Root) -> bool {
    extent::Node::parse(root).is_ok_and(|node| node.depth() == 0)
}

/// Where a slot is located on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// The block of the inode table.
    pub block: BlockNumber,
    /// The offset in that block in bytes.
    pub offset: u32,
}
