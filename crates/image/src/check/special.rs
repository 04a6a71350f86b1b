//! Pass 1: inodes that are no files of users: reserved ones, the resize inode, quota files, the
//! journal and the orphan file.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::indirect;
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::Examination;
use super::bad_blocks;
use super::catalogue::Kind;
use super::content::max_size;
use super::findings::Place;
use super::inode::InodeSubject;
use super::volume::Volume;

const BAD_BLOCKS: u32 = bad_blocks::NUMBER.get();
// Reserved inodes that have a use.
pub(super) const USER_QUOTA: u32 = 3;
pub(super) const GROUP_QUOTA: u32 = 4;
const BOOT_LOADER: u32 = 5;
const JOURNAL: u32 = 8;
/// The slot of the double-indirect pointer in a block map.
pub(super) const DOUBLE_INDIRECT: usize = 13;

/// All slots of a block map.
const SLOTS: [usize; 15] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// Inodes to which the superblock refers and no name may lead. A journal that was created in a
/// mounted file system is a file with a name (`/.journal`), and is checked as one.
pub(super) fn hidden(volume: &Volume) -> Vec<InodeNumber> {
    let superblock = &volume.superblock;
    let quotas = [
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
    ];
    let features = &volume.geometry.features;
    let has_quota = features.has_read_only_compat(ReadOnlyCompat::QUOTA);
    let journal = superblock.journal_inode;
    let has_name = journal >= volume.geometry.first_inode;
    let journal = Some(journal).filter(|_| !has_name);
    journal
        .into_iter()
        .chain([superblock.orphan_file_inode])
        .chain(quotas.into_iter().filter(|_| has_quota))
        .filter(|number| number.get() != 0)
        .collect()
}

/// Reports that there is no root directory.
pub(super) fn report_missing_root(examination: &Examination, why: &str) {
    let place = Place::inode(InodeNumber::ROOT);
    examination
        .findings
        .add(Kind::RootMissing, place, || why.to_owned());
}

/// Checks whether an inode with this number may be in use.
pub(super) fn check(subject: &InodeSubject<'_>) {
    let number = subject.number;
    if number == InodeNumber::ROOT && subject.kind != Some(FileType::Directory) {
        report_missing_root(subject.examination, "it is no directory");
    }
    let volume = &subject.examination.volume;
    let is_reserved = number < volume.geometry.first_inode
        && number != InodeNumber::ROOT
        && number != InodeNumber::RESIZE
        && number.get() != BOOT_LOADER
        && !subject.examination.hidden.contains(&number);
    let (kind, needs_mode) = finding_kind(number);
    let (mode, links) = (subject.inode.mode, subject.inode.links);
    if is_reserved && (mode != 0 || !needs_mode) {
        subject.report(kind, || {
            format!("in use, with mode {mode:06o} and {links} links")
        });
    }
    check_left_behind(subject);
}

/// Reports an orphan file whose feature was removed: no name leads to it, so no other check would
/// report it. One with the number of the journal or a quota file is not checked.
fn check_left_behind(subject: &InodeSubject<'_>) {
    let number = subject.examination.volume.superblock.orphan_file_inode;
    let has_other_use = matches!(number.get(), USER_QUOTA | GROUP_QUOTA | JOURNAL);
    let has_feature = subject.features().has_compat(Compat::ORPHAN_FILE);
    if subject.number != number || has_feature || has_other_use {
        return;
    }
    let inode = subject.inode;
    if inode.links != 0 || inode.blocks != 0 || indirect::entry(&inode.block, 0) != 0 {
        subject.report(Kind::OrphanFile, || {
            format!("in use, without the feature: {} bytes", inode.size)
        });
    }
}

/// The finding for a reserved inode that is in use without need, and whether an inode without a
/// mode is no finding.
fn finding_kind(number: InodeNumber) -> (Kind, bool) {
    match number.get() {
        USER_QUOTA | GROUP_QUOTA => (Kind::QuotaInode, false),
        JOURNAL => (Kind::JournalInode, false),
        number => (Kind::ReservedInode, number != BAD_BLOCKS),
    }
}

/// Checks a reserved inode without links: an unused inode has no content. Inodes to which the
/// superblock refers, and the resize inode except for its size, are checked elsewhere.
pub(super) fn check_unused(examination: &Examination, number: InodeNumber, inode: &Inode) {
    check_unused_flags(examination, number, inode);
    let volume = &examination.volume;
    let is_long = inode.size > max_size(inode, &volume.geometry);
    if examination.hidden.contains(&number) {
        return;
    }
    if number == InodeNumber::RESIZE {
        if is_long {
            let text = || format!("{} bytes, and it is unused", inode.size);
            let place = Place::inode(number);
            examination.findings.add(Kind::ResizeInode, place, text);
        }
        return;
    }
    // In an inode without links an impossible attribute block is ignored.
    let has_xattrs = inode.attribute_block.get() != 0 && volume.contains(inode.attribute_block, 1);
    let (has_mode, has_blocks) = (inode.mode != 0, has_blocks(volume, number, inode));
    let is_owned = inode.uid & 0xFFFF != 0 || inode.gid & 0xFFFF != 0;
    let has_map = indirect::entry(&inode.block, 0) != 0;
    let is_directory = inode.file_type() == Some(FileType::Directory);
    let is_wrong = match number.get() {
        BAD_BLOCKS => has_mode || has_xattrs || is_owned || inode.has_inline_data(),
        USER_QUOTA | GROUP_QUOTA | JOURNAL => has_blocks || has_map,
        BOOT_LOADER => is_directory || (!has_mode && (has_blocks || has_xattrs || is_long)),
        _ => has_mode || has_blocks || has_xattrs || is_long,
    };
    if is_wrong {
        let text = || {
            let (mode, sectors, block) = (inode.mode, inode.blocks, inode.attribute_block);
            format!("mode {mode:06o}, {sectors} sectors, attributes in block {block}, and unused")
        };
        let place = Place::inode(number);
        examination
            .findings
            .add(finding_kind(number).0, place, text);
    }
}

/// Whether an unused inode counts blocks. The upper half of the count is included only if the
/// `huge_file` feature gives it a meaning, and not for the journal and quota files.
fn has_blocks(volume: &Volume, number: InodeNumber, inode: &Inode) -> bool {
    let features = &volume.geometry.features;
    let is_wide = features.has_read_only_compat(ReadOnlyCompat::HUGE_FILE)
        && !matches!(number.get(), USER_QUOTA | GROUP_QUOTA | JOURNAL);
    match is_wide {
        true => inode.blocks != 0,
        false => inode.blocks & 0xFFFF_FFFF != 0,
    }
}

/// Reports flags that no unused inode may have.
fn check_unused_flags(examination: &Examination, number: InodeNumber, inode: &Inode) {
    let has = |flags| inode.flags.contains(flags);
    // These may have the index flag.
    let is_kept = matches!(
        number.get(),
        BAD_BLOCKS | USER_QUOTA | GROUP_QUOTA | JOURNAL
    );
    let features = &examination.volume.geometry.features;
    let is_wrong = has(InodeFlags::CASEFOLD)
        || (has(InodeFlags::INDEX) && !is_kept)
        || (has(InodeFlags::EXTENTS)
            && number.get() == JOURNAL
            && !features.has_incompat(Incompat::EXTENTS))
        || has(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
    if is_wrong && inode.file_type() != Some(FileType::Directory) {
        examination
            .findings
            .add(Kind::InodeFlags, Place::inode(number), || {
                format!("{:?}, and it is unused", inode.flags)
            });
    }
}

/// Checks the resize inode, which reserves blocks for descriptors. Its map has a fixed form: the
/// reserved blocks and the locations of their copies.
pub(super) fn check_resize(examination: &Examination) {
    let volume = &examination.volume;
    let report = |text: String| {
        let place = Place::inode(InodeNumber::RESIZE);
        examination.findings.add(Kind::ResizeInode, place, || text);
    };
    let Ok(inode) = volume.inode(&examination.groups, InodeNumber::RESIZE) else {
        return;
    };
    let is_mapped = |slots: &[usize]| {
        let mut slots = slots.iter();
        slots.any(|&slot| indirect::entry(&inode.block, slot) != 0)
    };
    if !volume.geometry.features.has_compat(Compat::RESIZE_INODE) {
        let has_content =
            inode.blocks != 0 || inode.attribute_block.get() != 0 || is_mapped(&SLOTS);
        if inode.links != 0 || inode.mode != 0 || has_content {
            report("in use, without the feature".to_owned());
        }
        return;
    }
    let others = SLOTS.map(|slot| if slot == DOUBLE_INDIRECT { 0 } else { slot });
    if is_mapped(&others) || inode.attribute_block.get() != 0 {
        report("it maps more than its double-indirect block".to_owned());
    }
    if inode.file_type() != Some(FileType::Regular) || inode.links == 0 || inode.has_extents() {
        let (mode, links) = (inode.mode, inode.links);
        return report(format!("mode {mode:06o} with {links} links"));
    }
    let double = BlockNumber(u64::from(indirect::entry(&inode.block, DOUBLE_INDIRECT)));
    if double.get() == 0 {
        // It must exist, and be empty, even if no descriptor blocks are reserved.
        return report("it has no double-indirect block".to_owned());
    }
    if !volume.contains(double, 1) {
        return report(format!("its map is block {double}"));
    }
    examination.claims.claim(double, 1);
    match check_reserved(volume, &inode, double) {
        Ok(()) => {}
        Err(problem) => report(problem),
    }
}

/// Compares the map with its required form.
fn check_reserved(volume: &Volume, inode: &Inode, double: BlockNumber) -> Result<(), String> {
    let geometry = &volume.geometry;
    let unreadable = |error: std::io::Error| error.to_string();
    let map = volume.block(double).map_err(unreadable)?;
    let pointers = volume.block_size() / 4;
    let mut last = 0;
    let backups: Vec<u64> = (1..geometry.group_count)
        .map(GroupNumber)
        .filter(|&group| geometry.has_superblock(group))
        .map(|group| u64::from(group.get()) * u64::from(geometry.blocks_per_group))
        .collect();
    let reserved = u64::from(geometry.reserved_gdt_blocks);
    let first = geometry.descriptor_block(0).get() + u64::from(geometry.descriptor_blocks);
    let mut expected = vec![0u64; pointers];
    for (index, block) in (first..first + reserved).enumerate() {
        expected[(geometry.descriptor_blocks as usize + index) % pointers] = block;
    }
    for (slot, expected) in expected.into_iter().enumerate() {
        let found = u64::from(indirect::entry(&map, slot));
        if found != expected {
            return Err(format!("entry {slot} is block {found}, not {expected}"));
        }
        if found == 0 {
            continue;
        }
        let before = indirect::DIRECT + pointers + slot * pointers;
        // Without backups the map has no data, and the size no meaning.
        if !backups.is_empty() {
            last = (before + backups.len() - 1) as u64;
        }
        let copies = volume.block(BlockNumber(found)).map_err(unreadable)?;
        for slot in 0..pointers {
            let expected = backups.get(slot).map_or(0, |backup| found + backup);
            let copy = u64::from(indirect::entry(&copies, slot));
            if copy != expected {
                return Err(format!(
                    "copy {slot} of block {found} is {copy}, not {expected}"
                ));
            }
        }
    }
    let size = inode.size;
    if size < last * u64::from(geometry.block_size) || size > max_size(inode, geometry) {
        return Err(format!(
            "{size} bytes, but logical block {last} is its last"
        ));
    }
    // Each counts as a cluster.
    let sectors_each =
        u64::from(geometry.block_size / 512) * u64::from(geometry.blocks_per_cluster);
    let sectors = (1 + reserved * (1 + backups.len() as u64)) * sectors_each;
    let counted = inode.sectors(geometry.block_size);
    if counted != sectors {
        return Err(format!("counts {counted} sectors, has {sectors}"));
    }
    Ok(())
}
