//! Attributes whose value takes an inode of its own (`ea_inode`), because it fits neither into the inode of
//! the file nor into a block.
//!
//! The value is written to a nameless file first, in transactions of its own; the one that enters the
//! attribute then makes an inode of values of it. A value that is in an inode already, as far as the volume
//! remembers, is shared.

use std::sync::Arc;

use pext4_ondisk::xattr as codec;

use super::INODE_CREDITS;
use super::birth::Birth;
use crate::error::{Refusal, Result};
use crate::inode::{Inode, Reach, values};
use crate::types::{FileType, InodeNumber, New, SetXattrMode};
use crate::volume::Volume;
use crate::xattr;

impl Volume {
    /// Sets an attribute to a value in an inode of its own. The caller holds the lock of `owner`, and
    /// reaps what is left behind when it does not any more.
    pub(super) fn set_large_xattr(
        &self,
        owner: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<()> {
        let inodes = &self.inodes;
        let hash = codec::value_hash(inodes.store.geometry.value_seed, value);
        if let Some(number) = self.find_value(hash, value)
            && self.enter_value(owner, name, (number, None), (value, hash), mode)?
        {
            return Ok(());
        }
        let fresh = self.make_value(owner, value)?;
        let number = fresh.number();
        let entered = self.enter_value(owner, name, (number, Some(&fresh)), (value, hash), mode);
        inodes.release(number, 1);
        match &entered {
            Ok(_) => inodes.values.remember(hash, number),
            Err(_) => inodes.values.leave(fresh),
        }
        entered.map(|_| ())
    }

    /// Where this very value lies, if the volume remembers.
    fn find_value(&self, hash: u32, value: &[u8]) -> Option<InodeNumber> {
        let number = self.inodes.values.recall(hash)?;
        let size = u32::try_from(value.len()).ok()?;
        // What became something else in the meantime is no value to share.
        let (found, _) = self.inodes.read_value(number, size).ok()?;
        (found == value).then_some(number)
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

    /// Enters the attribute. False if the inode of the value, which is not `fresh`, has ended.
    fn enter_value(
        &self,
        owner: &Arc<Inode>,
        name: &[u8],
        (number, fresh): (InodeNumber, Option<&Arc<Inode>>),
        (value, hash): (&[u8], u32),
        mode: SetXattrMode,
    ) -> Result<bool> {
        let inodes = &self.inodes;
        let credits = xattr::change_credits(inodes, owner)? + 2 * values::CREDITS;
        let mut handle = inodes.store.start(credits)?;
        let before = handle.changes();
        // This reference is the operation's own: it keeps the value until the entry counts itself.
        match fresh {
            Some(fresh) => inodes.begin_value(&mut handle, fresh, hash)?,
            None if inodes.take_value(&mut handle, number)? => {}
            None => return Ok(false),
        }
        let place = xattr::ValuePlace {
            number,
            size: u32::try_from(value.len()).map_err(|_| Refusal::TooBig)?,
            hash,
        };
        let set = xattr::set_elsewhere(inodes, &mut handle, owner, name, place, mode);
        let given = inodes.give_value(&mut handle, number);
        self.settle(&handle, before, set.and(given)).map(|()| true)
    }
}
