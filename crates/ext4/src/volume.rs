//! A mounted file system, the type that users of the library work with.
//!
//! Every operation takes `&self` and may be called from many threads at once. The operations (in
//! `ops`) work on inode numbers; an inode that a caller passes must be held (see
//! [`Entry`](crate::Entry)) or have a name. `path` provides the same operations on paths, in the
//! style of `std::fs`. `mount` opens a volume on a device and closes it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pext4_block::CountingDevice;
use pext4_jbd2::{CommitStep, Statistics as JournalStatistics};
use pext4_ondisk::{Corrupt, GroupNumber};
use pext4_sync::atomic::AtomicU32;
use pext4_sync::meter::Tallies;
use pext4_sync::{Mutex, meter};

use crate::dir::VolumeDirectories;
use crate::error::Error;
use crate::inode::inodes::Inodes;
use crate::mbcache::AttributeCacheStatistics;
use crate::multi_mount::Keeper;
use crate::quota::Quotas;
use crate::statistics::{GroupReport, Report, Section};
use crate::types::InodeNumber;

/// A mounted ext4 file system.
///
/// A volume knows no caller: it checks neither permission bits nor owners nor capabilities. What
/// refuses a change are flags (immutable, append-only) and a volume that is read-only; a server
/// checks permissions itself. Paths ([`Volume::paths`]) never leave the volume: `..` stops at the
/// root, and absolute links start there.
///
/// # Errors
///
/// Every operation that returns a `Result` may fail with `Io` and `Corrupt`, one on an inode with
/// `Refused(Stale)` if that is not in use, one that changes something with `Refused(ReadOnly)`, and
/// one that changes something or makes it durable with `Journal` once an error has stopped the
/// journal. What else may be refused is at each operation.
pub struct Volume {
    pub(crate) inodes: Inodes,
    /// Whose usage is counted, on a volume that is written.
    pub(crate) quotas: Option<Arc<Quotas>>,
    /// [immutable after mount]
    pub(crate) directories: VolumeDirectories,
    /// Whether casefolded directories have only names that are UTF-8. [immutable after mount]
    pub(crate) is_encoding_strict: bool,
    /// Serialises moves between directories.
    pub(crate) rename_lock: Mutex<()>,
    /// Whether directories with an index may have more subdirectories than their link count can
    /// count (`dir_nlink`). [immutable after mount]
    pub(crate) many_subdirectories: bool,
    /// [immutable after mount]
    pub(crate) generation_seed: u64,
    /// The next generation, if generations are sequential instead of random.
    pub(crate) counted_generation: Option<AtomicU32>,
    /// `i_extra_isize` of new inodes in bytes. [immutable after mount]
    pub(crate) new_inode_extra_size: u16,
    /// Whether the content of new files and directories is stored in the inode first
    /// (`inline_data`). [immutable after mount]
    pub(crate) begins_inline: bool,
    /// Blocks that the file system's own structures use. [immutable after mount]
    pub(crate) overhead_blocks: u64,
    /// Messages for the user about this mount. [immutable after mount]
    pub(crate) notes: Vec<String>,
    /// The device, which counts what this mount writes.
    pub(crate) device: Arc<CountingDevice>,
    pub(crate) is_open: bool,
    /// Whether the image was marked as closed cleanly. [immutable after mount]
    pub(crate) was_clean: bool,
    /// Keeps the claim of an image with multiple mount protection.
    pub(crate) keeper: Option<Keeper>,
}

impl fmt::Debug for Volume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Volume")
            .field("is_read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}

/// Threads share a volume.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Volume>();
};

impl Volume {
    /// Whether writes are refused: because of the mount options, the image, or an error.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        // A journal that stops says so before the volume gets to know it.
        self.inodes.store.is_read_only() || self.failure().is_some()
    }

    /// Why writing has stopped, if an error of the device or the journal stopped it.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let journal = self.inodes.store.try_journal()?;
        journal.failure().map(Error::from)
    }

    /// Calls `observer` whenever corruption is found, also where no operation fails by it: an
    /// allocation goes to another group if one is corrupt. It may be called many times for the same
    /// corruption, by any thread, and must not use the volume. Earlier observers remain; a server
    /// of the volume has its own.
    pub fn observe_corruption(&self, observer: impl Fn(&Corrupt) + Send + Sync + 'static) {
        self.inodes.store.observe_corruption(Arc::new(observer));
    }

    /// The inodes that callers hold now.
    #[must_use]
    pub fn held(&self) -> Vec<InodeNumber> {
        self.inodes.holds.all()
    }

    /// Counters of the cache of shared attribute blocks since the mount.
    #[must_use]
    pub fn attribute_cache_statistics(&self) -> AttributeCacheStatistics {
        self.inodes.attribute_blocks.statistics()
    }

    /// Counters of the journal since the mount; `None` if nothing is written here.
    #[must_use]
    pub fn journal_statistics(&self) -> Option<JournalStatistics> {
        let journal = self.inodes.store.try_journal()?;
        Some(journal.statistics())
    }

    /// Messages for the user about this mount: a replayed journal, finished orphans, features that
    /// make it read-only.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether searches for blocks use the index of groups (`mb_optimize_scan`) instead of scanning
    /// groups one by one.
    #[must_use]
    pub fn optimizes_scan(&self) -> bool {
        self.inodes.groups.optimizes_scan()
    }

    /// Enables or disables the index of groups for all searches, immediately.
    pub fn set_optimize_scan(&self, optimize: bool) {
        self.inodes.groups.set_optimize_scan(optimize);
    }

    /// Counters of the mechanisms and the journal since the mount, and the current state.
    #[must_use]
    pub fn report(&self) -> Report {
        let store = &self.inodes.store;
        let mut scaling = store.options.scaling;
        scaling.optimize_scan = self.optimizes_scan();
        let mut sections = store.tally.sections();
        sections.push(self.inodes.groups.section());
        sections.push(self.inodes.groups.free_runs_section());
        sections.push(attributes_section(&self.attribute_cache_statistics()));
        sections.extend(self.journal_statistics().as_ref().map(journal_section));
        sections.extend(locks_section(&meter::snapshot()));
        Report {
            scaling: scaling.to_string(),
            sections,
        }
    }

    /// The free space of the group with this number, as the allocator knows it; `None` if there is
    /// no such group. Nothing is read for it. The lock of the group is held while its counts are
    /// copied, and not taken if the group is not in memory.
    #[must_use]
    pub fn group_report(&self, number: u32) -> Option<GroupReport> {
        let groups = &self.inodes.groups;
        (number < groups.count()).then(|| groups.report_on(GroupNumber(number)))
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

fn journal_section(journal: &JournalStatistics) -> Section {
    let mut section = Section::new(
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
    );
    section.values.extend(CommitStep::ALL.map(|step| {
        let name = format!("{}, us", step.name());
        (name.into(), microseconds(journal.times.of(step)))
    }));
    section
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The locks of this process by class. `None` if the meter has counted nothing: it is not built in,
/// or was never switched on.
fn locks_section(tallies: &Tallies) -> Option<Section> {
    let values: Vec<_> = tallies
        .used()
        .flat_map(|(class, tally)| {
            [
                ("taken", tally.acquisitions),
                ("waited for", tally.contended),
                ("tried in vain", tally.failures),
                ("waited, us", microseconds(tally.waited)),
                ("held, us", microseconds(tally.held)),
            ]
            .map(|(what, value)| (format!("{class:?} {what}").into(), value))
        })
        .collect();
    (!values.is_empty()).then_some(Section {
        name: "locks",
        values,
    })
}

#[cfg(all(test, feature = "meter", not(loom)))]
mod tests {
    use pext4_sync::{Class, Mutex, meter};

    use super::{Tallies, locks_section};

    #[test]
    fn the_locks_are_shown_once_the_meter_counts() {
        assert_eq!(locks_section(&Tallies::default()), None);
        meter::switch(true);
        let lock = Mutex::new(Class::Group, ());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        meter::switch(false);
        let section = locks_section(&meter::snapshot()).expect("it has counted");
        let value = |name: &str| {
            let mut values = section.values.iter();
            values
                .find(|(found, _)| found == name)
                .map(|(_, value)| *value)
        };
        assert!(value("Group taken") >= Some(1));
        assert!(value("Group tried in vain") >= Some(1));
        assert!(value("Group waited, us").is_some() && value("Group held, us").is_some());
    }
}
