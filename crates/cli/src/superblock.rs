//! Reads the superblock of an image without opening the file system.

use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use pext4_block::{Device, FileDevice, open_unlocked};
use pext4_fs::Error::NotExt4;
use pext4_ondisk::Corrupt;
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::superblock::{self, State, Superblock};

use crate::partitions;

/// A superblock, and where it was found.
pub struct Found {
    pub superblock: Superblock,
    /// What is wrong with it, if its checksum is.
    pub damage: Option<Corrupt>,
    /// The bytes of the file from where the file system begins.
    pub room: u64,
}

/// Reads and checks the superblock of a file system that begins at byte `start` of a file. Takes no
/// lock: it may be mounted.
///
/// # Errors
///
/// The file cannot be read, or is not an ext4, or the superblock is damaged.
pub fn read(image: &Path, start: u64) -> Result<Superblock> {
    let found = find(image, start)?;
    match found.damage {
        None => Ok(found.superblock),
        Some(corrupt) => {
            Err(pext4_fs::Error::from(corrupt)).with_context(|| image.display().to_string())
        }
    }
}

/// As [`read`], also if the checksum is wrong.
///
/// # Errors
///
/// As [`read`].
pub fn find(image: &Path, start: u64) -> Result<Found> {
    let name = || image.display().to_string();
    let mut file = open_unlocked(image)?;
    let size = file.seek(SeekFrom::End(0)).with_context(name)?;
    partitions::refuse_disk_of(image, size.saturating_sub(start), |at, into| {
        file.read_exact_at(into, start.saturating_add(at))
    })?;
    let mut bytes = [0; superblock::SIZE];
    file.read_exact_at(&mut bytes, start.saturating_add(superblock::OFFSET))
        .map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => anyhow!("it is too short for an ext4 file system"),
            _ => error.into(),
        })
        .with_context(name)?;
    let magic = Superblock::magic_of(&bytes);
    if magic != superblock::MAGIC {
        return Err(NotExt4 { magic }).with_context(name);
    }
    let (superblock, damage) = match Superblock::decode(&bytes) {
        Ok(superblock) => (Ok(superblock), None),
        Err(corrupt) => (Superblock::decode_unverified(&bytes), Some(corrupt)),
    };
    let superblock = superblock.map_err(pext4_fs::Error::from);
    Ok(Found {
        superblock: superblock.with_context(name)?,
        damage,
        room: size.saturating_sub(start),
    })
}

/// Whether a file system allocates clusters of blocks (`bigalloc`). One that cannot be read does
/// not.
pub fn has_clusters(device: &FileDevice) -> bool {
    let mut bytes = [0; superblock::SIZE];
    let read = device.read_at(superblock::OFFSET, &mut bytes);
    let decoded = read.ok().map(|()| Superblock::decode_unverified(&bytes));
    decoded.is_some_and(|decoded| {
        decoded.is_ok_and(|found| {
            found
                .features
                .has_read_only_compat(ReadOnlyCompat::BIGALLOC)
        })
    })
}

/// Whether the journal needs replay.
pub fn needs_replay(superblock: &Superblock) -> bool {
    superblock.features.has_incompat(Incompat::RECOVER)
}

/// Why an image that nobody has open is not clean, and what it needs next. An image without a
/// journal that was not clean when it was mounted is not marked clean by an orderly close either.
pub fn unfinished(superblock: &Superblock) -> Option<&'static str> {
    let has_journal = superblock.features.has_compat(Compat::HAS_JOURNAL);
    if needs_replay(superblock) {
        Some("was not closed cleanly; the next mount replays its journal")
    } else if !has_journal && !superblock.state.contains(State::CLEAN) {
        Some(
            "is not marked clean: this mount or an earlier one was not closed cleanly, and as it has no journal \
             `e2fsck -f` must check it",
        )
    } else {
        None
    }
}
