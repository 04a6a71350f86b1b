//! Pass 1, one inode: its fields, its map, and whether the two agree.

mod blocks;
mod fields;
mod flags;

use pext4_ondisk::InodeNumber;
use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Features, ReadOnlyCompat};
use pext4_ondisk::inode::{Inode, InodeFlags};

use super::catalogue::Kind;
use super::findings::Place;
use super::inodes::{Directory, Gathered, InodeState};
use super::volume::decode_leniently;
use super::{Examination, attributes, content, special};
pub(super) use blocks::Mapped;
use blocks::map;

/// Files of at least this size in bytes need the `large_file` feature.
const LARGE: u64 = 1 << 31;

/// The result for one slot of an inode table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Examined {
    pub(super) state: InodeState,
    pub(super) links: u16,
}

/// An inode in use, with the context of its checks.
pub(super) struct InodeSubject<'a> {
    pub(super) examination: &'a Examination,
    pub(super) number: InodeNumber,
    pub(super) inode: &'a Inode,
    pub(super) kind: Option<FileType>,
}

impl InodeSubject<'_> {
    pub(super) fn report(&self, kind: Kind, text: impl FnOnce() -> String) {
        self.examination
            .findings
            .add(kind, Place::inode(self.number), text);
    }

    pub(super) fn features(&self) -> &Features {
        &self.examination.volume.geometry.features
    }

    fn has(&self, flag: InodeFlags) -> bool {
        self.inode.flags.contains(flag)
    }
}

/// Checks a slot.
pub(super) fn examine(
    examination: &Examination,
    gathered: &mut Gathered,
    number: InodeNumber,
    slot: &[u8],
) -> Examined {
    if slot.iter().all(|&byte| byte == 0) {
        if number == InodeNumber::ROOT {
            special::report_missing_root(examination, "it is not in use");
        }
        return Examined::default();
    }
    let Some(inode) = decode(examination, number, slot) else {
        return Examined::default();
    };
    let inode = examination.volume.as_of_creator(inode);
    let is_orphan = examination.orphans.contains(number);
    if inode.links == 0 && !is_orphan {
        unused(examination, number, &inode);
        return Examined::default();
    }
    gathered.counts.inodes += 1;
    let subject = InodeSubject {
        examination,
        number,
        inode: &inode,
        kind: inode.file_type(),
    };
    check_fields(&subject, slot, is_orphan);
    special::check(&subject);
    let mapped = map(&subject, gathered);
    check_contents(&subject, gathered, &mapped);
    note_directory(&subject, gathered, &mapped);
    let mut state = InodeState::used(subject.kind.map_or(0, FileType::to_entry));
    if inode.flags.contains(InodeFlags::EA_INODE) {
        state = state.with_value();
    }
    if subject.kind == Some(FileType::Directory) {
        gathered.counts.directories += 1;
        if may_overflow(&subject) {
            state = state.with_overflow();
        }
    } else {
        gathered.counts.files += 1;
    }
    Examined {
        state,
        links: inode.links,
    }
}

fn may_overflow(subject: &InodeSubject<'_>) -> bool {
    subject.inode.links == 1 && subject.has(InodeFlags::INDEX)
}

/// The inode in a slot. A wrong checksum is reported and the fields are used; with an impossible
/// extra size the inode is decoded without its extra part.
fn decode(examination: &Examination, number: InodeNumber, slot: &[u8]) -> Option<Inode> {
    let seed = examination.volume.seed;
    let report = |kind, corrupt: &pext4_ondisk::Corrupt| {
        examination
            .findings
            .corrupt(kind, Place::inode(number), corrupt);
    };
    let corrupt = match Inode::decode(slot, number, seed) {
        Ok(inode) => return Some(inode),
        Err(corrupt) => corrupt,
    };
    match Inode::decode(slot, number, None) {
        Ok(inode) => {
            report(Kind::InodeChecksum, &corrupt);
            Some(inode)
        }
        Err(corrupt) => {
            let inode = decode_leniently(slot, number).ok();
            // In an unused inode the size has no meaning, but the checksums of reserved ones cover
            // it all the same.
            let is_covered = seed.is_some() && number < examination.volume.geometry.first_inode;
            if is_covered || inode.as_ref().is_none_or(|inode| inode.links != 0) {
                report(Kind::InodeExtraSize, &corrupt);
            }
            inode
        }
    }
}

/// Checks an inode that has no links and is no orphan.
fn unused(examination: &Examination, number: InodeNumber, inode: &Inode) {
    let first = examination.volume.geometry.first_inode;
    let report = |text: String| {
        let place = Place::inode(number);
        examination
            .findings
            .add(Kind::InodeNotDeleted, place, || text);
    };
    if is_inode_number(examination, inode.deletion_time) {
        let next = inode.deletion_time;
        report(format!(
            "its time of deletion is inode number {next}, as in a list of orphans, but it is in none"
        ));
    }
    if number == InodeNumber::ROOT {
        special::report_missing_root(examination, "it has no links");
    } else if number < first {
        special::check_unused(examination, number, inode);
    } else if inode.mode != 0 && inode.deletion_time == 0 {
        report(format!(
            "mode {:06o}, no links, no time of deletion",
            inode.mode
        ));
    }
}

/// Whether a time of deletion is the inode number of the next orphan: no clock shows such an early
/// time, unless the superblock has other times as early.
fn is_inode_number(examination: &Examination, time: u32) -> bool {
    let superblock = &examination.volume.superblock;
    let count = superblock.inodes_count;
    let written = [
        superblock.mount_time,
        superblock.write_time,
        superblock.make_time,
    ];
    let mut written = written.into_iter().filter(|&time| time != 0);
    time != 0 && time < count && written.all(|time| time >= i64::from(count))
}

fn check_fields(subject: &InodeSubject<'_>, slot: &[u8], is_orphan: bool) {
    let inode = subject.inode;
    let is_reserved = subject.number < subject.examination.volume.geometry.first_inode;
    if subject.kind.is_none() && !is_reserved {
        subject.report(Kind::InodeMode, || format!("mode {:06o}", inode.mode));
    }
    let is_deleted = match is_own(subject) {
        true => is_inode_number(subject.examination, inode.deletion_time),
        false => inode.deletion_time != 0,
    };
    if is_deleted && !is_orphan {
        let time = inode.deletion_time;
        subject.report(Kind::InodeDeletionTime, || {
            format!("{} links, deleted at {time}", inode.links)
        });
    }
    flags::check_flags(subject);
    fields::check_zeroes(subject, slot);
    fields::check_times(subject, slot);
}

/// Whether it is an inode of the file system itself, for which fewer rules hold.
fn is_own(subject: &InodeSubject<'_>) -> bool {
    let first = subject.examination.volume.geometry.first_inode;
    subject.number < first && subject.number != InodeNumber::ROOT
}

/// Whether the block area maps blocks.
pub(super) fn has_map(subject: &InodeSubject<'_>) -> bool {
    let mappable = match subject.kind {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => !subject.inode.is_fast_symlink(),
        _ => false,
    };
    mappable && !subject.inode.has_inline_data()
}

/// Attributes, content, size and space, which depend on each other.
fn check_contents(subject: &InodeSubject<'_>, gathered: &mut Gathered, mapped: &Mapped) {
    let attributes = attributes::check(subject);
    content::check(subject, mapped, &attributes);
    gathered.usage.charge(subject, attributes.values);
    if mapped.is_partial() || attributes.is_partial || subject.number == InodeNumber::RESIZE {
        return;
    }
    let volume = &subject.examination.volume;
    let clusters = mapped.clusters + attributes.clusters;
    let sectors_per_cluster =
        u64::from(volume.geometry.block_size / 512) * u64::from(volume.geometry.blocks_per_cluster);
    let expected = clusters.saturating_mul(sectors_per_cluster);
    // Without the feature the inode's flag for the larger unit is ignored.
    let has_units = subject
        .features()
        .has_read_only_compat(ReadOnlyCompat::HUGE_FILE);
    let counted = match has_units {
        true => subject.inode.sectors(volume.geometry.block_size),
        false => subject.inode.blocks,
    };
    if counted != expected {
        subject.report(Kind::InodeBlocks, || {
            format!("counts {counted} sectors, has {expected}")
        });
    }
}

/// Reports a size that needs `large_file` if the feature is not set.
pub(super) fn check_large(subject: &InodeSubject<'_>) {
    let is_known = subject
        .features()
        .has_read_only_compat(ReadOnlyCompat::LARGE_FILE);
    if subject.inode.size >= LARGE && !is_known {
        subject.report(Kind::FeatureMissing, || {
            format!("{} bytes, without large_file", subject.inode.size)
        });
    }
}

fn note_directory(subject: &InodeSubject<'_>, gathered: &mut Gathered, mapped: &Mapped) {
    if subject.kind != Some(FileType::Directory) {
        return;
    }
    let block_size = u64::from(subject.examination.volume.geometry.block_size);
    let blocks = subject.inode.size.div_ceil(block_size);
    let directories = &mut gathered.directories;
    let runs = directories.runs.len() - mapped.first_run;
    let (Ok(first_run), Ok(runs)) = (u32::try_from(mapped.first_run), u32::try_from(runs)) else {
        return;
    };
    directories.list.push(Directory {
        inode: subject.number.get(),
        generation: subject.inode.generation,
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        first_run,
        runs,
        is_indexed: subject.has(InodeFlags::INDEX),
        is_encrypted: subject.has(InodeFlags::ENCRYPT),
        folds_case: subject.has(InodeFlags::CASEFOLD),
        is_inline: subject.inode.has_inline_data(),
    });
}
