//! Reaping: when the last name and the last hold of an inode are gone, its blocks, its attributes
//! and its number are freed.
//!
//! If nobody holds the inode when its last name is removed, and it has little to free, it is reaped
//! in the transaction that removes the name: a crash leaves all of it or nothing, so no orphan
//! entry is needed. Every other inode is an orphan from the removal of its last name until it is
//! reaped.
//!
//! Exactly one thread reaps an inode: the one for which [`Inode::claim_reaping`] returns true. It
//! calls that under the inode's lock: if the last hold is given back between the removal of the
//! last name and the orphan entry, the inode must not be reaped before that entry exists, or the
//! entry would stay when the inode is gone. Who drops the last reference to the inode of an
//! attribute's value has no such lock, and holds the inode meanwhile.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pext4_jbd2::Handle;

use super::{ENTRY_CREDITS, INODE_CREDITS, lock_key};
use crate::error::{Error, Result};
use crate::inode::{Inode, Reach};
use crate::store::now;
use crate::types::{FileType, InodeNumber};
use crate::volume::Volume;
use crate::xattr;

impl Volume {
    /// Adds one hold of an inode by its number alone, without reading it. It is the only operation
    /// that works on an inode that cannot be read.
    pub fn hold(&self, inode: InodeNumber) {
        self.inodes.hold_number(inode);
    }

    /// Whether somebody holds an inode.
    #[must_use]
    pub fn is_held(&self, inode: InodeNumber) -> bool {
        !self.inodes.holds.is_free(inode)
    }

    /// Gives back `count` holds. An inode without names and holds is freed.
    ///
    /// If that fails, the orphan clean-up of the next mount frees it.
    pub fn forget(&self, inode: InodeNumber, count: u64) {
        if !self.inodes.release(inode, count) {
            return;
        }
        // An inode without a name stays in memory while it is held, so one that is not there has a
        // name.
        let Some(inode) = self.inodes.loaded_inode(inode) else {
            return;
        };
        if inode.state(|state| state.slot.links == 0) {
            let _ = self.run(|| self.reap_if_due(&inode));
        } else if inode.file_type() == FileType::Regular {
            self.inodes.drop_preallocation(&inode);
        }
    }

    /// Gives back a hold where the caller has locks under which nothing may be reaped: that follows
    /// when its operation is over.
    pub(super) fn forget_under_lock(&self, number: InodeNumber) {
        if !self.inodes.release(number, 1) {
            return;
        }
        // Holds are those of a number: the inode that has it now may be another than was found.
        if let Some(inode) = self.inodes.loaded_inode(number)
            && inode.state(|state| state.slot.links == 0)
        {
            self.inodes.forgotten.push(inode);
        }
    }

    /// Reaps inodes whose last hold was given back under a lock. The caller holds none.
    pub(super) fn reap_forgotten(&self) {
        if self.inodes.forgotten.is_empty() {
            return;
        }
        for inode in self.inodes.forgotten.take_all() {
            // If it fails, the orphan clean-up of the next mount frees it.
            let _ = self.run(|| self.reap_if_due(&inode));
        }
    }

    /// A number that identifies the set of inodes without a name, `None` if there are none. If the
    /// set changes, the number does. These inodes exist until their last hold is given back, so the
    /// space that they use may soon be free. An inode number that is reused counts as another
    /// inode, since its generation differs.
    #[must_use]
    pub fn unnamed_inodes_fingerprint(&self) -> Option<u64> {
        let orphans = self.inodes.orphans.snapshot();
        let mut hasher = DefaultHasher::new();
        for (number, _) in &orphans {
            let inode = self.inodes.loaded_inode(*number);
            (number.get(), inode.map(|inode| inode.generation())).hash(&mut hasher);
        }
        (!orphans.is_empty()).then(|| hasher.finish())
    }

    /// Starts a handle that removes one name of an inode and, if it was the last, may free the
    /// inode in the same transaction. The blocks of a directory are freed later. The caller holds
    /// the inode's lock.
    pub(super) fn start_removal(&self, inode: &Inode) -> Result<Handle<'_>> {
        let credits = ENTRY_CREDITS + self.reaping_credits(inode);
        self.inodes.store.start(credits)
    }

    /// Metadata blocks that may become dirty when an inode loses its last name: those of its orphan
    /// entry, or those of everything that is freed if it is reaped at once.
    pub(super) fn reaping_credits(&self, inode: &Inode) -> u32 {
        let for_blocks = if inode.is_directory() {
            0
        } else {
            self.inodes.truncate_credits(inode)
        };
        INODE_CREDITS + for_blocks + xattr::end_credits(&self.inodes, inode)
    }

    /// Reaps an inode under the handle that removed its last name, if nobody holds it and one step
    /// frees all its blocks; returns whether it did. A damaged inode loses its name but stays an
    /// orphan.
    pub(super) fn reap_at_once(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<bool> {
        if inode.is_directory()
            || !self.inodes.is_freed_in_one_step(inode).unwrap_or(false)
            || xattr::check_end(&self.inodes, inode).is_err()
            || !inode.claim_reaping(&self.inodes.holds)
        {
            return Ok(false);
        }
        self.inodes.free_all_blocks(handle, inode)?;
        self.finish_reaping(handle, inode)?;
        Ok(true)
    }

    /// Reaps an inode if its last name and hold are gone and no other thread reaps it, and with it
    /// the inodes that hold values of its attributes.
    pub(crate) fn reap_if_due(&self, inode: &Arc<Inode>) -> Result<()> {
        self.reap_one(inode)?;
        self.reap_values()
    }

    /// As [`Volume::reap_if_due`], for a caller that removed the last name. The removal has
    /// succeeded, so an error here only goes to the volume's error policy.
    pub(super) fn reap_unnamed(&self, inode: &Arc<Inode>) -> Result<()> {
        self.tolerate_failed_reap(self.reap_if_due(inode))
    }

    /// Handles the failure to reap an inode after an operation that has succeeded: the inode stays
    /// an orphan, which the next mount reaps. Only an error of a stopped journal is returned.
    pub(super) fn tolerate_failed_reap(&self, ended: Result<()>) -> Result<()> {
        match ended {
            Ok(()) => Ok(()),
            Err(error @ Error::Journal(_)) => Err(error),
            Err(error) => {
                self.inodes.store.apply_error_policy(error);
                self.inodes.store.journal_noted_errors();
                Ok(())
            }
        }
    }

    /// Reaps the inodes that held values of removed attributes. The caller holds no lock.
    pub(super) fn reap_values(&self) -> Result<()> {
        if !self.inodes.has_values() {
            return Ok(());
        }
        let mut outcome = Ok(());
        while let Some(values) = self.inodes.values.take_deferred() {
            // If one cannot be reaped, the others still are.
            for value in values {
                outcome = outcome.and(self.reap_one(&value));
            }
        }
        outcome
    }

    fn reap_one(&self, inode: &Arc<Inode>) -> Result<()> {
        // Mostly it was reaped with its last name.
        if inode.is_dead() || self.inodes.store.is_read_only() {
            return Ok(());
        }
        // The thread that removes the last name also makes the inode an orphan under this lock.
        let _lock = inode.lock.write_keyed(lock_key(inode));
        if !inode.claim_reaping(&self.inodes.holds) {
            return Ok(());
        }
        self.inodes.drop_preallocation(inode);
        if inode.maps_blocks() {
            self.inodes.check_map_to_free(inode)?;
            let handle = self
                .inodes
                .store
                .start(self.inodes.truncate_credits(inode))?;
            self.inodes.free_from(handle, inode, 0)?;
        }
        xattr::check_end(&self.inodes, inode)?;
        let mut handle = self.start_finish(inode)?;
        let before = handle.changes();
        let done = self.finish_reaping(&mut handle, inode);
        self.stop_if_half_done(&handle, before, done)
    }

    /// Starts a handle for [`Self::finish_reaping`].
    fn start_finish(&self, inode: &Inode) -> Result<Handle<'_>> {
        let credits = INODE_CREDITS + xattr::end_credits(&self.inodes, inode);
        self.inodes.store.start(credits)
    }

    /// Frees the attributes and the number of an inode without blocks.
    fn finish_reaping(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        xattr::end(&self.inodes, handle, inode)?;
        self.inodes.remove_orphan(handle, inode)?;
        // 0 means "not deleted", and a number of an inode would be read as the next orphan of the
        // chain; so the time is later than both.
        let deletion_time = u32::try_from(now().seconds & 0xFFFF_FFFF)
            .unwrap_or(u32::MAX)
            .max(self.inodes.store.geometry.inodes_count.saturating_add(1));
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.links = 0;
            state.slot.size = 0;
            state.slot.deletion_time = deletion_time;
            state.close_account();
        });
        self.inodes
            .groups
            .free_inode(handle, inode.number(), inode.is_directory())
    }

    /// Frees an inode that was created under this handle and never got a name. If that fails, the
    /// journal stops: a commit would make an inode durable that nothing refers to.
    pub(super) fn discard_new_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.links = 0;
            state.dead = true;
        });
        // Only the creator's: a lookup that met the last owner of the number may hold it for a
        // moment, and gives that back itself.
        self.inodes.release(inode.number(), 1);
        let before = handle.changes();
        let freed = self
            .inodes
            .free_all_blocks(handle, inode)
            .and_then(|()| self.finish_reaping(handle, inode));
        // Its creation, under the same handle, was the first change.
        self.stop_if_half_done(handle, before.saturating_sub(1), freed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pext4_ondisk::inode::InodeFlags;

    use crate::groups::testing::image;
    use crate::inode::Reach;
    use crate::ops::new_inode::NewInode;
    use crate::ops::ready_lists::ReadyLists;
    use crate::ops::{INODE_CREDITS, lock_key};
    use crate::orphan::Chain;
    use crate::{CreateAttributes, FileType, InodeNumber, MountOptions, SetXattrMode, Volume};

    fn volume(features: &str) -> Option<Volume> {
        let device = image(&["-O", features], "16M")?;
        Some(Volume::open(device, MountOptions::default()).expect("a mount"))
    }

    /// The last hold is given back after the last name was removed and before the orphan entry
    /// exists.
    #[test]
    fn a_hold_given_back_during_an_unlink_leaves_no_orphan_entry() {
        for features in ["orphan_file", "^orphan_file"] {
            let Some(volume) = volume(features) else {
                return;
            };
            let number = volume
                .create(InodeNumber::ROOT, b"file", &CreateAttributes::default())
                .expect("create")
                .inode;
            let inode = volume.inodes.get(number).expect("it is held");
            let lock = inode.lock.write_keyed(lock_key(&inode));
            let mut handle = volume.start_removal(&inode).expect("a journal that runs");
            inode.edit(&mut handle, Reach::Attributes, |state| state.slot.links = 0);
            std::thread::scope(|scope| {
                scope.spawn(|| volume.forget(number, 1));
                while !volume.inodes.holds.is_free(number) {
                    std::thread::yield_now();
                }
                // Gives the other thread time to do what it must not do.
                std::thread::sleep(Duration::from_millis(50));
                assert!(
                    !inode.state(|state| state.dead),
                    "{features}: it ended under the lock"
                );
                volume
                    .inodes
                    .add_orphan(&mut handle, &inode)
                    .expect("a slot");
                drop((handle, lock));
            });
            assert!(
                inode.state(|state| state.dead),
                "{features}: somebody ends it"
            );
            assert!(volume.inodes.orphans.snapshot().is_empty(), "{features}");
        }
    }

    /// An inode leaves the chain while its older neighbour there does, which gives it a new
    /// successor.
    #[test]
    fn an_inode_that_left_the_chain_is_no_orphan_whatever_its_neighbours_do() {
        let Some(volume) = volume("^orphan_file") else {
            return;
        };
        let inodes = &volume.inodes;
        let created = CreateAttributes::default();
        let file = volume.create(InodeNumber::ROOT, b"file", &created);
        let inode = inodes.get(file.expect("room").inode).expect("it is held");
        let mut handle = inodes.store.start(INODE_CREDITS).expect("a new journal");
        inodes.add_orphan(&mut handle, &inode).expect("the chain");
        std::thread::scope(|scope| {
            let chain = inodes.orphans.lock_list();
            scope.spawn(|| {
                let mut handle = inodes.store.start(INODE_CREDITS).expect("a journal");
                inodes.remove_orphan(&mut handle, &inode).expect("listed");
            });
            // Until the other thread waits for the chain.
            std::thread::sleep(Duration::from_millis(50));
            let linked = inodes.set_next(&mut handle, inode.number(), 0);
            linked.expect("it is an orphan");
            drop(chain);
        });
        assert!(inodes.orphans.snapshot().is_empty());
        assert!(!inode.is_orphan(), "it would not be listed again");
    }

    /// Somebody has looked up a value by its number, and gives that hold back after the last
    /// reference was dropped and before the orphan entry exists.
    #[test]
    fn a_hold_given_back_while_a_value_loses_its_last_reference_leaves_no_orphan_entry() {
        let Some(volume) = volume("ea_inode,^orphan_file") else {
            return;
        };
        let created = CreateAttributes::default();
        let file = volume.create(InodeNumber::ROOT, b"file", &created);
        let file = file.expect("room").inode;
        let set = volume.set_xattr(file, b"user.a", &[7; 5000], SetXattrMode::Any);
        set.expect("room");
        let mut value = None;
        volume.inodes.for_each(|inode| {
            if inode.flags().contains(InodeFlags::EA_INODE) {
                value = Some(Arc::clone(inode));
            }
        });
        let value = value.expect("the value has an inode");
        volume.hold(value.number());
        std::thread::scope(|scope| {
            let chain = volume.inodes.orphans.lock_list();
            scope.spawn(|| volume.remove_xattr(file, b"user.a").expect("it is there"));
            while value.state(|state| state.slot.links > 0) {
                std::thread::yield_now();
            }
            let lookup = scope.spawn(|| volume.forget(value.number(), 1));
            // Gives the other thread time to do what it must not do.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!value.is_dead(), "it ended before it was an orphan");
            drop(chain);
            lookup.join().expect("it does not panic");
        });
        assert!(value.is_dead(), "somebody ends it");
        assert!(volume.inodes.orphans.snapshot().is_empty());
    }

    /// A lookup that met the last owner of a number may hold it when its new owner is discarded.
    #[test]
    fn an_inode_that_is_discarded_loses_its_creators_hold_only() {
        let Some(volume) = volume("orphan_file") else {
            return;
        };
        let new = CreateAttributes::default();
        let new_inode = NewInode::new(FileType::Regular, &new);
        let root = volume.inodes.get(InodeNumber::ROOT).expect("the root");
        let mut handle = volume
            .inodes
            .store
            .start(INODE_CREDITS)
            .expect("a new journal");
        let inode = volume.create_inode(&mut handle, &root, &new_inode, &ReadyLists::default());
        let inode = inode.expect("room");
        let number = inode.number();
        volume.hold(number);
        volume
            .discard_new_inode(&mut handle, &inode)
            .expect("it has no blocks");
        drop(handle);
        assert!(volume.is_held(number), "by the lookup");
        let next = volume.create(InodeNumber::ROOT, b"next", &new);
        assert_eq!(next.expect("room").inode, number, "its number is free");
        volume.forget(number, 1);
        assert!(volume.is_held(number), "by its creator");
    }

    #[test]
    fn the_fingerprint_of_inodes_without_a_name_changes_with_them() {
        for features in ["orphan_file", "^orphan_file"] {
            let Some(volume) = volume(features) else {
                return;
            };
            let unnamed = |name: &[u8]| {
                let made = volume.create(InodeNumber::ROOT, name, &CreateAttributes::default());
                let number = made.expect("create").inode;
                volume.unlink(InodeNumber::ROOT, name).expect("its name");
                number
            };
            assert_eq!(volume.unnamed_inodes_fingerprint(), None, "{features}");
            let first = unnamed(b"first");
            let one = volume.unnamed_inodes_fingerprint();
            assert!(
                one.is_some() && volume.unnamed_inodes_fingerprint() == one,
                "{features}"
            );
            let second = unnamed(b"second");
            assert!(
                volume
                    .unnamed_inodes_fingerprint()
                    .is_some_and(|both| Some(both) != one)
            );
            volume.forget(second, 1);
            assert_eq!(volume.unnamed_inodes_fingerprint(), one, "{features}");
            volume.forget(first, 1);
            assert_eq!(volume.unnamed_inodes_fingerprint(), None, "{features}");
            let again = unnamed(b"again");
            assert!(
                again != first || volume.unnamed_inodes_fingerprint() != one,
                "{features}"
            );
        }
    }
}
