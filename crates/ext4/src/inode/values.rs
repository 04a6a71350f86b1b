//! Inodes that contain values of attributes (`ea_inode`).
//!
//! Life cycle: such an inode is created without a name and without references, as an orphan that a
//! crash frees. When its content is on the device it becomes a *value inode*: one transaction sets
//! its flag and the hash of its content, a first reference and a link. Each attribute entry that
//! refers to it counts as one reference, however many inodes share the block of the entry. Dropping
//! the last reference clears the flag and the link in the transaction that removes the entry. Then
//! the inode is an orphan again, like any other unnamed file, and the thread that dropped the
//! reference reaps it when it holds no lock.
//!
//! Locking: the content does not change while there is a reference, so a thread that holds the lock
//! of an owner reads it without the value inode's lock. References are counted under the lock of
//! the state.

use std::collections::HashMap;
use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::{Corrupt, InodeNumber, xattr};
use pext4_sync::order::Class;
use pext4_sync::{Map, ShardRef, Stack};

use crate::error::{Error, Refusal, Result};
use crate::inode::inodes::Inodes;
use crate::inode::{Inode, Reach, State};
use crate::types::FileType;

/// Maximum length of a value in bytes, as system calls allow it.
pub const MAX_VALUE: usize = 65536;
/// Metadata blocks that adding or dropping one reference may dirty: the inode, its orphan entry.
pub const CREDITS: u32 = 4;
/// Maximum number of values that are remembered for sharing.
const MAX_REMEMBERED: usize = 4096;
const STRUCTURE: &str = "inode of an attribute's value";

/// What a volume remembers of its values.
pub struct Values {
    /// By hash of a value, the inode that had it last. A hint: the inode may have been freed.
    seen: Map<u32, InodeNumber>,
    /// Inodes without references that must be reaped.
    to_reap: Stack<Arc<Inode>>,
}

impl Values {
    /// Nothing remembered.
    pub(crate) fn new() -> Self {
        Self {
            seen: Map::new(Class::Leaf),
            to_reap: Stack::new(),
        }
    }

    /// Remembers the inode of a value with this hash. A shard that is full is cleared first.
    pub(crate) fn remember(&self, hash: u32, number: InodeNumber) {
        let shard = self.seen.shard_of(&hash);
        if self.seen.shard_len(shard) >= MAX_REMEMBERED.div_ceil(self.seen.shard_count()) {
            self.seen.retain_shard(shard, |_, _| false);
        }
        self.seen.insert(hash, number);
    }

    /// The inode that may contain a value with this hash.
    pub(crate) fn recall(&self, hash: u32) -> Option<InodeNumber> {
        self.seen.get(&hash)
    }

    /// Queues an inode without name and references for [`Self::take_deferred`], to be reaped by a
    /// thread that holds no lock.
    pub(crate) fn defer_reaping(&self, inode: Arc<Inode>) {
        self.to_reap.push(inode);
    }

    /// Removes and returns the queued inodes. Only a read if there are none, as after almost every
    /// operation.
    pub(crate) fn take_deferred(&self) -> Option<impl Iterator<Item = Arc<Inode>> + use<>> {
        (!self.to_reap.is_empty()).then(|| self.to_reap.take_all())
    }
}

impl Inodes {
    /// Whether the volume has the feature `ea_inode`.
    pub(crate) fn has_values(&self) -> bool {
        let features = &self.store.features;
        features.has_incompat(Incompat::EA_INODE)
    }

    /// The value inode to which an attribute's entry refers.
    ///
    /// # Errors
    ///
    /// `Corrupt` if it is none, `Io`.
    pub(crate) fn value_inode(&self, number: InodeNumber) -> Result<ShardRef<Inode>> {
        let bad = |problem: &'static str| -> Error {
            Corrupt::new(STRUCTURE, problem).in_inode(number).into()
        };
        if !self.has_values() {
            return Err(bad("the file system does not have that feature"));
        }
        if number < self.store.geometry.first_inode || self.store.is_system_inode(number) {
            return Err(bad("is reserved"));
        }
        let inode = self.get(number).map_err(|error| {
            if error.is(Refusal::Stale) {
                bad("is not in use")
            } else {
                error
            }
        })?;
        let is_value = inode.file_type() == FileType::Regular
            && inode.flags().contains(InodeFlags::EA_INODE)
            && inode.links() > 0;
        if is_value {
            Ok(inode)
        } else {
            Err(bad("holds no value"))
        }
    }

    /// The value in an inode, of `size` bytes, and its hash.
    ///
    /// # Errors
    ///
    /// `Corrupt` if inode, size or hash do not match the entry, `Refused(TooBig)` for a value that
    /// no system call can return, `Io`.
    pub(crate) fn read_value(&self, number: InodeNumber, size: u32) -> Result<(Vec<u8>, u32)> {
        let inode = self.value_inode(number)?;
        self.read_value_of(&inode, size)
    }

    /// As [`Inodes::read_value`]. The caller holds the inode's lock, or something that refers to it
    /// keeps it from being freed.
    pub(crate) fn read_value_of(&self, inode: &Arc<Inode>, size: u32) -> Result<(Vec<u8>, u32)> {
        let number = inode.number();
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        if length > MAX_VALUE {
            return Err(Refusal::TooBig.into());
        }
        if inode.size() != u64::from(size) {
            let problem = format!("holds {} bytes, not {size}", inode.size());
            return Err(Corrupt::new(STRUCTURE, problem).in_inode(number).into());
        }
        let mut value = vec![0; length];
        self.read_data(inode, 0, &mut value)?;
        let stored = inode.state(|state| state.slot.value_hash());
        let computed = xattr::value_hash(self.store.geometry.value_seed, &value);
        if stored != computed {
            let problem = format!("hash is {stored:#010X}, should be {computed:#010X}");
            return Err(Corrupt::new(STRUCTURE, problem).in_inode(number).into());
        }
        Ok((value, computed))
    }

    /// Turns an orphan that has its content into a value inode with one reference.
    ///
    /// # Errors
    ///
    /// Those of the orphans.
    pub(crate) fn make_value_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
        hash: u32,
    ) -> Result<()> {
        inode.edit(handle, Reach::Data, |state| {
            let slot = &mut state.slot;
            slot.flags &= InodeFlags::EXTENTS | InodeFlags::HUGE_FILE;
            slot.flags |= InodeFlags::EA_INODE;
            slot.links = 1;
            slot.set_value_references(1);
            slot.set_value_hash(hash);
        });
        self.remove_orphan(handle, inode)
    }

    /// The value inodes of these numbers, read and kept in memory.
    ///
    /// # Errors
    ///
    /// `Corrupt` if one is no value inode or has no reference, `Io`.
    pub(crate) fn hold_values(
        &self,
        numbers: impl Iterator<Item = InodeNumber>,
    ) -> Result<Vec<Arc<Inode>>> {
        numbers
            .map(|number| {
                let inode = self.value_inode(number)?.into_own();
                if inode.state(|state| state.slot.value_references()) == 0 {
                    return Err(too_few(number));
                }
                Ok(inode)
            })
            .collect()
    }

    /// Fails unless one reference can be dropped for each of these numbers, of which some may be
    /// equal.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub(crate) fn check_references(
        &self,
        numbers: impl Iterator<Item = InodeNumber>,
    ) -> Result<()> {
        let mut needed: HashMap<InodeNumber, u64> = HashMap::new();
        for number in numbers {
            *needed.entry(number).or_default() += 1;
        }
        for (number, needed) in needed {
            let inode = self.value_inode(number)?;
            if inode.state(|state| state.slot.value_references()) < needed {
                return Err(too_few(number));
            }
        }
        Ok(())
    }

    /// Adds one reference; false if the last one was dropped already.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub(crate) fn add_value_reference(
        &self,
        handle: &mut Handle<'_>,
        number: InodeNumber,
    ) -> Result<bool> {
        let inode = self.value_inode(number)?;
        Ok(self.try_add_value_reference(handle, &inode))
    }

    /// As [`Inodes::add_value_reference`], for an inode that was a value inode when it was found
    /// and may have been freed since.
    pub(crate) fn try_add_value_reference(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
    ) -> bool {
        let lives = |state: &State| !state.dead && state.slot.links > 0;
        let added = inode.edit_if(handle, Reach::Attributes, lives, |state| {
            let more = state.slot.value_references().checked_add(1);
            more.map(|count| state.slot.set_value_references(count))
        });
        added.flatten().is_some()
    }

    /// Drops one reference of `owner`. Without references the inode becomes an orphan, which is
    /// reaped later. Until then it is charged like any orphan, to the owners of `owner`: those that
    /// it had may have no entries in the quota files any more.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Io`.
    pub(crate) fn drop_value_reference(
        &self,
        handle: &mut Handle<'_>,
        owner: &Inode,
        number: InodeNumber,
    ) -> Result<()> {
        let inode = match self.value_inode(number) {
            Err(error @ Error::Corrupt(_)) => return self.leave_value(error),
            inode => inode?.into_own(),
        };
        // Its lock cannot be taken here, as that of an inode that loses its last name is: a hold
        // keeps others from reaping it before it is an orphan.
        self.hold_number(number);
        let dropped = self.drop_held_reference(handle, owner, &inode);
        self.release(number, 1);
        self.end_drop(inode, dropped?)
    }

    /// Ends [`Inodes::drop_value_reference`], which dropped a reference, or found none to drop, and
    /// gave its hold back. Has the inode reaped if nothing refers to it, whoever dropped the last
    /// reference: while it was held here, nobody could reap it.
    fn end_drop(&self, inode: Arc<Inode>, has_dropped: bool) -> Result<()> {
        let number = inode.number();
        if inode.state(|state| state.slot.links == 0) {
            self.values.defer_reaping(inode);
        }
        match has_dropped {
            true => Ok(()),
            false => self.leave_value(too_few(number)),
        }
    }

    /// Drops one reference of a value inode, and makes it an orphan if that was the last. False if
    /// the inode counts none.
    fn drop_held_reference(
        &self,
        handle: &mut Handle<'_>,
        owner: &Inode,
        inode: &Arc<Inode>,
    ) -> Result<bool> {
        let attributes = owner.attributes();
        let has_ended = inode.edit(handle, Reach::Attributes, |state| {
            let slot = &mut state.slot;
            // If the count is too low, the inode is kept rather than freed under its other users.
            let left = slot.value_references().checked_sub(1)?;
            slot.set_value_references(left);
            if left == 0 {
                slot.links = 0;
                slot.flags.remove(InodeFlags::EA_INODE);
                (slot.uid, slot.gid) = (attributes.uid, attributes.gid);
                slot.project = attributes.project;
            }
            Some(left == 0)
        });
        if has_ended == Some(true) {
            self.add_orphan(handle, inode)?;
        }
        Ok(has_ended.is_some())
    }

    /// Notes the damage of a value, which is left as it is. The entry that named it may be gone
    /// already, so this must not stop the operation half way; the error policy may stop the
    /// journal.
    fn leave_value(&self, error: Error) -> Result<()> {
        self.store.apply_error_policy(error);
        match self.store.journal().failure() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }
}

fn too_few(number: InodeNumber) -> Error {
    Corrupt::new(STRUCTURE, "counts fewer references than it has")
        .in_inode(number)
        .into()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::{CREDITS, InodeFlags, InodeNumber, MAX_REMEMBERED, Values};
    use crate::groups::testing::image;
    use crate::{CreateAttributes, MountOptions, SetXattrMode, Volume};

    /// Two threads drop the two references of a value. The second one is done before the first one
    /// gives its hold back.
    #[test]
    fn a_value_that_is_held_when_its_last_reference_goes_is_reaped_by_who_held_it() {
        let Some(device) = image(&["-O", "ea_inode"], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let [first, second] = [b"first-", b"second"].map(|name| {
            let new = CreateAttributes::default();
            let file = volume.create(InodeNumber::ROOT, name, &new);
            let file = file.expect("room").inode;
            let set = volume.set_xattr(file, b"user.a", &[7; 5000], SetXattrMode::Any);
            set.expect("room");
            file
        });
        let inodes = &volume.inodes;
        let mut value = None;
        inodes.for_each(|inode| {
            if inode.flags().contains(InodeFlags::EA_INODE) {
                value = Some(Arc::clone(inode));
            }
        });
        let value = value.expect("the value has an inode");
        assert_eq!(value.state(|state| state.slot.value_references()), 2);

        inodes.hold_number(value.number());
        let owner = inodes.get(first).expect("it is held");
        let mut handle = inodes.store.start(CREDITS).expect("a journal that runs");
        let dropped = inodes.drop_held_reference(&mut handle, &owner, &value);
        let dropped = dropped.expect("it is no orphan");
        drop(handle);
        volume.remove_xattr(second, b"user.a").expect("it is there");
        assert!(!value.is_dead(), "it is held");
        inodes.release(value.number(), 1);
        let ended = inodes.end_drop(Arc::clone(&value), dropped);
        ended.expect("it counted a reference");
        // As the end of the first operation; nothing else is due to be reaped.
        let set = volume.set_xattr(second, b"user.b", b"short", SetXattrMode::Any);
        set.expect("room");
        assert!(value.is_dead(), "somebody ends it");
        assert!(inodes.orphans.snapshot().is_empty());
    }

    #[test]
    fn the_memory_of_values_is_bounded_and_keeps_the_last() {
        let values = Values::new();
        let many = u32::try_from(3 * MAX_REMEMBERED).expect("a small number");
        for hash in 0..many {
            values.remember(hash, InodeNumber(hash + 12));
            assert_eq!(values.recall(hash), Some(InodeNumber(hash + 12)));
        }
        let kept = (0..many).filter(|&hash| values.recall(hash).is_some());
        assert!(kept.count() <= 2 * MAX_REMEMBERED);
    }
}
