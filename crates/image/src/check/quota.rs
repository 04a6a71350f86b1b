//! Quotas: compares the usage of users, groups and projects that pass 1 found with the quota files.
//!
//! The owner of an inode is charged its blocks and one inode, and one more inode for each attribute
//! value that is stored in an inode of its own. The blocks of such values are charged to the owner
//! of the attribute. Inodes of the file system itself are charged to nobody, except for the root
//! directory.

use std::collections::BTreeMap;

use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Features, ReadOnlyCompat};
use pext4_ondisk::inode::{Inode, InodeFlags};
use pext4_ondisk::quota::{BLOCK_SIZE, Header, OwnerKind};
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::Examination;
use super::catalogue::Kind;
use super::findings::Place;
use super::inode::InodeSubject;
use super::parallel::Workers;
use super::quota_tree::{self, File};
use super::special::{GROUP_QUOTA, USER_QUOTA};
use super::volume::Volume;

/// The usage of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Bytes of blocks.
    pub(super) space: u64,
    pub(super) inodes: u64,
}

impl Taken {
    fn add(&mut self, other: Self) {
        self.space = self.space.saturating_add(other.space);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// The usage of all owners, by kind of owner and number. Empty for a kind without a quota file.
#[derive(Debug, Default)]
pub(super) struct Usage([BTreeMap<u32, Taken>; 3]);

impl Usage {
    /// Charges an inode to its owners. `values` is the number of its attribute values that are
    /// stored in inodes of their own.
    pub(super) fn charge(&mut self, subject: &InodeSubject<'_>, values: u64) {
        let volume = &subject.examination.volume;
        if !has_quota(&volume.geometry.features) || is_not_charged(subject) {
            return;
        }
        let inode = subject.inode;
        let sectors = inode.sectors(volume.geometry.block_size);
        let taken = Taken {
            space: sectors.saturating_mul(512),
            inodes: values.saturating_add(1),
        };
        for (owner, accounts) in OwnerKind::ALL.into_iter().zip(&mut self.0) {
            if volume.quota_inode(owner).get() != 0 {
                accounts
                    .entry(number_of(owner, inode))
                    .or_default()
                    .add(taken);
            }
        }
    }

    /// Adds the usage that another thread counted.
    pub(super) fn join(&mut self, other: Self) {
        for (accounts, others) in self.0.iter_mut().zip(other.0) {
            for (id, taken) in others {
                accounts.entry(id).or_default().add(taken);
            }
        }
    }
}

fn has_quota(features: &Features) -> bool {
    features.has_read_only_compat(ReadOnlyCompat::QUOTA)
}

/// Whether an inode is not charged: inodes of the file system itself, and attribute values, which
/// are charged through the attribute.
fn is_not_charged(subject: &InodeSubject<'_>) -> bool {
    let volume = &subject.examination.volume;
    let number = subject.number;
    (number < volume.geometry.first_inode && number != InodeNumber::ROOT)
        || subject.inode.flags.contains(InodeFlags::EA_INODE)
        || subject.examination.hidden.contains(&number)
}

/// The number of an inode's owner.
fn number_of(owner: OwnerKind, inode: &Inode) -> u32 {
    match owner {
        OwnerKind::User => inode.uid,
        OwnerKind::Group => inode.gid,
        OwnerKind::Project => inode.project,
    }
}

impl Volume {
    /// The quota file for a kind of owner; 0 for none.
    fn quota_inode(&self, owner: OwnerKind) -> InodeNumber {
        match owner {
            OwnerKind::User => self.superblock.user_quota_inode,
            OwnerKind::Group => self.superblock.group_quota_inode,
            OwnerKind::Project => self.superblock.project_quota_inode,
        }
    }
}

/// Checks the quota files, and compares them with the usage if it is known.
pub(super) fn check(examination: &Examination, usage: Option<&Usage>, workers: &Workers<'_>) {
    let volume = &examination.volume;
    let has_quota = has_quota(&volume.geometry.features);
    for (place, owner) in OwnerKind::ALL.into_iter().enumerate() {
        let accounts = usage.map(|usage| &usage.0[place]);
        let number = volume.quota_inode(owner);
        if number.get() == 0 {
            continue;
        }
        if !may_count(volume, number) {
            let text = || format!("the superblock names it for {}s", owner.name());
            let place = Place::inode(number);
            examination.findings.add(Kind::QuotaInode, place, text);
        } else if has_quota {
            check_file(examination, workers, owner, number, accounts);
        } else if is_file(examination, number) {
            let text = || {
                format!(
                    "the superblock names it for {}s, without quota",
                    owner.name()
                )
            };
            let place = Place::inode(number);
            examination.findings.add(Kind::SuperblockField, place, text);
        }
    }
}

/// Whether an inode is a file of a user.
fn is_file(examination: &Examination, number: InodeNumber) -> bool {
    let volume = &examination.volume;
    let inode = volume.inode(&examination.groups, number);
    let is_own = number < volume.geometry.first_inode || examination.hidden.contains(&number);
    !is_own && inode.is_ok_and(|inode| inode.links != 0)
}

/// Whether an inode can be a quota file: one that is reserved for that, or one that is not
/// reserved.
fn may_count(volume: &Volume, number: InodeNumber) -> bool {
    let is_kept = matches!(number.get(), USER_QUOTA | GROUP_QUOTA);
    let is_free = number >= volume.geometry.first_inode;
    is_kept || (is_free && number.get() <= volume.superblock.inodes_count)
}

fn check_file(
    examination: &Examination,
    workers: &Workers<'_>,
    owner: OwnerKind,
    number: InodeNumber,
    accounts: Option<&BTreeMap<u32, Taken>>,
) {
    let (mut file, header) = match open(examination, owner, number) {
        Ok(opened) => opened,
        Err((block, problem)) => {
            let mut place = Place::inode(number);
            place.block = block;
            return examination
                .findings
                .add(Kind::QuotaInode, place, || problem);
        }
    };
    let recorded = quota_tree::read(examination, workers, &mut file, header.blocks);
    let Some(accounts) = accounts else {
        return;
    };
    let report = |block: Option<BlockNumber>, id: u32, problem: String| {
        let mut place = Place::inode(number);
        place.block = block;
        let text = || format!("{} {id}: {problem}", owner.name());
        examination.findings.add(Kind::QuotaUsage, place, text);
    };
    for (&id, entry) in &recorded.entries {
        let taken = accounts.get(&id).copied().unwrap_or_default();
        if entry.taken != taken {
            let (recorded, is) = (shown(entry.taken), shown(taken));
            report(entry.block, id, format!("counts {recorded}, has {is}"));
        }
    }
    // If a part of the tree was not read, an entry may be there.
    let missing = accounts
        .iter()
        .filter(|(id, _)| !recorded.is_partial && !recorded.entries.contains_key(id));
    for (&id, &taken) in missing {
        report(None, id, format!("has {}, and no entry", shown(taken)));
    }
}

fn shown(taken: Taken) -> String {
    format!("{} bytes and {} inodes", taken.space, taken.inodes)
}

/// The file and its header, or a block and the problem with it.
fn open<'a>(
    examination: &'a Examination,
    owner: OwnerKind,
    number: InodeNumber,
) -> Result<(File<'a>, Header), (Option<BlockNumber>, String)> {
    let volume = &examination.volume;
    let nowhere = |problem: &str| (None, problem.to_owned());
    let inode = volume
        .inode(&examination.groups, number)
        .map_err(|_| nowhere("there is no such inode"))?;
    if inode.file_type() != Some(FileType::Regular) || inode.links == 0 {
        let (mode, links) = (inode.mode, inode.links);
        return Err((None, format!("mode {mode:06o} with {links} links")));
    }
    let mut file = File::new(examination, number, &inode);
    let (block, bytes) = file.block(0);
    if block.is_none() || bytes.len() < BLOCK_SIZE {
        return Err((block, "its header cannot be read".to_owned()));
    }
    match Header::decode(bytes, owner, inode.size) {
        Ok(header) => Ok((file, header)),
        Err(corrupt) => Err((block, corrupt.problem().to_owned())),
    }
}
