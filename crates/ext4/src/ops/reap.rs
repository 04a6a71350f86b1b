//! The end of an inode: when its last name and its last hold are gone, its blocks, its attributes
//! and its number are freed.
//!
//! An inode that nobody holds when its last name goes, and that has little to free, ends in the
//! very transaction that removes the name: the crash leaves all or nothing, so no orphan entry is
//! needed. Every other inode is an orphan from the removal of its name to its end.
//!
//! Exactly one thread reaps: the one whose [`Inode::claim_reaping`] answers true. It does so under
//! the inode's lock: a hold that is given back between the removal of the last name and the orphan
//! entry must not end the inode before that entry is made, or the entry would outlive it.

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
    /// Holds an inode once more by its number alone: of one that cannot be read this is all a caller may do with it.
    pub fn hold(&self, inode: InodeNumber) {
        self.inodes.hold_number(inode);
    }

    /// Gives back `count` holds; an inode without names and holds is deleted.
    ///
    /// A failure to free it leaves it to the orphan clean-up of the next mount.
    pub fn forget(&self, inode: InodeNumber, count: u64) {
        if !self.inodes.release(inode, count) {
            return;
        }
        // One that is not in memory has a name.
        let Some(inode) = self.inodes.loaded_inode(inode) else {
            return;
        };
        if inode.state(|state| state.slot.links == 0) {
            let _ = self.run(|| self.reap_if_due(&inode));
        } else if inode.file_type() == FileType::Regular {
            self.inodes.drop_preallocation(&inode);
        }
    }

    /// What stands for the inodes without a name, `None` if there are none: another number when others are there.
    /// They wait for their last hold to be given back, and the space they take may be about to be free. A number that
    /// is used anew is told from the inode that had it by its generation.
    #[must_use]
    pub fn nameless(&self) -> Option<u64> {
        let orphans = self.inodes.orphans.snapshot();
        let mut hasher = DefaultHasher::new();
        for (number, _) in &orphans {
            let inode = self.inodes.loaded_inode(*number);
            (number.get(), inode.map(|inode| inode.generation())).hash(&mut hasher);
        }
        (!orphans.is_empty()).then(|| hasher.finish().max(1))
    }

    /// A handle for the removal of one name of an inode, whose lock the caller holds, with all that
    /// may follow at once; a directory's blocks are freed later.
    pub(super) fn start_removal(&self, inode: &Inode) -> Result<Handle<'_>> {
        let credits = ENTRY_CREDITS + self.reaping_credits(inode);
        self.inodes.store.start(credits)
    }

    /// Metadata blocks that an inode may dirty that loses a name: itself as an orphan, or all that
    /// ends with it where that is done at once.
    pub(super) fn reaping_credits(&self, inode: &Inode) -> u32 {
        let for_blocks = if inode.is_directory() {
            0
        } else {
            self.inodes.cut_credits(inode)
        };
        INODE_CREDITS + for_blocks + xattr::end_credits(&self.inodes, inode)
    }

    /// Ends an inode within the handle that took its last name, if nobody holds it and one step
    /// frees all it has. One that is damaged stays an orphan: its name goes all the same.
    pub(super) fn reap_at_once(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<bool> {
        if inode.is_directory()
            || !self.inodes.is_freed_in_one_step(inode).unwrap_or(false)
            || !xattr::can_end(&self.inodes, inode)
            || !inode.claim_reaping(&self.inodes.holds)
        {
            return Ok(false);
        }
        self.inodes.free_all_blocks(handle, inode)?;
        self.finish_reaping(handle, inode)?;
        Ok(true)
    }

    /// Ends an inode if its last name and hold are gone and nobody else has begun to, and what ends
    /// with it.
    pub(crate) fn reap_if_due(&self, inode: &Arc<Inode>) -> Result<()> {
        self.reap_one(inode)?;
        self.reap_values()
    }

    /// As [`Volume::reap_if_due`], for who took the last name: that one is gone, whatever the image is found to be
    /// when the rest is to go, which the volume's policy is told of.
    pub(super) fn reap_unnamed(&self, inode: &Arc<Inode>) -> Result<()> {
        self.pass_over(self.reap_if_due(inode))
    }

    /// What was to end after an operation that is done, and did not: it stays an orphan, which the next mount ends.
    /// Only of a journal that stopped the caller is told.
    pub(super) fn pass_over(&self, ended: Result<()>) -> Result<()> {
        match ended {
            Ok(()) => Ok(()),
            Err(error @ Error::Journal(_)) => Err(error),
            Err(error) => {
                self.inodes.store.judge(error);
                self.inodes.store.commit_noted();
                Ok(())
            }
        }
    }

    /// Ends inodes that held values of attributes which are gone. No lock is held.
    pub(super) fn reap_values(&self) -> Result<()> {
        if !self.inodes.has_values() {
            return Ok(());
        }
        let mut outcome = Ok(());
        while let Some(values) = self.inodes.values.take_left() {
            // One that cannot end keeps no other from it.
            for value in values {
                outcome = outcome.and(self.reap_one(&value));
            }
        }
        outcome
    }

    fn reap_one(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.inodes.store.is_read_only() {
            return Ok(());
        }
        // Whoever took the last name has also made the inode an orphan when the lock is free.
        let _lock = inode.lock.write_keyed(lock_key(inode));
        if !inode.claim_reaping(&self.inodes.holds) {
            return Ok(());
        }
        self.inodes.drop_preallocation(inode);
        if self.inodes.has_block_map(inode) {
            let handle = self.inodes.store.start(self.inodes.cut_credits(inode))?;
            self.inodes.cut(handle, inode, 0)?;
        }
        let mut handle = self.start_end(inode)?;
        let before = handle.changes();
        let done = self.finish_reaping(&mut handle, inode);
        self.settle(&handle, before, done)
    }

    /// A handle for what is left of an inode without blocks.
    fn start_end(&self, inode: &Inode) -> Result<Handle<'_>> {
        let credits = INODE_CREDITS + xattr::end_credits(&self.inodes, inode);
        self.inodes.store.start(credits)
    }

    /// Frees the attributes and the number of an inode without blocks.
    fn finish_reaping(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        xattr::release(&self.inodes, handle, inode)?;
        self.inodes.remove_orphan(handle, inode)?;
        // Zero would say that it was never deleted.
        let deletion_time = u32::try_from(now().0 & 0xFFFF_FFFF)
            .unwrap_or(u32::MAX)
            .max(1);
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.links = 0;
            state.slot.size = 0;
            state.slot.deletion_time = deletion_time;
        });
        self.inodes
            .groups
            .free_inode(handle, inode.number(), inode.is_directory())
    }

    /// Takes back an inode that was claimed in this handle and never got a name.
    pub(super) fn unbear(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        inode.edit(handle, Reach::Attributes, |state| {
            state.slot.links = 0;
            state.dead = true;
        });
        self.inodes.release(inode.number(), u64::MAX);
        self.inodes.free_all_blocks(handle, inode)?;
        self.finish_reaping(handle, inode)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    use pext4_block::RamDevice;

    use crate::inode::Reach;
    use crate::ops::lock_key;
    use crate::{InodeNumber, MountOptions, New, Volume};

    fn volume(features: &str) -> Option<Volume> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("image");
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-O", features])
            .arg(&path)
            .arg("16M")
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
            return None;
        }
        let device = RamDevice::load(&path).expect("the image");
        Some(Volume::open(Arc::new(device), MountOptions::default()).expect("a mount"))
    }

    /// The last hold goes when the last name is gone and the orphan entry is not yet made.
    #[test]
    fn a_hold_given_back_during_an_unlink_leaves_no_orphan_entry() {
        for features in ["orphan_file", "^orphan_file"] {
            let Some(volume) = volume(features) else {
                return;
            };
            let number = volume
                .create(InodeNumber::ROOT, b"file", &New::default())
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
                // Time for the other thread to do what it must not do.
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

    #[test]
    fn what_stands_for_inodes_without_a_name_changes_with_them() {
        for features in ["orphan_file", "^orphan_file"] {
            let Some(volume) = volume(features) else {
                return;
            };
            let unnamed = |name: &[u8]| {
                let made = volume.create(InodeNumber::ROOT, name, &New::default());
                let number = made.expect("create").inode;
                volume.unlink(InodeNumber::ROOT, name).expect("its name");
                number
            };
            assert_eq!(volume.nameless(), None, "{features}");
            let first = unnamed(b"first");
            let one = volume.nameless();
            assert!(one.is_some() && volume.nameless() == one, "{features}");
            let second = unnamed(b"second");
            assert!(volume.nameless().is_some_and(|both| Some(both) != one));
            volume.forget(second, 1);
            assert_eq!(volume.nameless(), one, "{features}");
            volume.forget(first, 1);
            assert_eq!(volume.nameless(), None, "{features}");
            let again = unnamed(b"again");
            assert!(again != first || volume.nameless() != one, "{features}");
        }
    }
}
