//! Pass 0, first half: the superblock, its features and its backups.

use std::sync::Arc;

use pext4_block::Device;
use pext4_ondisk::casefold;
use pext4_ondisk::feature::{Compat, Features, Incompat, ReadOnlyCompat};
use pext4_ondisk::geometry::{Geometry, MAX_CLUSTERS_PER_GROUP};
use pext4_ondisk::inode::BASE_SIZE;
use pext4_ondisk::superblock::{self, State, Superblock};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber, InodeNumber};

use super::catalogue::Kind;
use super::findings::{Findings, Place};
use super::volume::Volume;
use super::{Error, Result};

/// The features that this checker knows. Others may change the rules.
const KNOWN_COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::IMAGIC_INODES)
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);
const KNOWN_INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::SIXTY_FOUR_BIT)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const KNOWN_READ_ONLY_COMPAT: ReadOnlyCompat = ReadOnlyCompat::SPARSE_SUPER
    .union(ReadOnlyCompat::LARGE_FILE)
    .union(ReadOnlyCompat::HUGE_FILE)
    .union(ReadOnlyCompat::GDT_CSUM)
    .union(ReadOnlyCompat::DIR_NLINK)
    .union(ReadOnlyCompat::EXTRA_ISIZE)
    .union(ReadOnlyCompat::QUOTA)
    .union(ReadOnlyCompat::BIGALLOC)
    .union(ReadOnlyCompat::METADATA_CSUM)
    .union(ReadOnlyCompat::READONLY)
    .union(ReadOnlyCompat::PROJECT)
    .union(ReadOnlyCompat::SHARED_BLOCKS)
    .union(ReadOnlyCompat::VERITY)
    .union(ReadOnlyCompat::ORPHAN_PRESENT);

/// The number of bytes that the checker keeps for each group.
const BYTES_PER_GROUP: u64 = 160;
/// The number of bytes that it may keep for groups whatever the size of the image.
const MIN_GROUP_MEMORY: u64 = 64 << 20;

/// A superblock that describes a possible geometry.
pub(super) struct Opened {
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
}

/// Finds a usable superblock: the primary, or a backup if that is lost.
pub(super) fn open(device: &dyn Device, findings: &Findings) -> Result<Opened> {
    let corrupt = match primary(device, findings)? {
        Ok(opened) => return Ok(opened),
        Err(corrupt) => corrupt,
    };
    let Some((opened, block)) = any_backup(device) else {
        return Err(Error::NoFileSystem(corrupt));
    };
    findings.add(Kind::SuperblockLost, Place::whole().block(block), || {
        format!(
            "{}; checked by the backup in block {block}",
            corrupt.problem()
        )
    });
    Ok(opened)
}

fn primary(
    device: &dyn Device,
    findings: &Findings,
) -> Result<std::result::Result<Opened, Corrupt>> {
    let mut bytes = [0; superblock::SIZE];
    if device.size() < superblock::OFFSET + superblock::SIZE as u64 {
        let problem = format!("the image has {} bytes", device.size());
        return Ok(Err(Corrupt::new("superblock", problem)));
    }
    if let Err(error) = device.read_at(superblock::OFFSET, &mut bytes) {
        let problem = format!("it cannot be read: {error}");
        return Ok(Err(Corrupt::new("superblock", problem)));
    }
    let superblock = match Superblock::decode_unverified(&bytes) {
        Ok(superblock) => superblock,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    let verified = Superblock::decode(&bytes);
    match (refuse_unknown(&superblock.features), &verified) {
        (Ok(()), _) => {}
        (Err(refusal), Ok(_)) => return Err(refusal),
        // An unknown feature may be a flipped bit.
        (Err(_), Err(corrupt)) => return Ok(Err(corrupt.clone())),
    }
    let geometry = match Geometry::of(&superblock) {
        Ok(geometry) => geometry,
        Err(corrupt) => return Ok(Err(corrupt)),
    };
    if let Err(corrupt) = verified {
        findings.corrupt(Kind::SuperblockChecksum, Place::whole(), &corrupt);
    }
    Ok(Ok(Opened {
        superblock,
        geometry,
    }))
}

/// The first usable backup at the locations that mke2fs chooses by default.
fn any_backup(device: &dyn Device) -> Option<(Opened, BlockNumber)> {
    (10..=16u32).find_map(|bits| {
        let block_size = 1u64 << bits;
        let first = u64::from(bits == 10);
        let block = first + (8 * block_size).min(MAX_CLUSTERS_PER_GROUP.into());
        let mut bytes = [0; superblock::SIZE];
        device.read_at(block * block_size, &mut bytes).ok()?;
        let superblock = Superblock::decode(&bytes).ok()?;
        let geometry = Geometry::of(&superblock).ok()?;
        refuse_unknown(&superblock.features).ok()?;
        let is_there = u64::from(geometry.block_size) == block_size
            && geometry.superblock_copy(GroupNumber(1)) == Some(BlockNumber(block));
        is_there.then_some((
            Opened {
                superblock,
                geometry,
            },
            BlockNumber(block),
        ))
    })
}

/// Refuses features that this checker does not know, by name.
fn refuse_unknown(features: &Features) -> Result<()> {
    let unknown = Features {
        compat: features.compat.difference(KNOWN_COMPAT),
        incompat: features.incompat.difference(KNOWN_INCOMPAT),
        read_only_compat: features.read_only_compat.difference(KNOWN_READ_ONLY_COMPAT),
    };
    let names = unknown.names();
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "it has features that are not known here: {}",
        names.join(", ")
    )))
}

/// The largest size of descriptors that e2fsck accepts where no feature gives it a meaning.
const MAX_UNUSED_DESC_SIZE: u16 = 1024;

/// Whether the device can hold what the geometry says, and memory what must be kept of it. A
/// device that cannot ends the check.
pub(super) fn check_size(
    device: &Arc<dyn Device>,
    geometry: &Geometry,
    findings: &Findings,
) -> Result<bool> {
    let size = geometry
        .blocks_count
        .saturating_mul(u64::from(geometry.block_size));
    if size > device.size() {
        findings.add(Kind::DeviceTooSmall, Place::whole(), || {
            format!(
                "{} blocks of {} bytes need more than the device's {} bytes",
                geometry.blocks_count,
                geometry.block_size,
                device.size()
            )
        });
        return Ok(false);
    }
    let memory = u64::from(geometry.group_count) * BYTES_PER_GROUP;
    if memory > MIN_GROUP_MEMORY.max(size / 4096) {
        return Err(Error::Unsupported(format!(
            "{} groups of {} blocks would take more memory than the image can justify",
            geometry.group_count, geometry.blocks_per_group
        )));
    }
    Ok(true)
}

/// Checks features and fields, and reports the state of the file system.
pub(super) fn check_fields(superblock: &Superblock, findings: &Findings) {
    let conflict = |text: &str| {
        findings.add(Kind::FeaturesConflict, Place::whole(), || text.to_owned());
    };
    for (is_wrong, text) in conflicts(&superblock.features) {
        if is_wrong {
            conflict(text);
        }
    }
    let journal = superblock.journal_inode;
    if journal.get() != 0 && !superblock.features.has_compat(Compat::HAS_JOURNAL) {
        findings.add(Kind::FeatureMissing, Place::inode(journal), || {
            format!("inode {journal} is named as the journal, without has_journal")
        });
    }
    let field = |text: String| findings.add(Kind::SuperblockField, Place::whole(), || text);
    if superblock.reserved_blocks > superblock.blocks_count / 2 {
        let (reserved, all) = (superblock.reserved_blocks, superblock.blocks_count);
        field(format!("{reserved} of {all} blocks are reserved"));
    }
    let has_clusters = superblock
        .features
        .has_read_only_compat(ReadOnlyCompat::BIGALLOC);
    let (clusters, blocks) = (superblock.clusters_per_group, superblock.blocks_per_group);
    if !has_clusters && clusters != blocks {
        field(format!(
            "{clusters} clusters in a group of {blocks} blocks, without bigalloc"
        ));
    }
    let reserved = superblock.reserved_gdt_blocks;
    if reserved != 0 && !superblock.features.has_compat(Compat::RESIZE_INODE) {
        field(format!(
            "{reserved} blocks are kept for descriptors, without resize_inode"
        ));
    }
    let size = superblock.desc_size;
    let is_long = superblock.features.has_incompat(Incompat::SIXTY_FOUR_BIT);
    if !is_long && size != 0 && (!size.is_power_of_two() || size > MAX_UNUSED_DESC_SIZE) {
        field(format!("descriptors of {size} bytes, without 64bit"));
    }
    let folds_case = superblock.features.has_incompat(Incompat::CASEFOLD);
    if folds_case && superblock.encoding != casefold::UTF8_12_1 {
        let encoding = superblock.encoding;
        field(format!("names fold case by encoding {encoding}"));
    }
    if superblock.journal_uuid != [0; 16] && !has_outer_journal(superblock) {
        field("an external journal is named by its UUID, but none is used".to_owned());
    }
    check_revision(superblock, &field);
    check_extra_sizes(superblock, &field);
    check_state(superblock, findings);
}

/// Checks what belongs together in the superblock without a feature that says so.
fn check_revision(superblock: &Superblock, field: &impl Fn(String)) {
    let flex = superblock.log_groups_per_flex;
    if flex > 31 {
        // Without flex_bg nothing uses it, but the programs of e2fsprogs refuse the image.
        field(format!("a flexible group has 1 << {flex} groups"));
    }
    let features = &superblock.features;
    let has_features = !(features.compat.is_empty()
        && features.incompat.is_empty()
        && features.read_only_compat.is_empty());
    if superblock.revision == 0 && has_features {
        field("revision 0 has no features, but there are".to_owned());
    }
}

/// Checks the extra sizes of inodes, which Linux reads only where inodes have room for one. Like
/// e2fsck it does so also without the feature that promises them.
fn check_extra_sizes(superblock: &Superblock, field: &impl Fn(String)) {
    let room = usize::from(superblock.effective_inode_size()).saturating_sub(BASE_SIZE);
    if room > 0 {
        for (name, size) in [
            ("least", superblock.min_extra_isize),
            ("wanted", superblock.want_extra_isize),
        ] {
            if size != 0 && (size < 4 || usize::from(size) > room || !size.is_multiple_of(4)) {
                field(format!("the {name} extra size of inodes is {size}"));
            }
        }
    }
}

/// Whether the journal is on another device.
fn has_outer_journal(superblock: &Superblock) -> bool {
    superblock.features.has_compat(Compat::HAS_JOURNAL) && superblock.journal_inode.get() == 0
}

fn conflicts(features: &Features) -> [(bool, &'static str); 7] {
    let compat = |bits| features.has_compat(bits);
    let incompat = |bits| features.has_incompat(bits);
    let read_only = |bits| features.has_read_only_compat(bits);
    let metadata_csum = read_only(ReadOnlyCompat::METADATA_CSUM);
    [
        (
            metadata_csum && read_only(ReadOnlyCompat::GDT_CSUM),
            "metadata_csum and uninit_bg exclude each other",
        ),
        (
            incompat(Incompat::CSUM_SEED) && !metadata_csum,
            "metadata_csum_seed without metadata_csum",
        ),
        (
            incompat(Incompat::SIXTY_FOUR_BIT) && !incompat(Incompat::EXTENTS),
            "64bit without extents",
        ),
        (
            compat(Compat::RESIZE_INODE) && incompat(Incompat::META_BG),
            "resize_inode and meta_bg exclude each other",
        ),
        (
            read_only(ReadOnlyCompat::ORPHAN_PRESENT) && !compat(Compat::ORPHAN_FILE),
            "orphan_present without orphan_file",
        ),
        (
            compat(Compat::ORPHAN_FILE) && !compat(Compat::HAS_JOURNAL),
            "orphan_file without a journal",
        ),
        (
            incompat(Incompat::RECOVER) && !compat(Compat::HAS_JOURNAL),
            "a journal waits for replay, but there is none",
        ),
    ]
}

fn check_state(superblock: &Superblock, findings: &Findings) {
    let has_journal = superblock.features.has_compat(Compat::HAS_JOURNAL);
    if !superblock.state.contains(State::CLEAN) && !has_journal {
        findings.add(Kind::StateUnclean, Place::whole(), || {
            "not closed since it was last opened for writing".to_owned()
        });
    }
    if superblock.state.contains(State::ERRORS) {
        findings.add(Kind::StateErrors, Place::whole(), || {
            "marked as having errors".to_owned()
        });
    }
    if superblock.error_count > 0 {
        let last = &superblock.last_error;
        let place = Place {
            inode: (last.inode != 0).then_some(InodeNumber(last.inode)),
            block: (last.block != 0).then_some(BlockNumber(last.block)),
            ..Place::whole()
        };
        findings.add(Kind::ErrorRecord, place, || {
            let end = last.function.iter().position(|&byte| byte == 0);
            let function = &last.function[..end.unwrap_or(last.function.len())];
            let (count, function) = (superblock.error_count, function.escape_ascii());
            format!("{count} errors, the last in {function}:{}", last.line)
        });
    }
}

/// Compares a backup of the superblock with the primary, as far as they must agree.
pub(super) fn check_backup(volume: &Volume, group: GroupNumber, findings: &Findings) {
    let Some(block) = volume
        .geometry
        .superblock_copy(group)
        .filter(|_| group.get() != 0)
    else {
        return;
    };
    let place = Place::group(group).block(block);
    let mut bytes = [0; superblock::SIZE];
    if let Err(error) = volume.read(block, &mut bytes) {
        return findings.add(Kind::Unreadable, place, || format!("superblock: {error}"));
    }
    match Superblock::decode(&bytes) {
        Err(corrupt) => findings.corrupt(Kind::BackupSuperblock, place, &corrupt),
        Ok(backup) => {
            let differing = differences(&volume.superblock, &backup, group);
            if !differing.is_empty() {
                findings.add(Kind::BackupSuperblock, place, || {
                    format!("differs from the primary in {}", differing.join(", "))
                });
            }
        }
    }
}

/// Features that a mount sets only in the primary.
fn lasting(features: &Features) -> (u32, u32, u32) {
    let compat = features.compat.difference(Compat::EXT_ATTR);
    let incompat = features
        .incompat
        .difference(Incompat::RECOVER.union(Incompat::EXTENTS));
    let passing = ReadOnlyCompat::LARGE_FILE
        .union(ReadOnlyCompat::DIR_NLINK)
        .union(ReadOnlyCompat::ORPHAN_PRESENT);
    let read_only = features.read_only_compat.difference(passing);
    (compat.bits(), incompat.bits(), read_only.bits())
}

/// Whether a copy in `group` may say that it is in the group `number`. Old tools left 0 in copies.
/// The field has room for 16 bits only: of larger numbers there are the low bits or the largest
/// number.
fn may_name(number: u16, group: GroupNumber) -> bool {
    let (number, group) = (u32::from(number), group.get());
    number == 0 || number == group & 0xFFFF || number == group.min(0xFFFF)
}

fn differences(primary: &Superblock, backup: &Superblock, group: GroupNumber) -> Vec<&'static str> {
    let sizes = |of: &Superblock| {
        (
            (of.log_block_size, of.log_cluster_size),
            (of.blocks_per_group, of.inodes_per_group),
            (of.first_data_block, of.effective_inode_size(), of.desc_size),
        )
    };
    let pairs = [
        (primary.blocks_count != backup.blocks_count, "blocks"),
        (primary.inodes_count != backup.inodes_count, "inodes"),
        (sizes(primary) != sizes(backup), "sizes"),
        (
            lasting(&primary.features) != lasting(&backup.features),
            "features",
        ),
        (primary.uuid != backup.uuid, "UUID"),
        (!may_name(backup.block_group, group), "its own group"),
    ];
    pairs
        .into_iter()
        .filter_map(|(differs, what)| differs.then_some(what))
        .collect()
}

#[cfg(test)]
mod tests {
    use pext4_ondisk::GroupNumber;

    use super::may_name;

    #[test]
    fn copies_in_groups_beyond_16_bits_name_them_in_two_ways() {
        for (number, group, may) in [
            (0, 78_125, true),
            (0xFFFF, 78_125, true),
            (12_589, 78_125, true),
            (1, 78_125, false),
            (3, 3, true),
            (0xFFFF, 3, false),
        ] {
            assert_eq!(
                may_name(number, GroupNumber(group)),
                may,
                "{number} in {group}"
            );
        }
    }
}
