//! The exchange of two names.

use std::sync::Arc;

use pext4_jbd2::Handle;

use super::End;
use super::locks::lock_inodes;
use crate::error::Result;
use crate::inode::Inode;
use crate::ops::attempt::{Attempt, LockMode};
use crate::ops::{DIRECTORY_CREDITS, INODE_CREDITS, projects};
use crate::volume::Volume;

impl Volume {
    /// Exchanges two names; both parents are locked.
    pub(super) fn exchange(
        &self,
        source: &End<'_>,
        target: &End<'_>,
        inodes: [&Arc<Inode>; 2],
        lock_mode: LockMode,
    ) -> Attempt<()> {
        let [moved, other] = inodes;
        if moved.number() == other.number() {
            return Ok(());
        }
        self.check_changeable(moved)?;
        self.check_changeable(other)?;
        source.check_makes_names(target)?;
        let _locks = lock_inodes(&inodes, lock_mode)?;
        projects::check_enters(target.directory, moved)?;
        projects::check_enters(source.directory, other)?;
        if source.is_elsewhere(target) {
            self.check_parent_entry(moved)?;
            self.check_parent_entry(other)?;
            if moved.is_directory() != other.is_directory() {
                let gains = if moved.is_directory() { target } else { source };
                self.check_room_for_subdirectory(gains.directory)?;
            }
        }
        let mut handle = self
            .inodes
            .store
            .start(2 * DIRECTORY_CREDITS + 2 * INODE_CREDITS)?;
        let done = self.exchange_names(&mut handle, source, target, inodes);
        Ok(self.stop_if_half_done(&handle, 0, done)?)
    }

    fn exchange_names(
        &self,
        handle: &mut Handle<'_>,
        source: &End<'_>,
        target: &End<'_>,
        inodes: [&Arc<Inode>; 2],
    ) -> Result<()> {
        let [moved, other] = inodes;
        self.replace_name(handle, source, other)?;
        self.replace_name(handle, target, moved)?;
        if source.is_elsewhere(target) {
            self.set_parent_entry(handle, target.directory, moved)?;
            self.set_parent_entry(handle, source.directory, other)?;
            if moved.is_directory() && !other.is_directory() {
                self.drop_subdirectory(handle, source.directory);
                self.add_subdirectory(handle, target.directory);
            }
            if other.is_directory() && !moved.is_directory() {
                self.drop_subdirectory(handle, target.directory);
                self.add_subdirectory(handle, source.directory);
            }
        }
        self.note_moved(handle, moved);
        self.note_moved(handle, other);
        Ok(())
    }
}
