//! Attributes whose value is stored in an inode of its own (`ea_inode`), because it fits neither
//! into the inode of the file nor into a block.
//!
//! The value is first written to an unnamed file, in transactions of its own. The transaction that
//! sets the attribute then turns that file into a value inode. If the volume remembers an inode
//! that contains the same value already, the attribute shares it. Either is a [`ReadyValue`] until
//! then.

use std::sync::Arc;

use pext4_jbd2::Handle;
use pext4_ondisk::xattr as codec;

use super::INODE_CREDITS;
use super::attributes::set_permissions;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, values};
use crate::types::{CreateAttributes, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

/// Metadata blocks that making an attribute refer to a ready value may dirty, in addition to those
/// of the change of the attribute.
pub(super) const READY_CREDITS: u32 = 2 * values::CREDITS;

/// An inode that contains the value of an attribute whose entry does not refer to it yet.
pub(super) struct ReadyValue {
    inode: Arc<Inode>,
    origin: Origin,
    place: xattr::ValuePlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A new unnamed file with that content, held once; no other thread knows it.
    Fresh,
    /// An inode that other attributes share.
    Shared,
}

impl ReadyValue {
    fn new(inode: Arc<Inode>, origin: Origin, value: &[u8], hash: u32) -> Result<Self> {
        let place = xattr::ValuePlace {
            number: inode.number(),
            size: u32::try_from(value.len()).map_err(|_| Refusal::TooBig)?,
            hash,
        };
        Ok(Self {
            inode,
            origin,
            place,
        })
    }

    /// Whether it is a shared inode that has lost its last reference, and so no value any more.
    pub fn has_ended(&self) -> bool {
        self.origin == Origin::Shared && (self.inode.is_dead() || self.inode.links() == 0)
    }
}

impl Volume {
    /// Sets an attribute to a value in an inode of its own, and the permissions if given. The
    /// caller holds the lock of `owner`; after releasing it, it calls [`Volume::reap_values`].
    pub(super) fn set_large_xattr(
        &self,
        owner: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
        permissions: Option<u16>,
    ) -> Result<()> {
        let hash = self.hash_of_value(value);
        if let Some(shared) = self.find_value(hash, value)
            && self.enter_value(owner, name, &shared, mode, permissions)?
        {
            return Ok(());
        }
        let attributes = owner.attributes();
        let owners = CreateAttributes {
            uid: attributes.uid,
            gid: attributes.gid,
            ..CreateAttributes::default()
        };
        let fresh = self.make_value(owner, &owners, value, hash)?;
        let entered = self.enter_value(owner, name, &fresh, mode, permissions);
        self.give_back_value(fresh, entered.is_ok());
        entered.map(|_| ())
    }

    /// An inode with this value: one that has it already, or a new one. It is charged to the owners
    /// that a new inode of `owners` in `directory` has, until the value is used. The caller holds
    /// the directory's lock and has no handle; later it calls [`Volume::give_back_value`].
    pub(super) fn ready_value(
        &self,
        directory: &Arc<Inode>,
        owners: &CreateAttributes,
        value: &[u8],
    ) -> Result<ReadyValue> {
        let hash = self.hash_of_value(value);
        match self.find_value(hash, value) {
            Some(shared) => Ok(shared),
            None => self.make_value(directory, owners, value, hash),
        }
    }

    /// Ends the use of a ready value, to which an attribute refers now, or not. The caller, once it
    /// holds no lock, calls [`Volume::reap_values`].
    pub(super) fn give_back_value(&self, value: ReadyValue, is_used: bool) {
        let ReadyValue {
            inode,
            origin,
            place,
        } = value;
        if origin == Origin::Fresh {
            self.inodes.release(place.number, 1);
            if is_used {
                self.inodes.values.remember(place.hash, place.number);
            }
        }
        // Nobody reaped it while it was held here, even if its owner is gone already.
        if inode.state(|state| state.slot.links == 0) {
            self.inodes.values.defer_reaping(inode);
        }
    }

    fn hash_of_value(&self, value: &[u8]) -> u32 {
        codec::value_hash(self.inodes.store.geometry.value_seed, value)
    }

    /// The inode with this value, if the volume remembers one. It may lose its last reference
    /// before the caller adds one.
    fn find_value(&self, hash: u32, value: &[u8]) -> Option<ReadyValue> {
        let number = self.inodes.values.recall(hash)?;
        let size = u32::try_from(value.len()).ok()?;
        // The inode may contain something else by now, or be on its way out; then there is no value
        // to share.
        let inode = self.inodes.value_inode(number).ok()?.into_own();
        let is_same = {
            let _lock = inode.lock.try_read()?;
            let (found, _) = self.inodes.read_value_of(&inode, size).ok()?;
            found == value
        };
        let found = is_same.then(|| ReadyValue::new(inode, Origin::Shared, value, hash));
        found?.ok()
    }

    /// An unnamed file with this content, made as if in the directory `near`.
    fn make_value(
        &self,
        near: &Arc<Inode>,
        owners: &CreateAttributes,
        value: &[u8],
        hash: u32,
    ) -> Result<ReadyValue> {
        let new = CreateAttributes {
            permissions: 0o600,
            ..*owners
        };
        self.prepare_owners_of_new(near, &new)?;
        let inode = {
            let mut handle = self.inodes.store.start(INODE_CREDITS)?;
            self.create_unnamed_inode(&mut handle, near, &new)?
        };
        let filled = self.fill_value(&inode, value);
        let made = ReadyValue::new(inode, Origin::Fresh, value, hash)?;
        match filled {
            Ok(()) => Ok(made),
            Err(error) => {
                self.give_back_value(made, false);
                Err(error)
            }
        }
    }

    fn fill_value(&self, inode: &Arc<Inode>, value: &[u8]) -> Result<()> {
        if inode.is_inline() {
            self.inodes.move_out(inode)?;
        }
        let mut done = 0;
        while done < value.len() {
            // The next call says why not all was written.
            done += self.inodes.write_data(inode, done as u64, &value[done..])?;
        }
        self.inodes.drop_preallocation(inode);
        Ok(())
    }

    /// Sets the attribute. False if the shared inode has lost its last reference.
    fn enter_value(
        &self,
        owner: &Arc<Inode>,
        name: &[u8],
        value: &ReadyValue,
        mode: SetXattrMode,
        permissions: Option<u16>,
    ) -> Result<bool> {
        let inodes = &self.inodes;
        let credits = xattr::change_credits(inodes, owner)? + READY_CREDITS;
        let mut handle = inodes.store.start(credits)?;
        let before = handle.changes();
        let set = self.refer_to_value(&mut handle, owner, name, value, mode);
        if matches!(set, Ok(true)) {
            set_permissions(&mut handle, owner, permissions);
        }
        self.stop_if_half_done(&handle, before, set)
    }

    /// Makes an attribute refer to a value; the handle has [`READY_CREDITS`] for that. False if the
    /// shared inode has lost its last reference; then, and after a refusal, nothing has changed.
    pub(super) fn refer_to_value(
        &self,
        handle: &mut Handle<'_>,
        owner: &Arc<Inode>,
        name: &[u8],
        value: &ReadyValue,
        mode: SetXattrMode,
    ) -> Result<bool> {
        let inodes = &self.inodes;
        // The operation holds this reference itself, until the attribute's entry has its own.
        match value.origin {
            Origin::Fresh => inodes.make_value_inode(handle, &value.inode, value.place.hash)?,
            // Starting the handle may have waited for a commit, and the last owner may have dropped
            // the value.
            Origin::Shared if inodes.try_add_value_reference(handle, &value.inode) => {}
            Origin::Shared => return Ok(false),
        }
        let set = xattr::set_elsewhere(inodes, handle, owner, name, value.place, mode);
        let given = inodes.drop_value_reference(handle, owner, value.place.number);
        set.and(given).map(|()| true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::groups::testing::image;
    use crate::{CreateAttributes, InodeNumber, MountOptions, SetXattrMode, Volume};

    /// The last owner of a value drops it while another owner has found it and waits for its
    /// handle.
    #[test]
    fn a_value_that_ends_before_it_is_shared_is_made_again() {
        let Some(device) = image(&["-O", "ea_inode"], "16M") else {
            return;
        };
        let open = || Volume::open(device.clone(), MountOptions::default()).expect("a mount");
        let volume = open();
        let [first, second] = [b"first-", b"second"].map(|name| {
            let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
            made.expect("a file").inode
        });
        let (name, any) = (b"user.name", SetXattrMode::Any);
        let value = [b'v'; 5000];
        volume.set_xattr(first, name, &value, any).expect("room");
        let seed = volume.inodes.store.geometry.value_seed;
        let hash = pext4_ondisk::xattr::value_hash(seed, &value);
        let found = volume.find_value(hash, &value).expect("it is remembered");
        let owner = volume.inodes.get(second).expect("held");
        let enter = || volume.enter_value(&owner, name, &found, any, None);
        volume.remove_xattr(first, name).expect("it was set");
        assert!(!enter().expect("no damage"), "it has ended");
        let other = [b'w'; 5000];
        volume.set_xattr(first, name, &other, any).expect("room");
        assert!(!enter().expect("no damage"), "the number is another's now");
        // What has ended is not written once more, over the one that has its number.
        volume.sync().expect("the device works");
        assert!(!enter().expect("no damage"), "nor in the next transaction");
        for file in [b"third-", b"fourth"] {
            let made = volume.create(InodeNumber::ROOT, file, &CreateAttributes::default());
            let _ = made.expect("a file");
            volume.sync().expect("the device works");
        }
        volume.set_xattr(second, name, &value, any).expect("room");
        volume.close().expect("it closes");
        let volume = open();
        assert_eq!(volume.xattr(second, name).expect("set"), value);
        assert_eq!(volume.xattr(first, name).expect("set"), other);
    }
}
