//! Attributes whose value takes an inode of its own (`ea_inode`), because it fits neither into the inode of
//! the file nor into a block.
//!
//! The value is written to a nameless file first, in transactions of its own; the one that enters the
//! attribute then makes an inode of values of it. A value that is in an inode already, as far as the volume
//! remembers, is shared.

use std::sync::Arc;

use pext4_ondisk::xattr as codec;

use super::INODE_CREDITS;
use super::attributes::set_permissions;
use super::birth::Birth;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, Reach, values};
use crate::types::{FileType, New, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

/// The inode that an attribute gets its value from.
#[derive(Clone, Copy)]
enum Giver<'a> {
    /// A nameless file with that content, nobody else's.
    Fresh(&'a Arc<Inode>),
    /// One that holds the value for others.
    Shared(&'a Arc<Inode>),
}

impl Volume {
    /// Sets an attribute to a value in an inode of its own, and with it the permissions, if there are any. The caller
    /// holds the lock of `owner`, and reaps what is left behind when it does not any more.
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
                Giver::Shared(&found),
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
            Giver::Fresh(&fresh),
            (value, hash),
            (mode, permissions),
        );
        inodes.release(number, 1);
        match &entered {
            Ok(_) => inodes.values.remember(hash, number),
            Err(_) => inodes.values.leave(fresh),
        }
        entered.map(|_| ())
    }

    /// The inode with this very value, if the volume remembers. It may end before a reference is taken.
    fn find_value(&self, hash: u32, value: &[u8]) -> Option<Arc<Inode>> {
        let number = self.inodes.values.recall(hash)?;
        let size = u32::try_from(value.len()).ok()?;
        // What became something else in the meantime is no value to share.
        let (found, inode) = self.inodes.value_of(number, size).ok()?;
        (found == value).then_some(inode)
    }

    /// A nameless file with this content, held once.
    fn make_value(&self, owner: &Arc<Inode>, value: &[u8]) -> Result<Arc<Inode>> {
        let attributes = owner.attributes();
        let new = New {
            permissions: 0o600,
            uid: attributes.uid,
            gid: attributes.gid,
        };
        let inode = {
            let mut handle = self.inodes.store.start(2 * INODE_CREDITS)?;
            let inode = self.bear(&mut handle, owner, &Birth::new(FileType::Regular, &new))?;
            inode.edit(&mut handle, Reach::Data, |state| state.slot.links = 0);
            self.inodes.add_orphan(&mut handle, &inode)?;
            inode
        };
        match self.fill_value(&inode, value) {
            Ok(()) => Ok(inode),
            Err(error) => {
                self.inodes.release(inode.number(), 1);
                self.inodes.values.leave(inode);
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

    /// Enters the attribute. False if the inode that shares its value has ended.
    fn enter_value(
        &self,
        owner: &Arc<Inode>,
        name: &[u8],
        giver: Giver<'_>,
        (value, hash): (&[u8], u32),
        (mode, permissions): (SetXattrMode, Option<u16>),
    ) -> Result<bool> {
        let inodes = &self.inodes;
        let credits = xattr::change_credits(inodes, owner)? + 2 * values::CREDITS;
        let mut handle = inodes.store.start(credits)?;
        let before = handle.changes();
        // This reference is the operation's own: it keeps the value until the entry counts itself.
        let number = match giver {
            Giver::Fresh(fresh) => {
                inodes.begin_value(&mut handle, fresh, hash)?;
                fresh.number()
            }
            // The start may have waited for a commit, and its last owner have let go meanwhile.
            Giver::Shared(found) if inodes.take_value_of(&mut handle, found) => found.number(),
            Giver::Shared(_) => return Ok(false),
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
        let given = inodes.give_value(&mut handle, number);
        self.settle(&handle, before, set.and(given)).map(|()| true)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Giver;
    use crate::groups::testing::image;
    use crate::{InodeNumber, MountOptions, New, SetXattrMode, Volume};

    /// The last owner of a value lets go of it when another one has found it and waits for its handle.
    #[test]
    fn a_value_that_ends_before_it_is_shared_is_made_again() {
        let Some(device) = image(&["-O", "ea_inode"], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let [first, second] = [b"first-", b"second"].map(|name| {
            let made = volume.create(InodeNumber::ROOT, name, &New::default());
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
            let giver = Giver::Shared(&found);
            volume.enter_value(&owner, name, giver, (&value, hash), (any, None))
        };
        volume.remove_xattr(first, name).expect("it was set");
        assert!(!enter().expect("no damage"), "it has ended");
        let other = [b'w'; 5000];
        volume.set_xattr(first, name, &other, any).expect("room");
        assert!(!enter().expect("no damage"), "the number is another's now");
        volume.set_xattr(second, name, &value, any).expect("room");
        assert_eq!(volume.xattr(second, name).expect("set"), value);
        assert_eq!(volume.xattr(first, name).expect("set"), other);
    }
}
