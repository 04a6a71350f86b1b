//! Multiple mount protection: of the machines that share a device, one writes to a file system.
//!
//! Locks of files do not reach other machines. With the feature `mmp`, one block of the file system
//! tells them: who writes to it changes the sequence in that block at intervals.
//!
//! - *Claiming*, before the first write of a mount. Unless the block says that nobody uses the file
//!   system, the mount waits for longer than a user takes to change the sequence, and refuses if it
//!   has changed. Then it writes a random sequence of its own, waits again, and looks whether it is
//!   still there: of several machines that claim at the same time, the last one that wrote finds
//!   its own. The second wait is as long as the first, or a second if nobody used the file system
//!   (Linux does not wait then, and finds out at the first renewal).
//! - *Keeping* ([`keeper`]): a thread looks at the sequence in each interval and writes the next
//!   one. If another machine has changed it, or it was not written for too long (also if the write
//!   then succeeds), this one has lost the file system: all its further writes are refused, also
//!   those of buffers that it still holds, and the volume is read-only.
//! - *Releasing*: the block says that nobody uses the file system. It is left alone if another
//!   machine does.
//!
//! The block is in no transaction, and a mount that only reads ignores it. What this machine has
//! cached is forgotten before each look, and once the claim is made, of the whole device: what was
//! read earlier may be from before another machine's last writes.
//!
//! Source: the kernel's `Documentation/filesystems/ext4/mmp.rst`, which leaves the times open; they
//! are those of Linux.

mod keeper;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use pext4_block::{Device, FencedDevice};
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::mmp::{Mmp, SEQUENCE_CLEAN, SEQUENCE_MAX, SIZE, Use};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, Corrupt};
use pext4_sync::time;

use crate::error::{Error, ErrorText, Result};
use crate::store::now;

pub use keeper::Keeper;

/// Seconds between updates if the superblock names none.
const DEFAULT_INTERVAL: u16 = 5;
/// The longest time between updates, in seconds.
const MAX_INTERVAL: u16 = 300;
/// What others assume at least about the time between updates, in seconds.
const MIN_CHECK_INTERVAL: u16 = 5;
/// How long others that claim an unused file system at the same time may take from reading the
/// block to writing it.
const SHORT_WAIT: Duration = Duration::from_secs(1);
/// What is written as the name of the device.
const DEVICE_NAME: &[u8] = b"pext4";

/// A file system that this machine has claimed. Dropping it releases it.
pub struct Claim {
    block: SharedBlock,
    fence: Arc<FencedDevice>,
    /// What the block said when it was last written or looked at.
    mmp: Mmp,
    /// The sequence of a write that failed, and may have reached the device all the same.
    attempted: Option<u32>,
    /// When the last write that succeeded began, by this machine's clock.
    renewed: Duration,
    /// Time between two updates.
    interval: Duration,
    /// The interval that the block named before, in seconds.
    found_interval: u16,
    is_released: bool,
}

/// The block by which machines know of each other.
struct SharedBlock {
    device: Arc<dyn Device>,
    number: BlockNumber,
    /// Where it begins, in bytes.
    offset: u64,
    /// The seed of its checksum, if it has one.
    seed: Option<u32>,
}

impl SharedBlock {
    fn new(device: Arc<dyn Device>, superblock: &Superblock, geometry: &Geometry) -> Result<Self> {
        let number = superblock.mmp_block;
        if !geometry.contains(number, 1) {
            let corrupt = Corrupt::new("multiple-mount block", "lies outside the file system");
            return Err(corrupt.in_block(number).into());
        }
        Ok(Self {
            device,
            number,
            offset: number.get() * u64::from(geometry.block_size),
            seed: geometry.checksum_seed(),
        })
    }

    /// Reads what is on the device now, whoever wrote it.
    fn read(&self) -> Result<Mmp> {
        let mut bytes = [0; SIZE];
        self.device.forget(self.offset..self.offset + SIZE as u64);
        self.device.read_at(self.offset, &mut bytes)?;
        let decoded = Mmp::decode(&bytes, self.seed);
        Ok(decoded.map_err(|corrupt| corrupt.in_block(self.number))?)
    }

    /// Writes it so that every machine sees it.
    fn write(&self, mmp: &Mmp) -> Result<()> {
        let mut bytes = [0; SIZE];
        mmp.encode(&mut bytes, self.seed);
        self.device.write_at(self.offset, &bytes)?;
        Ok(self.device.flush()?)
    }

    /// Fails unless the sequence is one of these, and returns it.
    fn expect(&self, sequences: &[u32]) -> Result<u32> {
        let mmp = self.read()?;
        match sequences.contains(&mmp.sequence) {
            true => Ok(mmp.sequence),
            false => Err(self.in_use(&mmp)),
        }
    }

    fn in_use(&self, mmp: &Mmp) -> Error {
        let block = self.number.get();
        Error::InUse(ErrorText::new(match mmp.usage() {
            Use::Checking => format!(
                "a checker uses it, or has ended early, says block {block} (mmp); if none does, \
                 `tune2fs -f -E clear_mmp` clears that"
            ),
            Use::Mounted(_) => format!(
                "the machine {} has it mounted: it changes block {block} (mmp)",
                name_in(&mmp.node_name)
            ),
            Use::Clean => format!("another machine had it mounted just now: see block {block}"),
            Use::Unknown(sequence) => format!(
                "block {block} (mmp) has the unknown sequence {sequence:#010X}; if no other \
                 machine uses it, `tune2fs -f -E clear_mmp` clears that"
            ),
        }))
    }
}

impl Claim {
    /// Claims the file system on `device`, if it has the protection, calling `wait` for each time
    /// that is to pass. The superblock must be read anew afterwards.
    ///
    /// # Errors
    ///
    /// `InUse`; `Corrupt` if the block is none; `Io`.
    pub fn take(
        device: &Arc<dyn Device>,
        superblock: &Superblock,
        geometry: &Geometry,
        wait: &mut dyn FnMut(Duration),
    ) -> Result<Option<Self>> {
        if !superblock.features.has_incompat(Incompat::MMP) {
            return Ok(None);
        }
        let fence = Arc::new(FencedDevice::new(Arc::clone(device)));
        let fenced = Arc::clone(&fence) as Arc<dyn Device>;
        let block = SharedBlock::new(fenced, superblock, geometry)?;
        let found = block.read()?;
        let time_to_pass = match found.usage() {
            Use::Clean => SHORT_WAIT,
            Use::Mounted(_) => time_to_pass(superblock, &found),
            Use::Checking | Use::Unknown(_) => return Err(block.in_use(&found)),
        };
        if found.usage() != Use::Clean {
            wait(time_to_pass);
            block.expect(&[found.sequence])?;
        }
        let interval = interval(superblock);
        let found_interval = found.check_interval;
        let mut mmp = found;
        mmp.sequence = random_sequence();
        mmp.check_interval = check_interval(interval);
        let mut claim = Self {
            block,
            fence,
            mmp,
            attempted: None,
            renewed: time::now(),
            interval: Duration::from_secs(interval.into()),
            found_interval,
            is_released: false,
        };
        claim.write()?;
        wait(time_to_pass);
        claim.check()?;
        // Nobody else has claimed it until now.
        claim.renewed = time::now();
        claim.block.device.forget(0..claim.block.device.size());
        Ok(Some(claim))
    }

    /// The device, which refuses writes once the file system is lost.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.block.device)
    }

    /// Fails if another machine has claimed the file system.
    fn check(&mut self) -> Result<()> {
        let own = [
            self.mmp.sequence,
            self.attempted.unwrap_or(self.mmp.sequence),
        ];
        self.mmp.sequence = self.block.expect(&own)?;
        self.attempted = None;
        Ok(())
    }

    /// Writes the next sequence. If that fails with `Io`, the claim is kept, and this may be called
    /// again.
    ///
    /// # Errors
    ///
    /// `InUse` if another machine has claimed the file system, or could have because this one was
    /// silent for too long. A write that ends too late may have replaced another's sequence.
    fn renew(&mut self) -> Result<()> {
        self.check()?;
        self.check_in_time()?;
        let began = time::now();
        self.write_next()?;
        self.check_in_time()?;
        self.renewed = began;
        Ok(())
    }

    fn write_next(&mut self) -> Result<()> {
        let before = self.mmp.sequence;
        let next = match before {
            SEQUENCE_MAX => 1,
            sequence => sequence + 1,
        };
        self.mmp.sequence = next;
        let written = self.write();
        if written.is_err() {
            self.mmp.sequence = before;
            self.attempted = Some(next);
        }
        written
    }

    /// Fails if another machine could have claimed the file system since the last renewal.
    fn check_in_time(&self) -> Result<()> {
        if self.is_overdue() {
            let number = self.block.number.get();
            return Err(Error::InUse(ErrorText::new(format!(
                "another machine may have claimed it: block {number} (mmp) was not renewed for \
                 more than {} s",
                self.longest_silence().as_secs()
            ))));
        }
        Ok(())
    }

    /// Whether updates have failed or waited for so long that another machine could claim the file
    /// system.
    fn is_overdue(&self) -> bool {
        time::now().saturating_sub(self.renewed) > self.longest_silence()
    }

    /// For how long there may be no update. Others wait for longer before they claim what is not
    /// renewed.
    fn longest_silence(&self) -> Duration {
        Duration::from_secs(self.mmp.check_interval.into())
    }

    fn write(&mut self) -> Result<()> {
        self.mmp.time = now().seconds.try_into().unwrap_or(0);
        self.mmp.node_name = padded(node_name().as_bytes());
        self.mmp.device_name = padded(DEVICE_NAME);
        self.block.write(&self.mmp)
    }

    /// Says that nobody uses the file system, unless another machine does.
    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_released, true) || self.fence.reason().is_some() {
            return Ok(());
        }
        self.check()?;
        self.mmp.sequence = SEQUENCE_CLEAN;
        self.mmp.check_interval = self.found_interval;
        self.write()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Who wants the error has released it. The others wait for longer before they claim it.
        let _ = self.release();
    }
}

/// How long the claim of a file system takes, if it has the protection and its user, if there was
/// one, has gone without saying so.
///
/// # Errors
///
/// As [`Claim::take`], but for a file system in use.
pub fn claim_time(
    device: &Arc<dyn Device>,
    superblock: &Superblock,
    geometry: &Geometry,
) -> Result<Option<Duration>> {
    if !superblock.features.has_incompat(Incompat::MMP) {
        return Ok(None);
    }
    let found = SharedBlock::new(Arc::clone(device), superblock, geometry)?.read()?;
    Ok(Some(match found.usage() {
        Use::Mounted(_) => 2 * time_to_pass(superblock, &found),
        Use::Clean | Use::Checking | Use::Unknown(_) => SHORT_WAIT,
    }))
}

/// How long a user of the file system needs at most to change the block.
fn time_to_pass(superblock: &Superblock, mmp: &Mmp) -> Duration {
    let interval = superblock.mmp_update_interval.max(mmp.check_interval);
    let interval = u64::from(interval.clamp(MIN_CHECK_INTERVAL, MAX_INTERVAL));
    Duration::from_secs((2 * interval + 1).min(interval + 60))
}

/// Seconds between two updates.
fn interval(superblock: &Superblock) -> u16 {
    match superblock.mmp_update_interval {
        0 => DEFAULT_INTERVAL,
        seconds => seconds.min(MAX_INTERVAL),
    }
}

/// Seconds in which others may expect an update.
fn check_interval(interval: u16) -> u16 {
    interval
        .saturating_mul(2)
        .clamp(MIN_CHECK_INTERVAL, MAX_INTERVAL)
}

/// A sequence of a mount that no other machine is likely to choose.
fn random_sequence() -> u32 {
    let random = RandomState::new().hash_one(now());
    1 + u32::try_from(random % u64::from(SEQUENCE_MAX)).unwrap_or(0)
}

fn node_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// A name of the block, for people.
fn name_in(bytes: &[u8]) -> String {
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    format!("{:?}", String::from_utf8_lossy(name))
}

/// A name as the block has it, cut and padded with NUL bytes.
fn padded<const ROOM: usize>(name: &[u8]) -> [u8; ROOM] {
    let mut bytes = [0; ROOM];
    let length = name.len().min(ROOM - 1);
    bytes[..length].copy_from_slice(&name[..length]);
    bytes
}

#[cfg(test)]
mod tests;
