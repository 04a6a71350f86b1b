//! Pass 0: orphans, which are inodes to be deleted or truncated, from the list that begins in the
//! superblock and from the orphan file.

use std::collections::HashSet;

use pext4_ondisk::directory::FileType;
use pext4_ondisk::feature::{Compat, ReadOnlyCompat};
use pext4_ondisk::inode::Inode;
use pext4_ondisk::orphan_file::{MAX_BLOCKS, OrphanBlock};
use pext4_ondisk::{BlockNumber, InodeNumber};

use super::catalogue::Kind;
use super::findings::{Findings, Place};
use super::mapping::Collector;
use super::volume::{Group, Volume};

/// The maximum number of orphans that are kept.
const MAX_ORPHANS: usize = 1 << 22;

/// The orphans.
#[derive(Default)]
pub(super) struct Orphans {
    numbers: HashSet<u32>,
}

impl Orphans {
    pub(super) fn contains(&self, number: InodeNumber) -> bool {
        !self.numbers.is_empty() && self.numbers.contains(&number.get())
    }
}

struct Search<'a> {
    volume: &'a Volume,
    groups: &'a [Group],
    findings: &'a Findings,
    orphans: Orphans,
    /// There were more than are kept.
    is_cut_short: bool,
}

/// Collects all orphans, and checks the list and the file.
pub(super) fn collect(volume: &Volume, groups: &[Group], findings: &Findings) -> Orphans {
    let mut search = Search {
        volume,
        groups,
        findings,
        orphans: Orphans::default(),
        is_cut_short: false,
    };
    search.list();
    search.file();
    let count = search.orphans.numbers.len();
    if count > 0 {
        findings.add(Kind::OrphansPending, Place::whole(), || match count {
            1 => "1 inode waits to be deleted or truncated".to_owned(),
            count => format!("{count} inodes wait to be deleted or truncated"),
        });
    }
    search.orphans
}

impl Search<'_> {
    /// Adds an inode that `source` names as an orphan. `None`, with a finding, if it cannot be one.
    fn admit(&mut self, number: InodeNumber, source: &str) -> Option<Inode> {
        let reject = |why: &str| {
            let place = Place::inode(number);
            let text = || format!("the orphan {source} names it: {why}");
            self.findings.add(Kind::OrphanEntry, place, text);
        };
        let geometry = &self.volume.geometry;
        if number < geometry.first_inode || number.get() > geometry.inodes_count {
            reject("there is no such file");
            return None;
        }
        let Ok(inode) = self.volume.inode(self.groups, number) else {
            reject("it cannot be read");
            return None;
        };
        if inode.mode == 0 {
            reject("it is not in use");
            return None;
        }
        if self.is_own(number, &inode) {
            reject("it is a file of the file system's own");
            return None;
        }
        if self.orphans.numbers.len() >= MAX_ORPHANS {
            if !std::mem::replace(&mut self.is_cut_short, true) {
                self.findings.add(Kind::LimitReached, Place::whole(), || {
                    format!("more than {MAX_ORPHANS} orphans; the rest were not checked")
                });
            }
            return None;
        }
        if !self.orphans.numbers.insert(number.get()) {
            reject("it was named before");
            return None;
        }
        Some(inode)
    }

    /// Whether an inode is one of the file system's own. A mount would delete or cut it.
    fn is_own(&self, number: InodeNumber, inode: &Inode) -> bool {
        let superblock = &self.volume.superblock;
        let is_directory = inode.file_type() == Some(FileType::Directory) && inode.links > 0;
        // mke2fs makes it first, and notes its number nowhere.
        let is_lost_found = is_directory && number == self.volume.geometry.first_inode;
        let has_orphan_file = superblock.features.has_compat(Compat::ORPHAN_FILE);
        let numbers = [
            superblock.journal_inode,
            superblock.lost_found_inode,
            superblock.user_quota_inode,
            superblock.group_quota_inode,
            superblock.project_quota_inode,
        ];
        is_lost_found
            || numbers.contains(&number)
            || has_orphan_file && number == superblock.orphan_file_inode
    }

    fn list(&mut self) {
        let mut next = self.volume.superblock.last_orphan;
        while next.get() != 0 {
            let Some(inode) = self.admit(next, "list") else {
                return;
            };
            next = InodeNumber(inode.deletion_time);
        }
    }

    fn report(&self, text: String) {
        let place = Place::inode(self.volume.superblock.orphan_file_inode);
        self.findings.add(Kind::OrphanFile, place, || text);
    }

    fn file(&mut self) {
        let superblock = &self.volume.superblock;
        let number = superblock.orphan_file_inode;
        if !superblock.features.has_compat(Compat::ORPHAN_FILE) {
            return;
        }
        let Ok(inode) = self.volume.inode(self.groups, number) else {
            return self.report(format!("there is no inode {number}"));
        };
        let block_size = u64::from(self.volume.geometry.block_size);
        let blocks = inode.size / block_size;
        if inode.file_type() != Some(FileType::Regular)
            || inode.links == 0
            || blocks == 0
            || !inode.size.is_multiple_of(block_size)
        {
            let (mode, size) = (inode.mode, inode.size);
            return self.report(format!("mode {mode:06o}, {size} bytes"));
        }
        if blocks > MAX_BLOCKS {
            let text = || format!("an orphan file of {blocks} blocks, which was not read");
            let place = Place::inode(number);
            return self.findings.add(Kind::LimitReached, place, text);
        }
        let collected = Collector::collect(self.volume, number, &inode);
        // A mount reads no entries there. To e2fsck every block of the file is one of entries.
        if let Some(run) = collected.runs.iter().find(|run| run.end() > blocks) {
            let logical = blocks.max(run.logical.into());
            self.report(format!(
                "logical block {logical} is mapped, behind its {blocks} blocks"
            ));
        }
        let mut entries = 0u64;
        // A block that is mapped several times is read once. That it is shared is reported in pass
        // 1.
        let mut seen = HashSet::new();
        for logical in 0..u32::try_from(blocks).unwrap_or(u32::MAX) {
            match collected.place(logical) {
                None => self.report(format!("logical block {logical} is a hole")),
                Some(block) if seen.insert(block) => {
                    entries += self.block(number, &inode, block);
                }
                Some(_) => {}
            }
        }
        self.check_flag(entries);
    }

    /// Adds the entries of one block and returns their number.
    fn block(&mut self, number: InodeNumber, inode: &Inode, block: BlockNumber) -> u64 {
        let bytes = match self.volume.block(block) {
            Ok(bytes) => bytes,
            Err(error) => {
                let place = Place::inode(number).block(block);
                let text = || format!("orphan file: {error}");
                self.findings.add(Kind::Unreadable, place, text);
                return 0;
            }
        };
        let seed = self.volume.geometry.inode_seed(number, inode.generation);
        let decoded = OrphanBlock::decode(&bytes, number, block, seed);
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(corrupt) => {
                let place = Place::inode(number).block(block);
                self.findings.corrupt(Kind::OrphanFile, place, &corrupt);
                return 0;
            }
        };
        let mut entries = 0;
        for slot in decoded.slots.into_iter().filter(|&slot| slot != 0) {
            entries += 1;
            self.admit(InodeNumber(slot), "file");
        }
        entries
    }

    fn check_flag(&self, entries: u64) {
        let present = ReadOnlyCompat::ORPHAN_PRESENT;
        let features = &self.volume.superblock.features;
        let is_marked = features.has_read_only_compat(present);
        if is_marked != (entries > 0) {
            let place = Place::inode(self.volume.superblock.orphan_file_inode);
            self.findings.add(Kind::OrphanFlag, place, || {
                let mark = if is_marked { "marked" } else { "not marked" };
                format!("{entries} entries, {mark} as having some")
            });
        }
    }
}
