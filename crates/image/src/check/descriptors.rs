//! Pass 0, second half: group descriptors, their backups, and the location of metadata.

mod reading;

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, SHORT_SIZE};
use pext4_ondisk::{BlockNumber, GroupNumber};

use super::Pass;
use super::catalogue::Kind;
use super::claims::Claims;
use super::findings::{Findings, Place};
use super::parallel::Workers;
use super::volume::{Group, Volume, group_number};
pub(super) use reading::read;

/// The size in bytes of the locations of two bitmaps and the table, at the start of each half of a
/// descriptor.
const PLACES: usize = 12;

/// The kinds of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetadataKind {
    /// The superblock or a copy, descriptors, and what is reserved for them.
    Descriptors,
    BlockBitmap,
    InodeBitmap,
    InodeTable,
    /// The block of multiple mount protection.
    Mmp,
}

impl MetadataKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "superblock and descriptors",
            Self::BlockBitmap => "block bitmap",
            Self::InodeBitmap => "inode bitmap",
            Self::InodeTable => "inode table",
            Self::Mmp => "multiple-mount block",
        }
    }
}

/// Contiguous blocks of metadata of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetadataRun {
    pub(super) start: u64,
    pub(super) length: u32,
    pub(super) group: u32,
    pub(super) what: MetadataKind,
}

impl MetadataRun {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }
}

/// All runs of metadata, sorted by their starts, and by group where several start at one place.
pub(super) fn metadata_runs(volume: &Volume, groups: &[Group]) -> Vec<MetadataRun> {
    let geometry = &volume.geometry;
    let mut all = Vec::with_capacity(groups.len() * 3 + 64);
    for (index, group) in groups.iter().enumerate() {
        let number = group_number(index);
        let mut add = |is_there: bool, what, start, length| {
            if is_there && length > 0 {
                all.push(MetadataRun {
                    start,
                    length,
                    group: number.get(),
                    what,
                });
            }
        };
        let overhead = geometry.superblock_overhead(number);
        let first = geometry.first_block(number).get();
        add(true, MetadataKind::Descriptors, first, overhead);
        add(
            group.has_block_bitmap,
            MetadataKind::BlockBitmap,
            group.block_bitmap,
            1,
        );
        add(
            group.has_inode_bitmap,
            MetadataKind::InodeBitmap,
            group.inode_bitmap,
            1,
        );
        let table = geometry.inode_table_blocks;
        add(
            group.has_table,
            MetadataKind::InodeTable,
            group.inode_table,
            table,
        );
    }
    let mmp = volume.superblock.mmp_block;
    if geometry.features.has_incompat(Incompat::MMP) && volume.contains(mmp, 1) {
        all.push(MetadataRun {
            start: mmp.get(),
            length: 1,
            group: 0,
            what: MetadataKind::Mmp,
        });
    }
    all.sort_unstable_by_key(|run| (run.start, run.group));
    all
}

/// The most inodes of tables that lie on others: some hundred groups of the usual size.
const MAX_INODES_AGAIN: u32 = 1 << 20;

/// Claims all metadata and reports overlaps. If two tables overlap, both are read: their inodes
/// show which one is right. But all groups could share one table, and so have more inodes than the
/// image has room for. So beyond [`MAX_INODES_AGAIN`] the later tables are treated as lost.
pub(super) fn claim(volume: &Volume, groups: &mut [Group], claims: &Claims, findings: &Findings) {
    let mut farthest: Option<MetadataRun> = None;
    let mut tables = Tables {
        end: 0,
        per_group: volume.geometry.inodes_per_group,
        left: MAX_INODES_AGAIN,
    };
    let mut lost = Vec::new();
    for run in metadata_runs(volume, groups) {
        claims.claim_metadata(BlockNumber(run.start), u64::from(run.length));
        if run.what == MetadataKind::InodeTable && !tables.add(&run) {
            groups[run.group as usize].has_table = false;
            lost.push(run.group);
        }
        if let Some(before) = farthest
            && before.end() > run.start
        {
            let place = Place::group(GroupNumber(run.group)).block(BlockNumber(run.start));
            findings.add(Kind::MetadataOverlap, place, || {
                let (what, other) = (run.what.name(), before.what.name());
                format!("{what} lies on the {other} of group {}", before.group)
            });
        }
        if farthest.is_none_or(|before| before.end() < run.end()) {
            farthest = Some(run);
        }
    }
    if let Some(&first) = lost.first() {
        let count = lost.len();
        findings.add(Kind::LimitReached, Place::group(GroupNumber(first)), || {
            format!("inode tables of {count} groups lie on others and were not read")
        });
    }
}

/// The inode tables so far, in the order of their starts.
struct Tables {
    /// The end of the farthest of those that are read.
    end: u64,
    per_group: u32,
    /// How many inodes of tables that lie on others may still be read.
    left: u32,
}

impl Tables {
    /// Whether a table is to be read.
    fn add(&mut self, table: &MetadataRun) -> bool {
        if table.start < self.end {
            match self.left.checked_sub(self.per_group) {
                Some(left) => self.left = left,
                None => return false,
            }
        }
        self.end = self.end.max(table.end());
        true
    }
}

/// Compares the locations in backups of descriptors with those in the primaries, and checks the
/// backups of the superblock.
pub(super) fn check_backups(
    volume: &Volume,
    groups: &[Group],
    workers: &Workers<'_>,
    findings: &Findings,
) {
    let geometry = &volume.geometry;
    let backups = backup_groups(geometry);
    let check = |(): &mut (), index: u32| {
        for copy in copies(geometry, &backups, index) {
            check_copy(volume, groups, index, copy, findings);
        }
    };
    workers.each(Pass::Superblock, geometry.descriptor_blocks, || (), check);
    for group in backups {
        super::superblock::check_backup(volume, group, findings);
    }
}

/// The groups that have copies of the superblock. Computed once: a walk over all groups for each
/// block of descriptors would take too long.
fn backup_groups(geometry: &Geometry) -> Vec<GroupNumber> {
    let groups = geometry.groups().skip(1);
    groups
        .filter(|&group| geometry.has_superblock(group))
        .collect()
}

/// The locations of the copies of a block of descriptors.
fn copies<'a>(
    geometry: &'a Geometry,
    backups: &'a [GroupNumber],
    index: u32,
) -> impl Iterator<Item = BlockNumber> + 'a {
    let is_meta = geometry.has_meta_bg() && index >= geometry.first_meta_bg;
    let of_meta_group = is_meta.then(|| geometry.descriptor_block_copies(index));
    // Meta groups from `first_meta_bg` on contain only their own descriptors.
    let end = match geometry.has_meta_bg() {
        true => geometry
            .first_meta_bg
            .saturating_mul(geometry.descriptors_per_block),
        false => u32::MAX,
    };
    let behind_superblock =
        move |group: &GroupNumber| geometry.first_block(*group).checked_add(1 + index);
    let backups = backups.iter().filter(move |group| group.get() < end);
    let behind_superblocks = (!is_meta).then(|| backups.filter_map(behind_superblock));
    let of_meta_group = of_meta_group.into_iter().flatten();
    of_meta_group.chain(behind_superblocks.into_iter().flatten())
}

fn check_copy(
    volume: &Volume,
    groups: &[Group],
    index: u32,
    copy: BlockNumber,
    findings: &Findings,
) {
    let geometry = &volume.geometry;
    let bytes = match volume.block(copy) {
        Ok(bytes) => bytes,
        Err(error) => {
            let place = Place::whole().block(copy);
            return findings.add(Kind::Unreadable, place, || format!("descriptors: {error}"));
        }
    };
    let primary = geometry.descriptor_block(index);
    if volume
        .block(primary)
        .is_ok_and(|primary| same_places(&primary, &bytes, geometry))
    {
        return;
    }
    let per_block = geometry.descriptors_per_block as usize;
    let first = index as usize * per_block;
    let own = groups.iter().enumerate().skip(first).take(per_block);
    let size = usize::from(geometry.descriptor_size);
    let mut differing = own
        .zip(bytes.chunks_exact(size))
        .filter_map(|((number, group), bytes)| {
            let number = group_number(number);
            let backup = GroupDescriptor::decode_unverified(bytes, geometry, number).ok()?;
            let differs = group.is_known
                && (backup.block_bitmap.get() != group.block_bitmap
                    || backup.inode_bitmap.get() != group.inode_bitmap
                    || backup.inode_table.get() != group.inode_table);
            differs.then_some(number)
        });
    if let Some(group) = differing.next() {
        let more = differing.count();
        let place = Place::group(group).block(copy);
        findings.add(Kind::BackupDescriptors, place, || {
            format!("a copy places its metadata elsewhere ({more} more groups in this block)")
        });
    }
}

/// Whether two blocks of descriptors have the same locations. Compares bytes, which is fast: most
/// blocks agree, and there may be millions.
fn same_places(one: &[u8], other: &[u8], geometry: &Geometry) -> bool {
    let size = usize::from(geometry.descriptor_size);
    one == other
        || one
            .chunks_exact(size)
            .zip(other.chunks_exact(size))
            .all(|(one, other)| {
                let high = SHORT_SIZE..SHORT_SIZE + PLACES;
                one[..PLACES] == other[..PLACES] && one.get(high.clone()) == other.get(high)
            })
}
