//! The journal's superblock: where replay has to begin.
//!
//! The functions read it, check it and write it while the journal does not run; [`SuperblockFile`]
//! has it while the journal runs. Then the committer sets the start of the log, the checkpointer
//! moves it, and an abort records an error. Each change is durable before the call returns; changes
//! are serialised. The error of an abort is the last change, so the next recovery begins at the
//! start that was valid at the abort.

use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::journal::superblock::SUPERBLOCK_SIZE;
use pext4_ondisk::journal::{JournalIncompat, JournalSuperblock};
use pext4_ondisk::{Corrupt, Tid};
use pext4_sync::{Class, Mutex};

use crate::error::JournalError;
use crate::log_area::LogArea;

/// Reads the journal's superblock and checks it against the area.
///
/// # Errors
///
/// `Corrupt` if it is invalid or contradicts the area, `Io`.
pub fn read_superblock(
    device: &dyn Device,
    area: &LogArea,
) -> Result<JournalSuperblock, JournalError> {
    let (home, _) = area.place(0).expect("an area has blocks");
    let offset = home.get().saturating_mul(u64::from(area.block_size()));
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device
        .read_at(offset, &mut bytes)
        .map_err(JournalError::io("reading the journal's superblock"))?;
    let superblock = JournalSuperblock::decode(&bytes).map_err(|corrupt| corrupt.in_block(home))?;
    check_area(&superblock, area).map_err(|corrupt| corrupt.in_block(home))?;
    Ok(superblock)
}

pub(crate) fn check_area(superblock: &JournalSuperblock, area: &LogArea) -> Result<(), Corrupt> {
    let problem = if superblock.block_size != area.block_size() {
        format!(
            "block size is {}, the file system's is {}",
            superblock.block_size,
            area.block_size()
        )
    } else if superblock.max_len > area.blocks() {
        format!(
            "says {} blocks, the journal has {}",
            superblock.max_len,
            area.blocks()
        )
    } else {
        return Ok(());
    };
    Err(Corrupt::new("journal superblock", problem))
}

/// Writes the journal's superblock and makes it durable.
pub(crate) fn write_superblock(
    device: &dyn Device,
    area: &LogArea,
    superblock: &JournalSuperblock,
) -> Result<(), JournalError> {
    let (home, _) = area.place(0).expect("an area has blocks");
    let offset = home.get() * u64::from(area.block_size());
    device
        .write_at(offset, &superblock.encode())
        .and_then(|()| device.flush())
        .map_err(JournalError::io("writing the journal's superblock"))
}

/// Durably declares the log empty without replaying it. The next transaction gets a number that no
/// record in the log can continue.
///
/// # Errors
///
/// `Unsupported` by name, `Io`.
pub fn discard(
    device: &dyn Device,
    area: &LogArea,
    superblock: &mut JournalSuperblock,
) -> Result<(), JournalError> {
    declare_empty(area, superblock)?;
    write_superblock(device, area, superblock)
}

/// As [`discard`], in memory only.
///
/// # Errors
///
/// `Unsupported` by name.
pub fn declare_empty(
    area: &LogArea,
    superblock: &mut JournalSuperblock,
) -> Result<(), JournalError> {
    check_writable(superblock)?;
    superblock.start = 0;
    superblock.sequence = Tid(superblock.sequence.0.wrapping_add(area.blocks()));
    Ok(())
}

/// Fails unless we know all features of a journal that we write to.
pub(crate) fn check_writable(superblock: &JournalSuperblock) -> Result<(), JournalError> {
    if let Some(features) = superblock.incompat.unknown() {
        return Err(JournalError::Unsupported(features));
    }
    match superblock.read_only_compat.unknown() {
        Some(features) => Err(JournalError::Unsupported(features)),
        None => Ok(()),
    }
}

/// The journal's superblock, on the device and in memory.
pub(crate) struct SuperblockFile {
    device: Arc<dyn Device>,
    area: Arc<LogArea>,
    /// See [`Log`](crate::Log).
    keeps_checksums: bool,
    /// Held while writing, so it precedes the device's locks in the order.
    current: Mutex<Current>,
}

struct Current {
    /// As on the device, except for the checksums of an empty log.
    superblock: JournalSuperblock,
    /// An abort has recorded its error; nothing else is written any more.
    is_aborted: bool,
}

impl SuperblockFile {
    /// `superblock` is the one on the device, except for features that the first write adds.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        area: Arc<LogArea>,
        superblock: JournalSuperblock,
        keeps_checksums: bool,
    ) -> Self {
        Self {
            device,
            area,
            keeps_checksums,
            current: Mutex::new(
                Class::Checkpoint,
                Current {
                    superblock,
                    is_aborted: false,
                },
            ),
        }
    }

    /// Makes an empty log start at `start` with `tid`; does nothing if the log has a start already.
    /// Rule 11: this is durable before the first commit record.
    pub(crate) fn begin(&self, start: u32, tid: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            let begins = superblock.start == 0;
            if begins {
                superblock.start = start;
                superblock.sequence = tid;
            }
            begins
        })
    }

    /// Moves the start: everything before it is home and flushed.
    pub(crate) fn move_start(&self, start: u32, tid: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            superblock.start = start;
            superblock.sequence = tid;
            true
        })
    }

    /// Declares the log empty: everything is home and flushed. `next` is the number that it names;
    /// the next mount begins behind it.
    pub(crate) fn finish(&self, next: Tid) -> Result<(), JournalError> {
        self.change(|superblock| {
            let was_begun = superblock.start != 0;
            superblock.start = 0;
            superblock.sequence = next;
            was_begun
        })
    }

    /// Records the error of an abort for the next mount of the image.
    pub(crate) fn record_error(&self, errno: i32) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        current.is_aborted = true;
        current.superblock.errno = errno;
        write_superblock(&*self.device, &self.area, &current.superblock)
    }

    /// Clears the error that an earlier abort recorded.
    pub(crate) fn clear_error(&self) -> Result<(), JournalError> {
        self.change(|superblock| std::mem::take(&mut superblock.errno) != 0)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut JournalSuperblock) -> bool,
    ) -> Result<(), JournalError> {
        let mut current = self.current.lock();
        if current.is_aborted {
            return Err(JournalError::ShutDown);
        }
        let mut changed = current.superblock.clone();
        if change(&mut changed) {
            let mut written = changed.clone();
            if written.start == 0 && !self.keeps_checksums {
                written.incompat.remove(JournalIncompat::CSUM_V3);
            }
            write_superblock(&*self.device, &self.area, &written)?;
            current.superblock = changed;
        }
        Ok(())
    }
}
