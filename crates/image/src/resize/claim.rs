//! Keeps other machines away from an image with multiple mount protection while it is resized.
//!
//! From before the journal is replayed until the end, the block of the protection says that the
//! image is being checked, as other tools say it that work on an image without mounting it: a mount
//! elsewhere is refused at once. If another machine writes the block at the same moment, the last
//! one that wrote finds its own mark when it looks again after a second, and the others leave.
//! At the end the block is as it was found, wherever the resize has put it. If the process is
//! killed, the mark stays, until `tune2fs -f -E clear_mmp` clears it.

use std::hash::{BuildHasher, RandomState};
use std::ops::{Deref, DerefMut, Range};
use std::time::Duration;

use pext4_block::{Device, FileDevice};
use pext4_ondisk::Corrupt;
use pext4_ondisk::feature::Incompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::mmp::{Mmp, SEQUENCE_CHECKING, SIZE, Use};
use pext4_ondisk::superblock::Superblock;
use pext4_sync::{thread, time};

use super::image::read_superblock;
use crate::error::{Error, Result};

/// How long another machine may take from reading the block to writing it.
const TIME_TO_PASS: Duration = Duration::from_secs(1);

/// A device whose image no other machine uses until this is dropped.
pub(super) struct ClaimedDevice {
    device: FileDevice,
    claim: Option<Claim>,
}

/// What the block said, and what it says while the image is claimed.
struct Claim {
    found: Mmp,
    mark: Mmp,
}

/// Where the block lies in bytes, and the seed of its checksum.
struct Place {
    bytes: Range<u64>,
    seed: Option<u32>,
}

impl ClaimedDevice {
    /// Claims the image on a device, if it has the protection.
    ///
    /// # Errors
    ///
    /// `Impossible` if it is in use; `Corrupt`; `Io`.
    pub fn claim(device: FileDevice) -> Result<Self> {
        let claim = Claim::take(&device, &mut thread::sleep)?;
        Ok(Self { device, claim })
    }

    /// Says in the copy on `clone` that nobody uses it.
    pub fn release_clone(&self, clone: &dyn Device) -> Result<()> {
        match &self.claim {
            Some(claim) => claim.give_back(clone),
            None => Ok(()),
        }
    }

    /// Says that nobody uses the image any more.
    pub fn release(&mut self) -> Result<()> {
        match self.claim.take() {
            Some(claim) => claim.give_back(&self.device),
            None => Ok(()),
        }
    }
}

impl Deref for ClaimedDevice {
    type Target = FileDevice;

    fn deref(&self) -> &FileDevice {
        &self.device
    }
}

impl DerefMut for ClaimedDevice {
    fn deref_mut(&mut self) -> &mut FileDevice {
        &mut self.device
    }
}

impl Drop for ClaimedDevice {
    fn drop(&mut self) {
        // Only after an error, which tells more than that the mark has stayed.
        let _ = self.release();
    }
}

/// Refuses an image that another machine uses. Writes nothing.
pub(super) fn check_unused(device: &dyn Device) -> Result<()> {
    let Some(place) = Place::of(device)? else {
        return Ok(());
    };
    match place.read(device)?.usage() {
        Use::Clean => Ok(()),
        Use::Checking => Err(in_use("is being checked or resized")),
        Use::Mounted(_) | Use::Unknown(_) => Err(in_use("is in use")),
    }
}

fn in_use(how: &str) -> Error {
    Error::Impossible(format!(
        "its multiple-mount block says that it {how}; if no machine uses it, `tune2fs -f -E \
         clear_mmp` clears that"
    ))
}

impl Claim {
    fn take(device: &dyn Device, wait: &mut dyn FnMut(Duration)) -> Result<Option<Self>> {
        let Some(place) = Place::of(device)? else {
            return Ok(None);
        };
        check_unused(device)?;
        let found = place.read(device)?;
        let mut mark = found.clone();
        mark.sequence = SEQUENCE_CHECKING;
        let random = RandomState::new().hash_one(time::since_epoch());
        mark.device_name[..16].copy_from_slice(format!("{random:016x}").as_bytes());
        place.write(device, &mark)?;
        wait(TIME_TO_PASS);
        let claim = Self { found, mark };
        if !claim.is_mark(&place.read(device)?) {
            return Err(in_use("came into use just now"));
        }
        Ok(Some(claim))
    }

    fn is_mark(&self, mmp: &Mmp) -> bool {
        (mmp.sequence, mmp.device_name) == (self.mark.sequence, self.mark.device_name)
    }

    /// Writes what was found, unless the block is another's by now.
    fn give_back(&self, device: &dyn Device) -> Result<()> {
        match Place::of(device)? {
            Some(place) if self.is_mark(&place.read(device)?) => place.write(device, &self.found),
            _ => Ok(()),
        }
    }
}

impl Place {
    /// Where the superblock says that the block is; none without the feature.
    fn of(device: &dyn Device) -> Result<Option<Self>> {
        let superblock: Superblock = read_superblock(device)?;
        if !superblock.features.has_incompat(Incompat::MMP) {
            return Ok(None);
        }
        let geometry = Geometry::of(&superblock)?;
        let block = superblock.mmp_block;
        if !geometry.contains(block, 1) {
            let corrupt = Corrupt::new("superblock", "its multiple-mount block lies outside");
            return Err(corrupt.in_block(block).into());
        }
        let start = block.get() * u64::from(geometry.block_size);
        Ok(Some(Self {
            bytes: start..start + SIZE as u64,
            seed: geometry.checksum_seed(),
        }))
    }

    /// Reads what is on the device now, whoever wrote it.
    fn read(&self, device: &dyn Device) -> Result<Mmp> {
        let mut bytes = [0; SIZE];
        device.forget(self.bytes.clone());
        device.read_at(self.bytes.start, &mut bytes)?;
        Ok(Mmp::decode(&bytes, self.seed)?)
    }

    /// Writes it so that every machine sees it.
    fn write(&self, device: &dyn Device, mmp: &Mmp) -> Result<()> {
        let mut bytes = [0; SIZE];
        mmp.encode(&mut bytes, self.seed);
        device.write_at(self.bytes.start, &bytes)?;
        Ok(device.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use pext4_block::RamDevice;

    use super::{Claim, Place, SEQUENCE_CHECKING, Use, check_unused};

    fn image() -> Option<RamDevice> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let made = Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-O", "mmp"])
            .arg(file.path())
            .arg("8M")
            .status();
        match made {
            Ok(status) if status.success() => Some(RamDevice::load(file.path()).expect("an image")),
            _ => {
                eprintln!("SKIPPED: mke2fs is not installed");
                None
            }
        }
    }

    #[test]
    fn a_claimed_image_is_used_by_nobody_else_and_left_as_it_was() {
        let Some(device) = image() else {
            return;
        };
        let place = Place::of(&device).expect("sound").expect("the feature");
        let found = place.read(&device).expect("sound");
        let mut waits = 0;
        let claim = Claim::take(&device, &mut |_| waits += 1).expect("nobody uses it");
        let claim = claim.expect("it has the feature");
        assert_eq!(waits, 1);
        let marked = place.read(&device).expect("sound");
        assert_eq!(marked.usage(), Use::Checking);
        assert!(Claim::take(&device, &mut |_| ()).is_err());
        assert!(check_unused(&device).is_err());
        claim.give_back(&device).expect("memory");
        assert_eq!(place.read(&device).expect("sound"), found);
    }

    #[test]
    fn of_two_machines_the_last_one_has_it() {
        let Some(device) = image() else {
            return;
        };
        let place = Place::of(&device).expect("sound").expect("the feature");
        let mut others = place.read(&device).expect("sound");
        for sequence in [7, SEQUENCE_CHECKING] {
            let before = place.read(&device).expect("sound");
            others.sequence = sequence;
            let lost = Claim::take(&device, &mut |_| {
                place.write(&device, &others).expect("memory");
            });
            let error = lost.err().expect("the other has it").to_string();
            assert!(error.contains("just now"), "{error}");
            let left = place.read(&device).expect("sound");
            assert_eq!(left.sequence, sequence, "it was left alone");
            place.write(&device, &before).expect("memory");
        }
    }
}
