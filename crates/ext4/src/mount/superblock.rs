//! Reading the superblock, and what stands in for one whose checksum is wrong.
//!
//! The primary is two sectors, and a power cut may leave the one from before a write and the other from after it.
//! Both are whole then, so every field is one that was meant, whichever write it is of: the primary can be used as
//! it is read. That this is what happened is seen by the copy in group 1, which holds what no mount changes. The
//! copy itself would not do: it knows no orphans, no state, no errors and no features that were set since it was
//! made. Where the two differ in what no mount changes, the primary is damaged: nothing in it is believed, the copy
//! shows where everything lies, and nothing is written.

use pext4_block::Device;
use pext4_ondisk::Corrupt;
use pext4_ondisk::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::superblock::{Flags, Superblock};

use crate::error::Result;
use crate::options::MountOptions;
use crate::store::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

/// Features that are set and cleared while mounted, or when an image is checked.
const CHANGED_FEATURES: Features = Features {
    compat: Compat::EXT_ATTR,
    incompat: Incompat::RECOVER.union(Incompat::EXTENTS),
    read_only_compat: ReadOnlyCompat::LARGE_FILE
        .union(ReadOnlyCompat::HUGE_FILE)
        .union(ReadOnlyCompat::DIR_NLINK)
        .union(ReadOnlyCompat::ORPHAN_PRESENT),
};

/// The superblock; where its checksum is wrong, the one that a torn write left or, for a mount that is turned
/// read-only, its copy in group 1. A note says so, once.
///
/// # Errors
///
/// `Corrupt` where neither can be used, `Io`.
pub(super) fn read(
    device: &dyn Device,
    options: &mut MountOptions,
    notes: &mut Vec<String>,
) -> Result<Superblock> {
    let bytes = read_bytes(device)?;
    let corrupt = match Superblock::decode(&bytes) {
        Ok(superblock) => return Ok(superblock),
        Err(corrupt) => corrupt,
    };
    // Magic number and UUID, in the first sector, must still show whose copy is looked for.
    let Ok(primary) = Superblock::decode_unverified(&bytes) else {
        return Err(corrupt.into());
    };
    let Some(copy) = copy_of(device, &primary)? else {
        return Err(corrupt.into());
    };
    let is_torn = primary.encode() == as_mounts_left(&copy, &primary).encode();
    let (mut superblock, note) = match is_torn {
        true => (
            primary,
            format!("{corrupt}; a torn write explains it, by the copy in group 1"),
        ),
        false => {
            options.read_only = true;
            let what_helps =
                "mounted read-only by the copy in group 1, until e2fsck -f has mended the image";
            (
                copy,
                format!("{corrupt}, which no torn write explains: {what_helps}"),
            )
        }
    };
    if superblock.features.compat.contains(Compat::HAS_JOURNAL) {
        // Whether the journal is to be replayed neither is believed, so it is.
        superblock.features.incompat |= Incompat::RECOVER;
    }
    if !notes.contains(&note) {
        notes.push(note);
    }
    Ok(superblock)
}

fn read_bytes(device: &dyn Device) -> Result<[u8; SUPERBLOCK_SIZE]> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let size = device.size();
    if size < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        let problem = format!("{size} bytes are too few for an ext4 file system");
        return Err(Corrupt::new("image", problem).into());
    }
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    Ok(bytes)
}

/// The copy in group 1 of a superblock that bears this UUID.
fn copy_of(device: &dyn Device, primary: &Superblock) -> Result<Option<Superblock>> {
    /// Where group 1 begins, by block size, in groups of the usual size.
    const FIRST_COPIES: [(u32, u64); 3] = [(4096, 32768), (1024, 8193), (2048, 16384)];
    for (block_size, block) in FIRST_COPIES {
        let offset = block * u64::from(block_size);
        if offset + SUPERBLOCK_SIZE as u64 > device.size() {
            continue;
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(offset, &mut bytes)?;
        let Ok(mut copy) = Superblock::decode(&bytes) else {
            continue;
        };
        let is_here = 1024u32.checked_shl(copy.log_block_size) == Some(block_size);
        if copy.uuid == primary.uuid && is_here {
            copy.block_group = 0;
            return Ok(Some(copy));
        }
    }
    Ok(None)
}

/// What the primary is if only mounts and checks changed it since the copy was made.
fn as_mounts_left(copy: &Superblock, primary: &Superblock) -> Superblock {
    let mut expected = copy.clone();
    take_features(&mut expected.features, &primary.features);
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
    // Which way names are hashed is settled at the first mount; what else is noted is of what is in the groups.
    let settled = Flags::SIGNED_HASH | Flags::UNSIGNED_HASH;
    expected.flags = (copy.flags - settled) | (primary.flags & settled);
    expected.overhead_clusters = primary.overhead_clusters;
    expected.journal_backup_type = primary.journal_backup_type;
    expected.journal_backup = primary.journal_backup;
    expected.lost_found_inode = primary.lost_found_inode;
    expected
}

fn take_features(expected: &mut Features, primary: &Features) {
    let changed = CHANGED_FEATURES;
    expected.compat = (expected.compat - changed.compat) | (primary.compat & changed.compat);
    expected.incompat =
        (expected.incompat - changed.incompat) | (primary.incompat & changed.incompat);
    expected.read_only_compat = (expected.read_only_compat - changed.read_only_compat)
        | (primary.read_only_compat & changed.read_only_compat);
}
