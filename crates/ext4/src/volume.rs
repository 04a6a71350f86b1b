//! A mounted file system: what users of the library hold.
//!
//! Every operation takes `&self` and may be called from many threads at once. The operations (in
//! `ops`) work on inode numbers; an inode a caller names must be held (see
//! [`Entry`](crate::Entry)) or have a name. `path` has the same on paths, in the manner of
//! `std::fs`. `mount` makes a volume from a device and takes it down.

use std::fmt;

use pext4_sync::atomic::AtomicU32;
use pext4_sync::{Mutex, meter};

use crate::dir::DirectorySettings;
use crate::error::Error;
use crate::inode::table::Inodes;
use crate::mbcache::AttributeCacheStatistics;
use crate::statistics::{Report, Section};
use crate::types::InodeNumber;

/// A mounted ext4 file system.
pub struct Volume {
    pub(crate) inodes: Inodes,
    /// [immutable after mount]
    pub(crate) directory_settings: DirectorySettings,
    /// One move between directories at a time.
    pub(crate) rename_lock: Mutex<()>,
    /// Whether directories may have more subdirectories than links can count (`dir_nlink`).
    /// [immutable after mount]
    pub(crate) many_subdirectories: bool,
    /// [immutable after mount]
    pub(crate) generation_seed: u64,
    /// The next generation, where they are counted.
    pub(crate) counted_generation: Option<AtomicU32>,
    /// Bytes of the extra part of new inodes. [immutable after mount]
    pub(crate) new_inode_extra_size: u16,
    /// Whether new files, directories and links begin in their inodes.
    pub(crate) begins_inline: bool,
    /// Blocks that the file system's own structures take. [immutable after mount]
    pub(crate) overhead_blocks: u64,
    /// What a person should know about this mount. [immutable after mount]
    pub(crate) notes: Vec<String>,
    pub(crate) is_open: bool,
    /// Whether the image said that it was closed cleanly. [immutable after mount]
    pub(crate) was_clean: bool,
}

impl fmt::Debug for Volume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Volume")
            .field("is_read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

impl Volume {
    /// Whether writes are refused: it was asked for, the image needs it, or an error forced it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inodes.store.is_read_only()
    }

    /// Why writing has stopped, if an error of the device or the journal stopped it.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let journal = self.inodes.store.try_journal()?;
        journal.failure().map(Error::Journal)
    }

    /// The inodes that callers hold at this moment.
    #[must_use]
    pub fn held(&self) -> Vec<InodeNumber> {
        self.inodes.holds.all()
    }

    /// What the cache of shared attribute blocks did since the mount.
    #[must_use]
    pub fn attribute_cache_statistics(&self) -> AttributeCacheStatistics {
        self.inodes.attribute_blocks.statistics()
    }

    /// What a person should know about this mount: a replayed journal, finished orphans, features
    /// that force it to be read-only.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether searches for blocks go by the index of groups (`mb_optimize_scan`), not one by one.
    #[must_use]
    pub fn optimizes_scan(&self) -> bool {
        self.inodes.groups.optimizes_scan()
    }

    /// Puts the index of groups to use or out of use, at once and for everyone.
    pub fn set_optimize_scan(&self, optimize: bool) {
        self.inodes.groups.set_optimize_scan(optimize);
    }

    /// What the mechanisms and the journal did since the mount, and what there is now.
    #[must_use]
    pub fn report(&self) -> Report {
        let store = &self.inodes.store;
        let mut scaling = store.options.scaling;
        scaling.optimize_scan = self.optimizes_scan();
        let mut sections = store.tally.sections();
        sections.push(self.inodes.groups.section());
        sections.push(attributes_section(&self.attribute_cache_statistics()));
        if let Some(journal) = store.try_journal() {
            sections.push(journal_section(&journal.statistics()));
        }
        if meter::is_built_in() {
            sections.push(locks_section());
        }
        Report {
            scaling: scaling.to_string(),
            sections,
        }
    }
}

fn attributes_section(cache: &AttributeCacheStatistics) -> Section {
    Section::new(
        "attribute blocks",
        [
            ("found and shared", cache.hits),
            ("not found", cache.misses),
            ("copied, as all were busy", cache.copied),
            ("made known", cache.inserted),
            ("given up or changed", cache.dropped),
            ("full", cache.capped),
            ("waits for a holder", cache.held),
            ("counted core by core", cache.apart),
        ],
    )
}

fn journal_section(journal: &pext4_jbd2::Statistics) -> Section {
    Section::new(
        "journal",
        [
            ("handles", journal.handles),
            ("waits for credits", journal.waits),
            ("handles short of credits", journal.shortfalls),
            ("commits", journal.commits),
            ("blocks", journal.blocks),
            ("blocks of the log", journal.log_blocks),
            ("revokes", journal.revokes),
            ("checkpoints", journal.checkpoints),
            ("blocks written home", journal.blocks_home),
            ("waits for the log", journal.log_waits),
        ],
    )
}

/// The locks of this process by class, in a build with meters that are switched on.
fn locks_section() -> Section {
    let mut values = Vec::new();
    for (class, tally) in meter::snapshot().used() {
        values.push((format!("{class:?} taken").into(), tally.acquisitions));
        values.push((format!("{class:?} waited for").into(), tally.contended));
    }
    Section {
        name: "locks",
        values,
    }
}
