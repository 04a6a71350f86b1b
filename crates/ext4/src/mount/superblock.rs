//! Reading the superblock, a substitute if its checksum is wrong, and the errors that it records,
//! which a replay must not lose.
//!
//! The primary superblock occupies two sectors. A power cut may tear a write of it: one sector is
//! old, the other new. Both sectors are intact then, so every field has a value that was written on
//! purpose, and the primary is used as it was read. It counts as torn if it equals the copy in
//! group 1 in every field that mounts do not change. The copy cannot replace a torn primary, since
//! it lacks orphans, state, errors, and features that were set after it was written.
//!
//! If the two differ in a field that mounts do not change, the primary is damaged. No field of it
//! is used then: the mount reads by the copy, and it is turned read-only.
//!
//! A file system of one group has no copy. Its torn primary is a way to the log, which may hold a
//! whole superblock; otherwise the checksums of other structures have to agree with it
//! ([`lone_superblock`]).

use pext4_block::Device;
use pext4_ondisk::Corrupt;
use pext4_ondisk::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::superblock::{
    Flags, OFFSET as SUPERBLOCK_OFFSET, SIZE as SUPERBLOCK_SIZE, State, Superblock,
};

use super::lone_superblock;
use crate::error::{Error, Result};
use crate::options::MountOptions;

/// Features that a mount or a check may set or clear.
const CHANGED_FEATURES: Features = Features {
    compat: Compat::EXT_ATTR,
    incompat: Incompat::RECOVER.union(Incompat::EXTENTS),
    read_only_compat: ReadOnlyCompat::LARGE_FILE
        .union(ReadOnlyCompat::HUGE_FILE)
        .union(ReadOnlyCompat::DIR_NLINK)
        .union(ReadOnlyCompat::ORPHAN_PRESENT),
};

/// A superblock as it was found.
pub(super) struct Found {
    superblock: Superblock,
    evidence: Evidence,
}

/// Why a superblock is used.
enum Evidence {
    /// Its checksum is right.
    Checksum,
    /// The copy in group 1.
    Copy,
    /// None yet: the checksum is wrong, for the reason that a torn write has, or this one.
    Missing(Corrupt),
}

impl Found {
    /// The superblock with which the log is sought. Nothing may be written by it yet.
    pub(super) fn to_seek_the_log(&self) -> &Superblock {
        &self.superblock
    }

    /// The superblock, which describes the file system on `device`.
    ///
    /// # Errors
    ///
    /// `Corrupt` if its checksum is wrong, and others on the device do not agree with it; `Io`.
    pub(super) fn confirmed(self, device: &dyn Device) -> Result<Superblock> {
        if let Evidence::Missing(corrupt) = self.evidence
            && !lone_superblock::agrees_with(device, &self.superblock)?
        {
            return Err(corrupt.into());
        }
        Ok(self.superblock)
    }

    /// Reads the superblock that a replay leaves, after this one was found before it. A log must
    /// not replace a superblock that is whole by one that is not.
    ///
    /// # Errors
    ///
    /// As [`read`] and [`Found::confirmed`].
    pub(super) fn as_replayed(
        &self,
        view: &dyn Device,
        options: &mut MountOptions,
        notes: &mut Vec<String>,
    ) -> Result<Superblock> {
        if let Evidence::Checksum = self.evidence {
            let decoded = Superblock::decode(&read_bytes(view)?);
            return decoded
                .map_err(|corrupt| corrupt.adding("so the journal's log left it").into());
        }
        read(view, options, notes)?.confirmed(view)
    }
}

/// Reads the superblock. If its checksum is wrong, this returns the primary if it is torn or has no
/// copy, and otherwise the copy in group 1, and turns the mount read-only; a note is added to
/// `notes`, once.
///
/// # Errors
///
/// `Corrupt` if neither can be used, `NotExt4` if there is neither, `Io`.
pub(super) fn read(
    device: &dyn Device,
    options: &mut MountOptions,
    notes: &mut Vec<String>,
) -> Result<Found> {
    let bytes = read_bytes(device)?;
    let corrupt = match Superblock::decode(&bytes) {
        Ok(superblock) => {
            return Ok(Found {
                superblock,
                evidence: Evidence::Checksum,
            });
        }
        Err(corrupt) => corrupt,
    };
    let Ok(primary) = Superblock::decode_unverified(&bytes) else {
        // Without the magic number it is damaged only if the file system can be seen elsewhere.
        return Err(match copies(device, None).next() {
            Some(_) => corrupt.into(),
            None => Error::NotExt4 {
                magic: Superblock::magic_of(&bytes),
            },
        });
    };
    // The magic number and the UUID, in the first sector, identify the copy.
    let copy = copies(device, Some(&primary)).find(|copy| copy.uuid == primary.uuid);
    let (mut superblock, evidence, note) = match copy {
        Some(copy) if is_torn(&primary, &copy) => {
            let note = format!("{corrupt}; a torn write explains it, by the copy in group 1");
            (primary, Evidence::Copy, note)
        }
        Some(copy) => {
            options.read_only = true;
            let advice =
                "mounted read-only by the copy in group 1, until e2fsck -f has repaired the image";
            let note = format!("{corrupt}, which no torn write explains: {advice}");
            (copy, Evidence::Copy, note)
        }
        None if lone_superblock::is_alone(&primary) => {
            let note = format!("{corrupt}; a torn write explains it, as far as can be seen");
            (primary, Evidence::Missing(corrupt), note)
        }
        None => return Err(corrupt.into()),
    };
    if superblock.features.has_compat(Compat::HAS_JOURNAL) {
        // Neither records reliably whether the journal has to be replayed, so it is replayed.
        superblock.features.incompat |= Incompat::RECOVER;
    }
    if !notes.contains(&note) {
        notes.push(note);
    }
    Ok(Found {
        superblock,
        evidence,
    })
}

/// Whether the primary has all that the copy has, but for what mounts change.
fn is_torn(primary: &Superblock, copy: &Superblock) -> bool {
    primary.encode() == expected_primary(copy, primary).encode()
}

fn read_bytes(device: &dyn Device) -> Result<[u8; SUPERBLOCK_SIZE]> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let size = device.size();
    if size < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        return Err(Error::TooShort { size });
    }
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    Ok(bytes)
}

/// The copies of superblocks where group 1 begins, if the groups have the usual size or that which
/// `primary` gives. A place that cannot be read is skipped: it may be one at which this image has
/// no copy.
fn copies<'d>(
    device: &'d dyn Device,
    primary: Option<&Superblock>,
) -> impl Iterator<Item = Superblock> + use<'d> {
    /// The block size, and the first block of group 1.
    const FIRST_COPIES: [(u32, u64); 3] = [(4096, 32768), (1024, 8193), (2048, 16384)];
    let own = primary.and_then(|primary| {
        let block_size = 1024u32.checked_shl(primary.log_block_size)?;
        let first = u64::from(primary.first_data_block) + u64::from(primary.blocks_per_group);
        Some((block_size, first))
    });
    let places = own.into_iter().chain(FIRST_COPIES);
    places.filter_map(|(block_size, block)| {
        let offset = block.checked_mul(u64::from(block_size))?;
        if offset.checked_add(SUPERBLOCK_SIZE as u64)? > device.size() {
            return None;
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(offset, &mut bytes).ok()?;
        let mut copy = Superblock::decode(&bytes).ok()?;
        let has_block_size = 1024u32.checked_shl(copy.log_block_size) == Some(block_size);
        copy.block_group = 0;
        has_block_size.then_some(copy)
    })
}

/// The primary as it would be if only mounts and checks had changed it since the copy was written:
/// the copy, with the fields of `primary` that those change.
fn expected_primary(copy: &Superblock, primary: &Superblock) -> Superblock {
    let mut expected = copy.clone();
    set_changed_features(&mut expected.features, &primary.features);
    expected.state = primary.state;
    expected.last_orphan = primary.last_orphan;
    expected.free_blocks = primary.free_blocks;
    expected.free_inodes = primary.free_inodes;
    expected.mount_time = primary.mount_time;
    expected.write_time = primary.write_time;
    expected.check_time = primary.check_time;
    expected.mount_count = primary.mount_count;
    expected.last_mounted = primary.last_mounted;
    expected.kbytes_written = primary.kbytes_written;
    expected.error_count = primary.error_count;
    expected.first_error = primary.first_error.clone();
    expected.last_error = primary.last_error.clone();
    // The first mount records the signedness of the hash of names; no mount changes the other
    // flags.
    let set_by_mount = Flags::SIGNED_HASH | Flags::UNSIGNED_HASH;
    expected.flags = (copy.flags - set_by_mount) | (primary.flags & set_by_mount);
    expected.overhead_clusters = primary.overhead_clusters;
    expected.journal_backup_type = primary.journal_backup_type;
    expected.journal_backup = primary.journal_backup;
    expected.lost_found_inode = primary.lost_found_inode;
    // A crash may have left the copies with another label than the primary.
    expected.volume_name = primary.volume_name;
    expected
}

fn set_changed_features(expected: &mut Features, primary: &Features) {
    let changed = CHANGED_FEATURES;
    expected.compat = (expected.compat - changed.compat) | (primary.compat & changed.compat);
    expected.incompat =
        (expected.incompat - changed.incompat) | (primary.incompat & changed.incompat);
    expected.read_only_compat = (expected.read_only_compat - changed.read_only_compat)
        | (primary.read_only_compat & changed.read_only_compat);
}

/// Keeps errors that were recorded in the superblock on disk without the journal, which the replay
/// overwrote; an abort of the journal counts as an error too. The error count in the log may be the
/// higher one, although the last error was recorded on disk.
pub(super) fn keep_errors(superblock: &mut Superblock, before: &Superblock, had_stopped: bool) {
    let is_older = before.last_error.time < superblock.last_error.time;
    if before.error_count > 0 && !is_older && before.last_error != superblock.last_error {
        if superblock.error_count == 0 {
            superblock.first_error = before.first_error.clone();
        }
        let one_more = superblock.error_count.saturating_add(1);
        superblock.error_count = before.error_count.max(one_more);
        superblock.last_error = before.last_error.clone();
    }
    if had_stopped || before.state.contains(State::ERRORS) {
        superblock.state.insert(State::ERRORS);
    }
}

/// The same in the bytes of the superblock that a replay is about to write.
pub(super) fn keep_errors_in(logged: &mut [u8], before: &Superblock, had_stopped: bool) {
    let Some(bytes) = logged.first_chunk_mut::<SUPERBLOCK_SIZE>() else {
        return;
    };
    // One that is not sound was refused before.
    if let Ok(mut superblock) = Superblock::decode(bytes) {
        keep_errors(&mut superblock, before, had_stopped);
        *bytes = superblock.encode();
    }
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::superblock::ERROR_CORRUPTED;
    use pext4_ondisk::superblock::Superblock;
    use pext4_ondisk::{BlockNumber, Corrupt};

    use super::keep_errors;

    /// A superblock in which errors were recorded at these times.
    fn noted(times: &[i64]) -> Superblock {
        let mut bytes = [0; 1024];
        bytes[0x38..0x3A].copy_from_slice(&[0x53, 0xEF]);
        let mut superblock =
            Superblock::decode_unverified(&bytes).expect("the magic number is there");
        for &time in times {
            let corrupt = Corrupt::new("test", "noted").in_block(BlockNumber(time.unsigned_abs()));
            superblock.record_error(&corrupt, ERROR_CORRUPTED, time);
        }
        superblock
    }

    #[test]
    fn the_last_error_survives_the_replay_whichever_count_is_higher() {
        // Errors in the log, errors on disk, the resulting count, and the time of the last one.
        for (log, home, count, last) in [
            (&[][..], &[][..], 0, 0),
            (&[], &[5], 1, 5),
            (&[1, 2, 3], &[], 3, 3),
            (&[1, 2, 3], &[1, 9], 4, 9),
            (&[1, 2, 3], &[1, 2, 3, 9], 4, 9),
            (&[1, 2, 3], &[1, 2], 3, 3),
            (&[1, 2, 3], &[1, 2, 3], 3, 3),
        ] {
            let mut replayed = noted(log);
            keep_errors(&mut replayed, &noted(home), false);
            let first = log.first().or(home.first()).copied().unwrap_or(0);
            let kept = (
                replayed.error_count,
                replayed.first_error.time,
                replayed.last_error.time,
            );
            assert_eq!(kept, (count, first, last), "{log:?} {home:?}");
        }
    }
}
