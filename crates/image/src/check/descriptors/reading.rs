//! Reads the descriptors and judges each by itself.
//!
//! A descriptor is *sound* if its checksum is right and its bitmaps and table can lie where it
//! says. In place of one that is not, the first sound backup says where they lie. A mount does not
//! write backups, so their counts and checksums of bitmaps may be old, and are not used
//! ([`Group::from_backup`]).

use std::ops::Range;

use pext4_ondisk::feature::Incompat;
use pext4_ondisk::geometry::Geometry;
use pext4_ondisk::group_descriptor::{GroupDescriptor, GroupFlags};
use pext4_ondisk::{BlockNumber, Corrupt, GroupNumber};

use super::{MetadataKind, backup_groups, copies};
use crate::check::bad_blocks::{merged, overlapping};
use crate::check::catalogue::Kind;
use crate::check::findings::{Findings, Place};
use crate::check::volume::{Group, Volume, group_number};

/// The maximum number of copies of a block of descriptors among which a sound one is looked for.
const MAX_COPIES: usize = 8;

/// Reads all descriptors.
pub(in crate::check) fn read(volume: &Volume, findings: &Findings) -> Vec<Group> {
    let geometry = &volume.geometry;
    let mut groups = vec![Group::default(); geometry.group_count as usize];
    let reader = Reader {
        volume,
        findings,
        occupied: Occupied::of(geometry),
        backups: backup_groups(geometry),
    };
    let per_block = geometry.descriptors_per_block as usize;
    for (index, chunk) in groups.chunks_mut(per_block).enumerate() {
        let index = u32::try_from(index).expect("fewer blocks than groups");
        reader.block(index, chunk);
    }
    groups
}

/// The blocks on which no bitmap or table can lie. Runs are sorted and apart.
struct Occupied {
    /// Superblocks and descriptors, and their copies.
    taken: Vec<Range<u64>>,
    /// The same, and the blocks that are reserved for more descriptors.
    reserved: Vec<Range<u64>>,
}

impl Occupied {
    fn of(geometry: &Geometry) -> Self {
        let (mut taken, mut reserved) = (Vec::new(), Vec::new());
        for group in geometry.groups() {
            let all = geometry.superblock_overhead(group);
            let has_reserved = geometry.has_superblock(group) && !geometry.has_meta_bg();
            let kept = if has_reserved {
                geometry.reserved_gdt_blocks
            } else {
                0
            };
            if all > 0 {
                let start = geometry.first_block(group);
                taken.push((start, u64::from(all.saturating_sub(kept))));
                reserved.push((start, u64::from(all)));
            }
        }
        Self {
            taken: merged(taken),
            reserved: merged(reserved),
        }
    }
}

/// Whether metadata can lie where a descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Possible,
    /// On blocks that are reserved for descriptors. Without a sound backup it is followed all the
    /// same: what is wrong may be the superblock's count of these blocks.
    Reserved,
    Impossible,
}

/// A bitmap or a table of a group.
struct Structure {
    what: MetadataKind,
    start: u64,
    length: u64,
    placement: Placement,
}

/// A descriptor, and what is wrong with it.
struct Judged {
    group: Group,
    checksum: Result<(), Corrupt>,
    structures: [Structure; 3],
}

impl Judged {
    fn is_sound(&self) -> bool {
        self.checksum.is_ok() && self.misplaced().is_none()
    }

    /// The first structure that lies where it should not.
    fn misplaced(&self) -> Option<&Structure> {
        let mut all = self.structures.iter();
        all.find(|one| one.placement != Placement::Possible)
    }

    /// Whether bitmaps and table lie where another descriptor of the group has them.
    fn agrees_with(&self, other: &Group) -> bool {
        let places = |group: &Group| (group.block_bitmap, group.inode_bitmap, group.inode_table);
        places(&self.group) == places(other)
    }
}

/// A sound backup of a descriptor, and the block that it is in.
struct Backup {
    block: BlockNumber,
    group: Group,
}

struct Reader<'a> {
    volume: &'a Volume,
    findings: &'a Findings,
    occupied: Occupied,
    /// The groups that have copies of the superblock.
    backups: Vec<GroupNumber>,
}

impl Reader<'_> {
    /// Reads the descriptors of block `index` into their groups.
    fn block(&self, index: u32, groups: &mut [Group]) {
        let geometry = &self.volume.geometry;
        let block = geometry.descriptor_block(index);
        let bytes = match self.volume.block(block) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                let place = Place::whole().block(block);
                let text = || format!("descriptors: {error}");
                self.findings.add(Kind::Unreadable, place, text);
                None
            }
        };
        let first = index as usize * geometry.descriptors_per_block as usize;
        let mut copies = None;
        for (slot, group) in groups.iter_mut().enumerate() {
            let number = group_number(first + slot);
            let own = bytes.as_deref();
            let own = own.and_then(|bytes| self.judge(number, slot, bytes));
            let backup = match own.as_ref().is_some_and(Judged::is_sound) {
                true => None,
                false => {
                    let copies = copies.get_or_insert_with(|| self.read_copies(index));
                    self.sound_backup(number, slot, copies)
                }
            };
            *group = self.choose(number, block, own, backup);
        }
    }

    /// The copies of a block of descriptors that can be read, and where they are.
    fn read_copies(&self, index: u32) -> Vec<(BlockNumber, Vec<u8>)> {
        copies(&self.volume.geometry, &self.backups, index)
            .take(MAX_COPIES)
            // One that cannot be read is reported with the backups.
            .filter_map(|copy| Some((copy, self.volume.block(copy).ok()?)))
            .collect()
    }

    fn sound_backup(
        &self,
        number: GroupNumber,
        slot: usize,
        copies: &[(BlockNumber, Vec<u8>)],
    ) -> Option<Backup> {
        copies.iter().find_map(|(block, bytes)| {
            let judged = self.judge(number, slot, bytes)?;
            judged.is_sound().then(|| Backup {
                block: *block,
                group: Group::from_backup(judged.group),
            })
        })
    }

    fn judge(&self, number: GroupNumber, slot: usize, bytes: &[u8]) -> Option<Judged> {
        let geometry = &self.volume.geometry;
        let size = usize::from(geometry.descriptor_size);
        let bytes = bytes.chunks_exact(size).nth(slot)?;
        let descriptor = GroupDescriptor::decode_unverified(bytes, geometry, number).ok()?;
        let mut group = Group::of(&descriptor);
        let structure = |what, start, length| Structure {
            what,
            start,
            length,
            placement: self.placement(number, start, length),
        };
        let table = u64::from(geometry.inode_table_blocks);
        let structures = [
            structure(MetadataKind::BlockBitmap, group.block_bitmap, 1),
            structure(MetadataKind::InodeBitmap, group.inode_bitmap, 1),
            structure(MetadataKind::InodeTable, group.inode_table, table),
        ];
        let [has_block_bitmap, has_inode_bitmap, has_table] =
            [0, 1, 2].map(|one: usize| structures[one].placement != Placement::Impossible);
        group.has_block_bitmap = has_block_bitmap;
        group.has_inode_bitmap = has_inode_bitmap;
        group.has_table = has_table;
        let checksum = GroupDescriptor::decode(bytes, geometry, number).map(|_| ());
        Some(Judged {
            group,
            checksum,
            structures,
        })
    }

    fn placement(&self, group: GroupNumber, start: u64, length: u64) -> Placement {
        let geometry = &self.volume.geometry;
        if !is_inside(geometry, group, start, length) {
            return Placement::Impossible;
        }
        let lies_on = |runs: &[Range<u64>]| overlapping(runs, start..start + length).next();
        if lies_on(&self.occupied.taken).is_some() {
            Placement::Impossible
        } else if lies_on(&self.occupied.reserved).is_some() {
            Placement::Reserved
        } else {
            Placement::Possible
        }
    }

    /// What the passes use of a group's descriptor and of its sound backup, if it needed one.
    fn choose(
        &self,
        number: GroupNumber,
        block: BlockNumber,
        own: Option<Judged>,
        backup: Option<Backup>,
    ) -> Group {
        match (own, backup) {
            (None, None) => Group::default(),
            (None, Some(backup)) => backup.group,
            (Some(own), Some(backup)) if !own.agrees_with(&backup.group) => {
                self.report_replaced(number, block, &own, backup.block);
                backup.group
            }
            (Some(own), _) => self.keep(number, block, own),
        }
    }

    /// Reports a descriptor that a backup replaces.
    fn report_replaced(
        &self,
        number: GroupNumber,
        block: BlockNumber,
        own: &Judged,
        backup: BlockNumber,
    ) {
        let (kind, problem) = match (&own.checksum, own.misplaced()) {
            (Err(corrupt), _) => {
                let (what, problem) = (corrupt.structure(), corrupt.problem());
                (Kind::DescriptorChecksum, format!("{what}: {problem}"))
            }
            (Ok(()), Some(structure)) => (Kind::DescriptorPlace, shown(structure)),
            (Ok(()), None) => return,
        };
        let place = Place::group(number).block(block);
        self.findings.add(kind, place, || {
            format!("{problem}; checked by the backup in block {backup}")
        });
    }

    /// Reports what is wrong with a descriptor that no backup replaces.
    fn keep(&self, number: GroupNumber, block: BlockNumber, own: Judged) -> Group {
        let mut group = own.group;
        if let Err(corrupt) = &own.checksum {
            let place = Place::group(number).block(block);
            self.findings
                .corrupt(Kind::DescriptorChecksum, place, corrupt);
            // If the checksum is wrong, ignore fields that would let later passes skip something.
            group
                .flags
                .remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
            group.unused_inodes = 0;
        }
        check_flags(&self.volume.geometry, number, &group, self.findings);
        for structure in &own.structures {
            if structure.placement == Placement::Impossible {
                let text = || shown(structure);
                self.findings
                    .add(Kind::DescriptorPlace, Place::group(number), text);
            }
        }
        group
    }
}

fn shown(structure: &Structure) -> String {
    let (what, start, length) = (structure.what.name(), structure.start, structure.length);
    format!("{what} at block {start}, {length} long")
}

fn is_inside(geometry: &Geometry, group: GroupNumber, start: u64, length: u64) -> bool {
    let first = geometry.first_block(group).get();
    let end = first + u64::from(geometry.blocks_in(group));
    let flexible = geometry.features.has_incompat(Incompat::FLEX_BG);
    geometry.contains(BlockNumber(start), length)
        && (flexible || (start >= first && start + length <= end))
}

fn check_flags(geometry: &Geometry, number: GroupNumber, group: &Group, findings: &Findings) {
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    let problem = if !geometry.checksums.protects_descriptors()
        && (group.flags.intersects(uninit) || group.unused_inodes != 0)
    {
        "parts are marked as never written, without a checksum that protects the mark"
    } else if group.flags.contains(GroupFlags::BLOCK_UNINIT)
        && number.get() + 1 == geometry.group_count
    {
        "the last group's block bitmap is marked as never written"
    } else if group.unused_inodes > group.free_inodes {
        "more inodes were never used than are free"
    } else {
        return;
    };
    findings.add(Kind::DescriptorFlags, Place::group(number), || {
        problem.to_owned()
    });
}
