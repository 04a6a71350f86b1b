//! Inodes that are no files of users: kept for later, for growth, for quota.

use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::indirect;
use pext4_ondisk::inode::Inode;
use pext4_ondisk::{BlockNumber, GroupNumber, InodeNumber};

use super::Examination;
use super::catalogue::Kind;
use super::findings::Place;
use super::inode::Subject;
use super::mapping::Collector;
use super::volume::Volume;

/// The inode that collects blocks the device cannot hold.
pub(super) const BAD_BLOCKS: u32 = 1;
/// Reserved inodes that have a use.
const USER_QUOTA: u32 = 3;
const GROUP_QUOTA: u32 = 4;
const BOOT_LOADER: u32 = 5;
/// Place of the double-indirect pointer in a block map.
const DOUBLE_INDIRECT: usize = 13;

/// First words of quota files: user, group, project.
const QUOTA_MAGIC: [u32; 3] = [0xD9C0_1F11, 0xD9C0_1927, 0xD9C0_3F14];

/// Inodes that the superblock names, which no name may lead to.
pub(super) fn hidden(volume: &Volume) -> Vec<InodeNumber> {
    let superblock = &volume.superblock;
    let named = [
        superblock.journal_inode,
        superblock.orphan_file_inode,
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
    ];
    named
        .into_iter()
        .filter(|number| number.get() != 0)
        .collect()
}

/// Says why there is no root directory.
pub(super) fn root_is_missing(examination: &Examination, why: &str) {
    let place = Place::inode(InodeNumber::ROOT);
    examination
        .findings
        .add(Kind::RootMissing, place, || why.to_owned());
}

/// What an inode in use may be by its number.
pub(super) fn check(subject: &Subject<'_>) {
    let number = subject.number;
    if number == InodeNumber::ROOT && subject.kind != Some(FileType::Directory) {
        root_is_missing(subject.examination, "it is no directory");
    }
    let volume = &subject.examination.volume;
    let is_reserved = number < volume.geometry.first_inode
        && number != InodeNumber::ROOT
        && number != InodeNumber::RESIZE
        && number.get() != BOOT_LOADER
        && !hidden(volume).contains(&number);
    if is_reserved && subject.inode.mode != 0 {
        let kind = match number.get() {
            USER_QUOTA | GROUP_QUOTA => Kind::QuotaInode,
            8 => Kind::JournalInode,
            _ => Kind::ReservedInode,
        };
        let mode = subject.inode.mode;
        subject.report(kind, || format!("in use, with mode {mode:06o}"));
    }
}

/// Bad blocks are nobody's, whatever they hold.
pub(super) fn claim_bad_blocks(examination: &Examination, inode: &Inode) {
    let collected = Collector::collect(&examination.volume, InodeNumber(BAD_BLOCKS), inode);
    for run in &collected.runs {
        examination
            .claims
            .claim_metadata(run.start, u64::from(run.length));
    }
    for node in collected.nodes() {
        examination.claims.claim_metadata(*node, 1);
    }
}

/// Judges the inodes that the superblock knows of.
pub(super) fn check_all(examination: &Examination) {
    check_resize(examination);
    let superblock = &examination.volume.superblock;
    let quotas = [
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
    ];
    let features = &superblock.features;
    if features.has_read_only_compat(ReadOnlyCompat::QUOTA) {
        for (number, magic) in quotas.into_iter().zip(QUOTA_MAGIC) {
            check_quota(examination, number, magic);
        }
    }
}

fn check_quota(examination: &Examination, number: InodeNumber, magic: u32) {
    if number.get() == 0 {
        return;
    }
    let volume = &examination.volume;
    let report = |text: String| {
        let place = Place::inode(number);
        examination.findings.add(Kind::QuotaInode, place, || text);
    };
    let Ok(inode) = volume.inode(&examination.groups, number) else {
        return report("there is no such inode".to_owned());
    };
    if inode.mode != 0o100_600 || inode.links == 0 {
        let (mode, links) = (inode.mode, inode.links);
        return report(format!("mode {mode:06o} with {links} links"));
    }
    let first = Collector::collect(volume, number, &inode).place(0);
    let Some(Ok(bytes)) = first.map(|block| volume.block(block)) else {
        return report("its header cannot be read".to_owned());
    };
    let found = indirect::entry(&bytes, 0);
    let version = indirect::entry(&bytes, 1);
    if found != magic || version != 1 {
        report(format!("magic is {found:#010X}, version {version}"));
    }
}

/// The inode that reserves descriptor blocks: its map is a table of where their copies lie.
fn check_resize(examination: &Examination) {
    let volume = &examination.volume;
    let report = |text: String| {
        let place = Place::inode(InodeNumber::RESIZE);
        examination.findings.add(Kind::ResizeInode, place, || text);
    };
    let Ok(inode) = volume.inode(&examination.groups, InodeNumber::RESIZE) else {
        return;
    };
    if !volume.geometry.features.has_compat(Compat::RESIZE_INODE) {
        if inode.links != 0 || inode.mode != 0 {
            report("in use, without the feature".to_owned());
        }
        return;
    }
    if inode.file_type() != Some(FileType::Regular) || inode.links != 1 || inode.has_extents() {
        let (mode, links) = (inode.mode, inode.links);
        return report(format!("mode {mode:06o} with {links} links"));
    }
    let double = BlockNumber(u64::from(indirect::entry(&inode.block, DOUBLE_INDIRECT)));
    if double.get() == 0 {
        // It must be there even where no descriptor blocks are reserved, empty then.
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

/// Compares the map with what it must be.
fn check_reserved(volume: &Volume, inode: &Inode, double: BlockNumber) -> Result<(), String> {
    let geometry = &volume.geometry;
    let unreadable = |error: std::io::Error| error.to_string();
    let map = volume.block(double).map_err(unreadable)?;
    let pointers = volume.block_size() / 4;
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
