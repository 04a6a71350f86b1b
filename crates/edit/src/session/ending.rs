//! The end of a session: what has changed, whether it may go to the image, and which way it goes.

use pext4_block::Device;
use pext4_ondisk::superblock::{self, ErrorRecord, State};

use super::{EditSession, Plan, Prepared};
use crate::error::{EditError, FsContext, Result};
use crate::free::read_superblock;
use crate::staging::Changes;

impl EditSession {
    /// Ends the changes and decides which way they go to the image.
    ///
    /// # Errors
    ///
    /// `ChangeFailed` after a change that failed; errors of the device, or of the host if a clone
    /// is needed; the changes met damage in the image. The image has not changed then.
    pub fn prepare(mut self) -> Result<Prepared> {
        let _pinned = self.pin_thread();
        if self.has_failed {
            return Err(EditError::ChangeFailed);
        }
        let volume = self.volume.take().expect("only this takes it");
        volume.close().with_image(&self.name)?;
        self.refuse_new_errors()?;
        self.restore_mount_fields().with_image(&self.name)?;
        self.tuning.apply(&*self.staging).with_image(&self.name)?;
        let changes = self.staging.changes().map_err(pext4_fs::Error::from);
        let changes = changes.with_image(&self.name)?;
        let is_tuned = self.changes_superblock().with_image(&self.name)?;
        let plan = self.plan(&changes, is_tuned)?;
        Ok(Prepared {
            session: self,
            changes,
            is_tuned,
            plan,
        })
    }

    /// [`EditSession::prepare`] and [`Prepared::commit`].
    ///
    /// # Errors
    ///
    /// The errors of both.
    pub fn finish(self) -> Result<Plan> {
        self.prepare()?.commit()
    }

    /// Refuses the changes if damage was met while they were made. A removal goes on past damage as
    /// Linux does, and only notes it in the superblock: the image would then be one that the next
    /// edit refuses.
    fn refuse_new_errors(&self) -> Result<()> {
        let superblock = read_superblock(&*self.staging).with_image(&self.name)?;
        let is_new = superblock.error_count > self.before.error_count;
        if !is_new && !superblock.state.contains(State::ERRORS) {
            return Ok(());
        }
        Err(EditError::Refused(format!(
            "{}: {} was met, so nothing was changed; let `e2fsck -f` repair it first",
            self.name.display(),
            noted_damage(&superblock.last_error)
        )))
    }

    /// Restores the mount count, mount time and place of the last mount, since an edit is no mount.
    fn restore_mount_fields(&self) -> pext4_fs::Result<()> {
        let mut superblock = read_superblock(&*self.staging)?;
        superblock.mount_time = self.before.mount_time;
        superblock.mount_count = self.before.mount_count;
        superblock.last_mounted = self.before.last_mounted;
        let bytes = superblock.encode();
        Ok(self.staging.write_at(superblock::OFFSET, &bytes)?)
    }

    /// Decides on the way of the changes. Switches to a clone if they do not fit into a
    /// transaction; only blocks whose bytes differ from the image count.
    fn plan(&self, changes: &Changes, is_tuned: bool) -> Result<Plan> {
        if !self.staging.is_on_clone() {
            let home = superblock::OFFSET / u64::from(self.block_size);
            if !is_tuned && changes.used.iter().all(|(block, _)| block.get() == home) {
                return Ok(Plan::Nothing);
            }
            let Some(reason) = self.reason_for_clone(changes.used.len()) else {
                return Ok(Plan::Transaction {
                    blocks: changes.used.len(),
                    free: changes.free.len(),
                });
            };
            self.switch_to_clone(reason)?;
        }
        let clone = self.clone.borrow();
        let (clone, reason) = clone.as_ref().expect("the session has switched to it");
        Ok(Plan::Clone {
            method: clone.method(),
            reason: reason.clone(),
        })
    }

    /// Whether the superblock differs in more than the time of the last write and the counts, which
    /// every edit changes, and with them the checksum.
    fn changes_superblock(&self) -> pext4_fs::Result<bool> {
        let mut now = read_superblock(&*self.staging)?;
        now.write_time = self.before.write_time;
        now.kbytes_written = self.before.kbytes_written;
        now.free_blocks = self.before.free_blocks;
        now.free_inodes = self.before.free_inodes;
        Ok(now.encode() != self.before.encode())
    }
}

/// What a superblock notes about an error: the structure, and where it is.
fn noted_damage(error: &ErrorRecord) -> String {
    let name = error.function.split(|&byte| byte == 0).next();
    let name = String::from_utf8_lossy(name.unwrap_or_default());
    let numbers = [("inode", u64::from(error.inode)), ("block", error.block)];
    let places: Vec<String> = numbers
        .into_iter()
        .filter(|&(_, number)| number != 0)
        .map(|(what, number)| format!("{what} {number}"))
        .collect();
    match places.is_empty() {
        true => format!("damage ({name})"),
        false => format!("damage ({name}, {})", places.join(", ")),
    }
}
