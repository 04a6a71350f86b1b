//! Inodes that were being deleted or truncated at a crash: found before anything is written, and
//! finished once the volume works.

use std::collections::HashSet;

use pext4_ondisk::feature::Compat;
use pext4_ondisk::orphan_file::MAX_BLOCKS;
use pext4_ondisk::superblock::State;
use pext4_ondisk::{BlockNumber, Corrupt, InodeNumber};

use super::MAX_NOTES;
use super::raw_files::{file_blocks, raw_slot};
use crate::error::{Error, Result};
use crate::inode::shared_blocks::share_blocks;
use crate::orphan::{OrphanFile, OrphanPlace};
use crate::store::Store;
use crate::volume::Volume;

/// The orphans that an image holds.
#[derive(Default)]
pub(super) struct FoundOrphans {
    pub file: Option<(OrphanFile, Vec<BlockNumber>)>,
    pub chain: Vec<InodeNumber>,
}

/// Reads which inodes are orphans; a read-only mount does not need them.
pub(super) fn find(store: &Store) -> Result<FoundOrphans> {
    if store.options.read_only {
        return Ok(FoundOrphans::default());
    }
    let (file, first, had_errors) = store.superblock(|superblock| {
        (
            superblock.orphan_file_inode,
            superblock.last_orphan,
            superblock.state.contains(State::ERRORS),
        )
    });
    let file = if store.features.has_compat(Compat::ORPHAN_FILE) {
        Some(orphan_file(store, file)?)
    } else {
        None
    };
    // On an image with errors the chain may be corrupt: it is left to e2fsck.
    let chain = if had_errors {
        Vec::new()
    } else {
        orphan_chain(store, first)?
    };
    Ok(FoundOrphans { file, chain })
}

fn orphan_file(store: &Store, inode: InodeNumber) -> Result<(OrphanFile, Vec<BlockNumber>)> {
    let slot = raw_slot(store, inode)?;
    let count = slot.size / u64::from(store.block_size());
    // One that is longer than the file system is damage.
    if (MAX_BLOCKS + 1..=store.geometry.blocks_count).contains(&count) {
        return Err(Error::unsupported(format!(
            "an orphan file of {count} blocks: up to {MAX_BLOCKS} are read; `tune2fs -O \
             ^orphan_file` removes it"
        )));
    }
    let runs = file_blocks(store, inode, &slot, "orphan file")?;
    // Otherwise what is kept of it would not be bounded by the image.
    if share_blocks(&runs) {
        let corrupt = Corrupt::new("orphan file", "has a block in two places");
        return Err(corrupt.in_inode(inode).into());
    }
    let blocks = runs
        .iter()
        .flat_map(|run| (0..run.length).filter_map(|step| run.start.checked_add(step)))
        .collect();
    Ok((
        OrphanFile {
            inode,
            generation: slot.generation,
        },
        blocks,
    ))
}

fn orphan_chain(store: &Store, first: InodeNumber) -> Result<Vec<InodeNumber>> {
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    let mut next = first;
    while next.get() != 0 {
        if next < store.geometry.first_inode || !seen.insert(next) {
            return Err(
                Corrupt::new("orphan list", format!("leads to inode {next}"))
                    .in_inode(next)
                    .into(),
            );
        }
        let slot = raw_slot(store, next)?;
        chain.push(next);
        next = InodeNumber(slot.deletion_time);
    }
    Ok(chain)
}

/// So many orphans, in words.
fn interrupted(orphans: usize) -> String {
    let what = match orphans {
        1 => "deletion or truncation",
        _ => "deletions and truncations",
    };
    format!("{orphans} {what} that a crash had interrupted")
}

impl Volume {
    /// Finishes orphans: deletes inodes without a name and truncates others to their size. An inode
    /// that cannot be finished stays an orphan, with a note.
    ///
    /// On an image with errors any inode may be listed as an orphan by mistake: all are left to
    /// e2fsck, and those in the orphan file stay there.
    pub(super) fn finish_orphans(mut self) -> Result<Self> {
        let orphans = self.inodes.orphans.snapshot();
        let store = &self.inodes.store;
        if !orphans.is_empty()
            && store.superblock(|superblock| superblock.state.contains(State::ERRORS))
        {
            let are = if orphans.len() == 1 { "is" } else { "are" };
            let interrupted = interrupted(orphans.len());
            self.notes
                .push(format!("{interrupted} {are} left to e2fsck -f"));
            return Ok(self);
        }
        let (mut finished, mut left) = (0usize, 0usize);
        for (number, place) in orphans {
            match self.finish_orphan(number, place) {
                Ok(is_finished) => finished += usize::from(is_finished),
                Err(error) if store.journal().failure().is_some() => return Err(error),
                Err(error) => {
                    left += 1;
                    if left <= MAX_NOTES {
                        self.notes.push(format!(
                            "orphan inode {number} could not be finished: {error}"
                        ));
                    }
                }
            }
        }
        let others = left.saturating_sub(MAX_NOTES);
        if others > 0 {
            let (inodes, them) = match others {
                1 => ("inode", "it"),
                _ => ("inodes", "them"),
            };
            self.notes.push(format!(
                "{others} more orphan {inodes} could not be finished; run `e2fsck -f` to repair {them}"
            ));
        }
        if finished > 0 {
            self.notes
                .push(format!("finished {}", interrupted(finished)));
        }
        Ok(self)
    }

    /// Finishes one orphan; false if it was finished before, at another place.
    fn finish_orphan(&self, number: InodeNumber, place: OrphanPlace) -> Result<bool> {
        if number < self.inodes.store.geometry.first_inode {
            return Err(Corrupt::new("orphan", "is a reserved inode")
                .in_inode(number)
                .into());
        }
        if !self.inodes.groups.is_inode_claimed(number)? {
            self.check_finished(number)?;
            self.inodes.remove_orphan_place(number, place)?;
            return Ok(false);
        }
        let inode = self.inodes.get_orphan(number, Some(place))?;
        if inode.is_dead() {
            // It is listed twice, and finished. A place that stays would name whatever file gets
            // the number next.
            self.inodes.remove_orphan_place(number, place)?;
            return Ok(false);
        }
        inode.note(|state| state.orphan = Some(place));
        if inode.state(|state| state.slot.links == 0) {
            self.reap_if_due(&inode)?;
        } else {
            self.inodes.finish_truncate(&inode)?;
        }
        Ok(true)
    }

    /// Fails unless an orphan whose number is free was deleted, at another place where it is
    /// listed. Others are damage: their blocks may be free too, so they are not freed again.
    fn check_finished(&self, number: InodeNumber) -> Result<()> {
        let store = &self.inodes.store;
        let is_deleted = match self.inodes.loaded_inode(number) {
            Some(inode) => inode.is_dead(),
            None => {
                let slot = raw_slot(store, number)?;
                let is_link = slot.deletion_time <= store.geometry.inodes_count;
                slot.mode == 0 || slot.links == 0 && !is_link
            }
        };
        if is_deleted {
            Ok(())
        } else {
            Err(self.inodes.wrongly_free(number))
        }
    }
}
