//! Attributes whose value is stored in an inode of its own (`ea_inode`), because it fits neither
//! into the inode of the file nor into a block.
//!
//! The value is first written to a nameless file, in transactions of its own. The transaction that
//! sets the attribute then turns that file into a value inode. If the volume remembers an inode
//! that contains the same value already, the attribute shares it.

use std::sync::Arc;

use pext4_ondisk::xattr as codec;

use super::INODE_CREDITS;
use super::attributes::set_permissions;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, values};
use crate::types::{CreateAttributes, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

/// The inode that contains the value of an attribute.
#[derive(Clone, Copy)]
enum ValueSource<'a> {
    /// A new nameless file with that content; no other thread knows it.
    Fresh(&'a Arc<Inode>),
    /// An inode that other attributes share.
    Shared(&'a Arc<Inode>),
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
        let inodes = &self.inodes;
        let hash = codec::value_hash(inodes.store.geometry.value_seed, value);
        if let Some(found) = self.find_value(hash, value)
            && self.enter_value(
                owner,
                name,
                ValueSource::Shared(&found),
                (value, hash),
                (mode, permissions),
            )?
        {
            return Ok(());
        }
        let fresh = self.make_value(owner, value)?;
        let number = fresh.number();
        let entered = self.enter_value(
            owner,
            name,
            ValueSource::Fresh(&fresh),
            (value, hash),
            (mode, permissions),
        );
        inodes.release(number, 1);
        match &entered {
            Ok(_) => inodes.values.remember(hash, number),
            Err(_) => inodes.values.defer_reaping(fresh),
        }
        entered.map(|_| ())
    }

    /// The inode with this value, if the volume remembers one. It may lose its last reference
    /// before the caller adds one.
    fn find_value(&self, hash: u32, value: &[u8]) -> Option<Arc<Inode>> {
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
        is_same.then_some(inode)
    }

    /// A nameless file with this content, held once.
    fn make_value(&self, owner: &Arc<Inode>, value: &[u8]) -> Result<Arc<Inode>> {
        let attributes = owner.attributes();
        let new = CreateAttributes {
            permissions: 0o600,
            uid: attributes.uid,
            gid: attributes.gid,
        };
        self.prepare_owners_of_new(owner, &new)?;
        let inode = {
            let mut handle = self.inodes.store.start(INODE_CREDITS)?;
            self.create_nameless(&mut handle, owner, &new)?
        };
        match self.fill_value(&inode, value) {
            Ok(()) => Ok(inode),
            Err(error) => {
                self.inodes.release(inode.number(), 1);
                self.inodes.values.defer_reaping(inode);
                Err(error)
            }
        }
    }

    fn fill_value(&self, inode: &Arc<Inode>, value: &[u8]) -> Result<()> {
        if inode.is_inline() {
            self.inodes.move_out(inode)?;
        }
        let written = self.inodes.write_data(inode, 0, value)?;
        self.inodes.drop_preallocation(inode);
        if written < value.len() {
            return Err(Refusal::NoSpace.into());
        }
        Ok(())
    }

    /// Sets the attribute. False if the shared inode has lost its last reference.
    fn enter_value(
        &self,
        owner: &Arc<Inode>,
        name: &[u8],
        source: ValueSource<'_>,
        (value, hash): (&[u8], u32),
        (mode, permissions): (SetXattrMode, Option<u16>),
    ) -> Result<bool> {
        let inodes = &self.inodes;
        let credits = xattr::change_credits(inodes, owner)? + 2 * values::CREDITS;
        let mut handle = inodes.store.start(credits)?;
        let before = handle.changes();
        // The operation holds this reference itself, until the attribute's entry has its own.
        let number = match source {
            ValueSource::Fresh(fresh) => {
                inodes.make_value_inode(&mut handle, fresh, hash)?;
                fresh.number()
            }
            // Starting the handle may have waited for a commit, and the last owner may have dropped
            // the value.
            ValueSource::Shared(found) if inodes.try_add_value_reference(&mut handle, found) => {
                found.number()
            }
            ValueSource::Shared(_) => return Ok(false),
        };
        let place = xattr::ValuePlace {
            number,
            size: u32::try_from(value.len()).map_err(|_| Refusal::TooBig)?,
            hash,
        };
        let set = xattr::set_elsewhere(inodes, &mut handle, owner, name, place, mode);
        if set.is_ok() {
            set_permissions(&mut handle, owner, permissions);
        }
        let given = inodes.drop_value_reference(&mut handle, owner, number);
        self.stop_if_half_done(&handle, before, set.and(given))
            .map(|()| true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::ValueSource;
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
        let enter = || {
            let source = ValueSource::Shared(&found);
            volume.enter_value(&owner, name, source, (&value, hash), (any, None))
        };
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
