//! The steps of a walk along a path, without holds on the inodes in between.
//!
//! [`Volume::lookup`] holds the inode that it finds, as a FUSE server requires. A hold writes to a
//! cache line that all callers of one name share, so a walk takes none: a reference to the inode in
//! memory is enough to look up the next name. If the inode is removed and freed meanwhile, the next
//! step fails with `NotFound`. The caller holds the last inode with [`Volume::hold_found`] if it
//! keeps it.

use std::sync::Arc;

use pext4_sync::{BiasedReadGuard, ShardRef};

use super::encrypted::check_stored_name;
use super::{check_not_removed, lock_shared};
use crate::dir;
use crate::error::{Refusal, Result};
use crate::inode::Inode;
use crate::types::InodeNumber;
use crate::volume::Volume;

impl Volume {
    /// The root directory, where every walk starts.
    pub(crate) fn root_inode(&self) -> Result<ShardRef<Inode>> {
        self.run(|| self.directory(InodeNumber::ROOT))
    }

    /// Looks up a name, `..` included, and returns its inode without holding it.
    pub(crate) fn step(&self, directory: &Arc<Inode>, name: &[u8]) -> Result<ShardRef<Inode>> {
        self.run(|| {
            if !directory.is_directory() {
                return Err(Refusal::NotADirectory.into());
            }
            check_stored_name(directory, name)?;
            self.check_encoded(directory, name)?;
            let _names = lock_passed(directory)?;
            check_not_removed(directory)?;
            if name == b".." {
                let parent = dir::parent(&self.names(directory))?;
                return self.directory(parent);
            }
            Ok(self.find_named(directory, name)?.ok_or(Refusal::NotFound)?)
        })
    }

    /// The target of a symbolic link that [`Self::step`] returned.
    pub(crate) fn target_of(&self, link: &Inode) -> Result<Vec<u8>> {
        self.run(|| {
            let _lock = lock_passed(link)?;
            self.target(link)
        })
    }

    /// Holds an inode that [`Self::step`] returned; fails with `NotFound` if it has lost its last
    /// name since.
    pub(crate) fn hold_found(&self, inode: &Inode) -> Result<()> {
        self.inodes.hold(inode);
        // The links are read under the lock of the state, under which the reaper checks the holds:
        // either the reaper sees this hold, or this thread sees that the links are gone.
        if inode.state(|state| state.slot.links) == 0 {
            self.forget(inode.number(), 1);
            return Err(Refusal::NotFound.into());
        }
        Ok(())
    }
}

/// As [`lock_shared`], for an inode that the walk does not hold: if it was freed meanwhile, its
/// name is gone, which is no stale reference of the caller.
fn lock_passed(inode: &Inode) -> Result<BiasedReadGuard<'_, ()>> {
    lock_shared(inode).map_err(|error| match error.is(Refusal::Stale) {
        true => Refusal::NotFound.into(),
        false => error,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::groups::testing::image;
    use crate::{MountOptions, Refusal, Volume};

    #[test]
    fn what_a_walk_passes_may_be_removed_and_freed() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let (paths, root) = (volume.paths(), volume.root_inode().expect("the root"));
        paths.create_dir("/directory").expect("room");
        paths.symlink("target", "/link").expect("room");
        let directory = volume.step(&root, b"directory").expect("it is there");
        let link = volume.step(&root, b"link").expect("it is there");
        paths.remove_dir("/directory").expect("it is empty");
        paths.remove_file("/link").expect("it is there");
        assert!(directory.is_dead() && link.is_dead(), "nobody holds them");
        for name in [&b"name"[..], b".."] {
            let error = volume.step(&directory, name).map(drop);
            let error = error.expect_err("it has no names");
            assert!(error.is(Refusal::NotFound), "{error}");
        }
        let error = volume.target_of(&link).expect_err("it is gone");
        assert!(error.is(Refusal::NotFound), "{error}");
    }
}
