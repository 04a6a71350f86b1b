//! The quota files of a new file system.
//!
//! They are placed before the size of everything else is known, when it is known only who owns
//! files; what these take is entered at the end.

use std::collections::BTreeMap;

use pext4_ondisk::feature::{Features, ReadOnlyCompat};
use pext4_ondisk::inode::InodeFlags;
use pext4_ondisk::quota::{Entry, OwnerKind, encode_file};
use pext4_ondisk::superblock::Superblock;
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::Run;
use super::contents::{Files, new_inode};
use super::layout::Layout;
use super::map::map_blocks;
use crate::error::Result;

const USERS: InodeNumber = InodeNumber(3);
const GROUPS: InodeNumber = InodeNumber(4);

/// What owners take, by kind of owner and id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage([BTreeMap<u32, Entry>; 3]);

impl Usage {
    /// Charges the user, the group and the project one inode and the bytes of its blocks.
    pub(crate) fn charge(&mut self, owners: [u32; 3], space: u64) {
        for (accounts, id) in self.0.iter_mut().zip(owners) {
            let entry = accounts.entry(id).or_insert(Entry {
                id,
                space: 0,
                inodes: 0,
            });
            entry.space += space;
            entry.inodes += 1;
        }
    }

    fn file(&self, owner: OwnerKind) -> Vec<u8> {
        let entries: Vec<Entry> = self.0[owner as usize].values().copied().collect();
        encode_file(owner, &entries)
    }
}

/// The kinds of owners that a file system with these features counts.
pub(crate) fn kinds(features: &Features) -> impl Iterator<Item = OwnerKind> + use<> {
    let counts = features.has_read_only_compat(ReadOnlyCompat::QUOTA);
    let has_projects = features.has_read_only_compat(ReadOnlyCompat::PROJECT);
    let kinds = OwnerKind::ALL.into_iter().filter(move |_| counts);
    kinds.filter(move |owner| *owner != OwnerKind::Project || has_projects)
}

/// The place of a quota file.
pub(crate) struct Placed {
    owner: OwnerKind,
    runs: Vec<Run>,
}

/// Places the files that these owners need.
pub(super) fn place(
    layout: &mut Layout,
    superblock: &mut Superblock,
    owners: &Usage,
    files: &mut Files,
) -> Result<()> {
    let block_size = u64::from(layout.geometry.block_size);
    for owner in kinds(&superblock.features) {
        let length = owners.file(owner).len() as u64;
        let number = match owner {
            OwnerKind::User => USERS,
            OwnerKind::Group => GROUPS,
            OwnerKind::Project => layout.allocate_inode(),
        };
        let runs = layout.allocate(0, length.div_ceil(block_size))?;
        let mut inode = new_inode(superblock, 0o100_600, 1);
        map_blocks(layout, number, &mut inode, &runs, files)?;
        inode.size = length;
        inode.flags |= InodeFlags::IMMUTABLE;
        files.inodes.push((number, inode));
        let field = match owner {
            OwnerKind::User => &mut superblock.user_quota_inode,
            OwnerKind::Group => &mut superblock.group_quota_inode,
            OwnerKind::Project => &mut superblock.project_quota_inode,
        };
        *field = number;
        files.quotas.push(Placed { owner, runs });
    }
    Ok(())
}

impl Files {
    /// Enters what the owners take, for whom the quota files were placed.
    pub(crate) fn fill_quotas(&mut self, usage: &Usage, block_size: u32) {
        for Placed { owner, runs } in &self.quotas {
            let bytes = usage.file(*owner);
            let blocks = runs.iter().flat_map(Clone::clone);
            for (block, part) in blocks.zip(bytes.chunks(block_size as usize)) {
                let mut content = part.to_vec();
                content.resize(block_size as usize, 0);
                self.blocks.push((BlockNumber(block), content));
            }
        }
    }
}
