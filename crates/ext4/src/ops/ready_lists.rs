//! Access control lists of new inodes that have no room with them (`ea_inode`).
//!
//! A new inode gets its lists in the transaction that creates it: nobody, even after a crash, sees
//! it without them. A list with an inode of its own needs transactions before that one
//! ([`values`](super::values)), but almost all lists have room in the new inode or in a block. So
//! the creation is tried without such values first. If the lists have no room, what was created is
//! discarded under the same handle. Then, without a handle, the value of the last list that has
//! none is made ready, and the creation is tried again, until the rest has room. A crash frees
//! values that are ready but not used; inodes that inherit equal lists share their values.
//!
//! The directory is locked throughout, so the owners that a new inode in it has do not change. The
//! operation's end, when it holds no lock, reaps what was ready and not used
//! ([`Volume::reap_unused_values`]).

use std::sync::Arc;

use super::new_inode::NewInode;
use super::values::{READY_CREDITS, ReadyValue};
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::inode::values::MAX_VALUE;
use crate::types::FileType;
use crate::volume::Volume;

/// The values that are ready for a new inode's lists, by the names of the attributes.
#[derive(Default)]
pub(super) struct ReadyLists {
    values: Vec<(&'static [u8], ReadyValue)>,
}

impl ReadyLists {
    /// Metadata blocks that using the values may dirty, in addition to [`NewInode::acl_credits`].
    pub fn credits(&self) -> u32 {
        self.values.iter().map(|_| READY_CREDITS).sum()
    }

    /// The value that is ready for an attribute, if it has no room elsewhere.
    pub fn value_of(&self, name: &[u8]) -> Option<&ReadyValue> {
        let found = self.values.iter().find(|(of, _)| *of == name);
        found.map(|(_, value)| value)
    }
}

impl Volume {
    /// Creates an inode with `create`, which is called again, with more values ready, while it is
    /// refused for want of room for the lists, having left nothing. The caller holds the
    /// directory's lock and has no handle.
    pub(super) fn create_with_lists<R>(
        &self,
        directory: &Arc<Inode>,
        new_inode: &NewInode<'_>,
        mut create: impl FnMut(&ReadyLists) -> Result<R>,
    ) -> Result<R> {
        let mut ready = ReadyLists::default();
        let created = loop {
            let full = match create(&ready) {
                Err(error) if error.is(Refusal::AttributesFull) => error,
                created => break created,
            };
            match self.ready_one_more(&mut ready, directory, new_inode) {
                Ok(true) => {}
                Ok(false) => break Err(full),
                Err(error) => break Err(error),
            }
        };
        for (_, value) in ready.values {
            self.give_back_value(value, created.is_ok());
        }
        created
    }

    /// Makes the value of one more list ready; false if there is no list left or no such value.
    fn ready_one_more(
        &self,
        ready: &mut ReadyLists,
        directory: &Arc<Inode>,
        new_inode: &NewInode<'_>,
    ) -> Result<bool> {
        // If blocks are charged to a short symbolic link, e2fsck 1.47 takes its target for a block
        // map.
        if !self.inodes.has_values() || new_inode.kind == FileType::Symlink {
            return Ok(false);
        }
        ready.values.retain(|(_, value)| !value.has_ended());
        let lists = new_inode.acl_attributes();
        let Some((name, list)) = lists
            .filter(|(name, _)| ready.value_of(name).is_none())
            .last()
        else {
            return Ok(false);
        };
        if list.len() > MAX_VALUE {
            return Err(Refusal::TooBig.into());
        }
        let value = self.ready_value(directory, new_inode.new, list)?;
        ready.values.push((name, value));
        Ok(true)
    }

    /// Reaps values that were made ready for an inode which was not created after all. The caller
    /// holds no lock.
    pub(super) fn reap_unused_values(&self) {
        // If it fails, the orphan clean-up of the next mount frees them.
        let _ = self.tolerate_failed_reap(self.reap_values());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use pext4_ondisk::acl::ACCESS;

    use super::{NewInode, READY_CREDITS};
    use crate::groups::testing::image;
    use crate::ops::INODE_CREDITS;
    use crate::types::Acls;
    use crate::{
        CreateAttributes, FileType, InodeNumber, MountOptions, Refusal, SetXattrMode, Volume,
    };

    /// The last owner of a list drops it after it was found for a new inode. The list that is made
    /// again is durable, and then the power fails.
    #[test]
    fn a_list_that_is_ready_ends_before_it_is_used() {
        let Some(device) = image(&["-O", "ea_inode", "-b", "1024"], "16M") else {
            return;
        };
        let open = |device| Volume::open(device, MountOptions::default()).expect("a mount");
        let volume = open(device.clone());
        let new = CreateAttributes::default();
        let made = volume.create(InodeNumber::ROOT, b"owner", &new);
        let owner = made.expect("room").inode;
        let list = [b'l'; 5000];
        let set = volume.set_xattr(owner, b"user.list", &list, SetXattrMode::Any);
        set.expect("room");
        let new_inode = NewInode {
            acls: Acls {
                access: Some(&list),
                default: None,
            },
            ..NewInode::new(FileType::Fifo, &new)
        };
        let root = volume.inodes.get(InodeNumber::ROOT).expect("the root");
        let (mut tries, mut cut) = (0, None);
        let created = volume.create_with_lists(&root, &new_inode, |ready| {
            tries += 1;
            if tries == 2 {
                volume
                    .remove_xattr(owner, b"user.list")
                    .expect("it was set");
            }
            if tries == 3 {
                volume.sync().expect("the device works");
                cut = Some(device.fork());
            }
            let credits = INODE_CREDITS + new_inode.acl_credits() + READY_CREDITS;
            let mut handle = volume.inodes.store.start(credits)?;
            let inode = volume.create_inode(&mut handle, &root, &new_inode, ready)?;
            Ok((handle, inode))
        });
        let (mut handle, inode) = created.expect("room");
        assert_eq!(
            tries, 3,
            "without values, with the shared one, with a new one"
        );
        let named = volume.insert_name(&mut handle, &root, b"fifo", &inode);
        named.expect("room");
        drop(handle);
        assert_eq!(volume.xattr(inode.number(), ACCESS).expect("set"), list);
        volume.close().expect("it closes");
        let cut = open(Arc::new(cut.expect("three tries")));
        let notes = cut.notes();
        assert!(
            notes.iter().any(|note| note.contains("finished 1 ")),
            "{notes:?}"
        );
        let found = cut.lookup(InodeNumber::ROOT, b"fifo");
        assert!(
            found
                .expect_err("the creation is lost")
                .is(Refusal::NotFound)
        );
    }

    #[test]
    fn a_list_that_no_call_could_return_is_refused() {
        let Some(device) = image(&["-O", "ea_inode"], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let (access, default) = (vec![1; 9000], vec![2; 70_000]);
        let acls = Acls {
            access: Some(&access),
            default: Some(&default),
        };
        let free = volume.statfs().free_inodes;
        let made = volume.make_with_acls(
            InodeNumber::ROOT,
            b"refused",
            &CreateAttributes::default(),
            FileType::Directory,
            crate::DeviceNumber::default(),
            &acls,
        );
        let error = made.expect_err("it is too long");
        assert!(error.is(Refusal::TooBig), "{error}");
        assert_eq!(volume.statfs().free_inodes, free);
    }
}
