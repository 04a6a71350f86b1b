//! The journal of a writable mount: the file system as its client, and its start.

use std::sync::{Arc, Weak};

use pext4_block::Stamp;
use pext4_jbd2::{Capture, Client, Config, Handle, Journal, JournalError, JournalWidth, Log};
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::superblock::{ERROR_CORRUPTED, ERROR_IO, Flags, State};
use pext4_ondisk::{BlockNumber, Tid};

use crate::error::{Error, Result};
use crate::groups::Groups;
use crate::inode::table::{self, Table};
use crate::mbcache::SharedBlocks;
use crate::options::{self, Scaling};
use crate::quota::Quotas;
use crate::seal;
use crate::store::{Store, now};
use crate::xattr;

/// The file system as the journal's client.
struct FileSystem {
    store: Weak<Store>,
    groups: Weak<Groups>,
    /// The inodes in memory. They hold no references to the layers, so this one may be strong.
    inodes: Arc<Table>,
    /// They hold references to buffers only.
    attribute_blocks: Arc<SharedBlocks>,
    /// They hold references to nothing above the places of their entries.
    quotas: Option<Arc<Quotas>>,
    inodes_per_block: u32,
    /// The seed of the checksums, if metadata has them.
    seed: Option<u32>,
}

impl Client for FileSystem {
    fn closing(&self, handle: &mut Handle<'_>) {
        if let Some(groups) = self.groups.upgrade() {
            xattr::store_counts(&self.attribute_blocks, &groups, handle);
            if let Some(quotas) = &self.quotas {
                quotas.store_sums(&groups.store, handle);
            }
        }
    }

    fn capture_parts(&self, host: u64, tid: Tid, captures: &mut Vec<Capture>) {
        table::capture_block(&self.inodes, host, self.inodes_per_block, tid, captures);
    }

    fn seal(&self, block: BlockNumber, stamp: Stamp, page: &mut [u8]) {
        if let Some(seed) = self.seed {
            seal::seal(seed, block, stamp, page);
        }
    }

    fn committed(&self, tid: Tid) {
        if let Some(groups) = self.groups.upgrade() {
            groups.committed(tid);
        }
    }

    fn aborted(&self, error: &JournalError) {
        if let Some(store) = self.store.upgrade() {
            let code = match error.is_device_error() {
                true => ERROR_IO,
                false => ERROR_CORRUPTED,
            };
            store.stop(&error.to_string(), code);
        }
    }
}

/// The layers that the journal's client uses.
pub(super) struct Layers<'a> {
    pub store: &'a Arc<Store>,
    pub groups: &'a Arc<Groups>,
    pub inodes: &'a Arc<Table>,
    pub attribute_blocks: &'a Arc<SharedBlocks>,
    pub quotas: Option<&'a Arc<Quotas>>,
}

/// Opens the journal, durably marks the image as mounted, and only then attaches the journal to the
/// store (rule 11). If the journal cannot be opened, because its log is unusable or no thread can
/// be started, the image is not marked.
pub(super) fn begin(layers: &Layers<'_>, log: Option<Log>) -> Result<()> {
    let store = layers.store;
    let has_log = log.is_some();
    let client = FileSystem {
        store: Arc::downgrade(store),
        groups: Arc::downgrade(layers.groups),
        inodes: Arc::clone(layers.inodes),
        attribute_blocks: Arc::clone(layers.attribute_blocks),
        quotas: layers.quotas.map(Arc::clone),
        inodes_per_block: store.geometry.inodes_per_block(),
        seed: store.geometry.checksum_seed(),
    };
    let journal = Journal::open(Config {
        cache: Arc::clone(&store.cache),
        device: Arc::clone(&store.device),
        log,
        client: Arc::new(client),
        commit_interval: store.options.commit_interval,
        width: width(&store.options.scaling),
    })
    .map_err(Error::opening)?;
    mark_mounted(store, has_log)?;
    // The error is recorded in the file system's superblock now.
    journal.clear_error()?;
    store.attach_journal(journal);
    Ok(())
}

/// The journal's widths in a setting.
fn width(scaling: &Scaling) -> JournalWidth {
    let fixed = |width| match width {
        options::Width::Auto => None,
        options::Width::Fixed(width) => Some(width as usize),
    };
    JournalWidth {
        handle_shards: fixed(scaling.handle_shards),
        commit_threads: fixed(scaling.commit_threads),
    }
}

fn mark_mounted(store: &Store, has_log: bool) -> Result<()> {
    let path = store.options.mounted_on.as_bytes();
    store.write_superblock(|superblock| {
        superblock.mount_time = now().seconds;
        superblock.write_time = superblock.mount_time;
        superblock.mount_count = superblock.mount_count.saturating_add(1);
        if !path.is_empty() {
            let room = superblock.last_mounted.len() - 1;
            let length = path.len().min(room);
            superblock.last_mounted = [0; 64];
            superblock.last_mounted[..length].copy_from_slice(&path[..length]);
        }
        if superblock.hash_signedness().is_none() {
            superblock.flags |= Flags::SIGNED_HASH;
        }
        if has_log {
            superblock.features.incompat |= Incompat::RECOVER;
        } else {
            superblock.state.remove(State::CLEAN);
        }
        if superblock.features.has_compat(Compat::ORPHAN_FILE) {
            superblock.features.read_only_compat |= ReadOnlyCompat::ORPHAN_PRESENT;
        }
    })
}
