//! The journal of a mount that writes: what the file system lends it, and its beginning.

use std::sync::{Arc, Weak};

use pext4_block::Stamp;
use pext4_jbd2::{Capture, Client, Config, Handle, Journal, JournalError, JournalWidth, Log};
use pext4_ondisk::feature::{Compat, Incompat, ReadOnlyCompat};
use pext4_ondisk::superblock::{ERROR_CORRUPTED, ERROR_IO, Flags, State};
use pext4_ondisk::{BlockNumber, Tid};

use crate::error::Result;
use crate::groups::Groups;
use crate::inode::table::{self, Table};
use crate::mbcache::SharedBlocks;
use crate::options::{self, Scaling};
use crate::seal;
use crate::store::{Store, now};
use crate::xattr;

/// What the journal asks of the file system.
struct FileSystem {
    store: Weak<Store>,
    groups: Weak<Groups>,
    /// The inodes in memory, which keep nothing else alive.
    inodes: Arc<Table>,
    /// They keep buffers alone.
    attribute_blocks: Arc<SharedBlocks>,
    inodes_per_block: u32,
    /// Seed of the checksums, where metadata carries them.
    seed: Option<u32>,
}

impl Client for FileSystem {
    fn closing(&self, handle: &mut Handle<'_>) {
        if let Some(groups) = self.groups.upgrade() {
            xattr::settle(&self.attribute_blocks, &groups, handle);
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

/// What a file system lends its journal.
pub(super) struct Lent<'a> {
    pub store: &'a Arc<Store>,
    pub groups: &'a Arc<Groups>,
    pub inodes: &'a Arc<Table>,
    pub attribute_blocks: &'a Arc<SharedBlocks>,
}

/// Opens the journal, marks the image as mounted, durably, and only then lets anybody have the journal (rule
/// 11). One that cannot be opened leaves no mark, be it that its log cannot be used or that the system gives
/// it no threads.
pub(super) fn begin(lent: &Lent<'_>, log: Option<Log>) -> Result<()> {
    let store = lent.store;
    let has_log = log.is_some();
    let client = FileSystem {
        store: Arc::downgrade(store),
        groups: Arc::downgrade(lent.groups),
        inodes: Arc::clone(lent.inodes),
        attribute_blocks: Arc::clone(lent.attribute_blocks),
        inodes_per_block: store.geometry.inodes_per_block(),
        seed: store.metadata_csum.then_some(store.checksum_seed),
    };
    let journal = Journal::open(Config {
        cache: Arc::clone(&store.cache),
        device: Arc::clone(&store.device),
        log,
        client: Arc::new(client),
        commit_interval: store.options.commit_interval,
        width: width(&store.options.scaling),
    })?;
    mark_mounted(store, has_log)?;
    // The superblock knows of it now.
    journal.clear_error()?;
    store.attach_journal(journal);
    Ok(())
}

/// The journal's part of a setting.
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
        superblock.mount_time = now().0;
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
        if superblock.features.compat.contains(Compat::ORPHAN_FILE) {
            superblock.features.read_only_compat |= ReadOnlyCompat::ORPHAN_PRESENT;
        }
    })
}
