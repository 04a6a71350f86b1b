//! Which listings of directories the kernel may answer from its cache.
//!
//! The kernel keeps the entries that listings have read, and answers later listings from them. It
//! checks that they are current only where a listing begins. So while one listing fills the cache,
//! another that began after a change, and whose first part came from the server, would be continued
//! with entries from before the change: a new file would be missing, or a removed one still there.
//!
//! So each opening of a directory is answered with what the kernel may do with the entries it has.
//! Invariant: of all open directories that use the cache, none was opened before a change that
//! another was opened after. What is cached can only be kept if no name has changed since the first
//! of these was opened.
//!
//! A change is noted after it was made and before it is answered, so whoever opens the directory
//! after the answer finds it noted. One that is opened between change and note may be denied the
//! cache without need.

use std::collections::hash_map::Entry;

use pext4_fuse_kernel::OpenFlags;
use pext4_sync::hash::{NumberMap, spread};
use pext4_sync::{BiasedLock, Class, Sharded, topology};

/// The handle of an open directory that uses the cache; those that do not have the handle 0.
const CACHED: u64 = 1;

/// What the kernel has of each directory.
pub(super) struct Listings {
    /// Each change of a name looks at the shard of its directory, and mostly finds nothing to do.
    /// So that the cores that change names in one directory write no common line, these locks are
    /// biased towards readers.
    shards: Sharded<Shard>,
}

/// Some of the directories. Without an entry: nothing, or nothing that is still current.
type Shard = BiasedLock<NumberMap<u64, Listed>>;

/// A directory whose entries the kernel may have.
struct Listed {
    /// How often it is open with the cache.
    users: u32,
    /// Whether a name has changed since the first of these was opened; never true without users.
    has_changed: bool,
}

impl Listings {
    pub(super) fn new() -> Self {
        let new = |_| BiasedLock::new(Class::Leaf, NumberMap::default());
        Self {
            shards: Sharded::with_count(4 * topology::shard_count(), new),
        }
    }

    fn shard(&self, node: u64) -> &Shard {
        self.shards.get(spread(node) as usize % self.shards.count())
    }

    /// Calls `change` with the place of a directory.
    fn at<R>(&self, node: u64, change: impl FnOnce(Entry<'_, u64, Listed>) -> R) -> R {
        change(self.shard(node).write().entry(node))
    }

    /// Opens a directory; returns the handle and what the kernel may do.
    pub(super) fn open(&self, node: u64) -> (u64, OpenFlags) {
        self.at(node, |place| match place {
            Entry::Vacant(place) => {
                place.insert(Listed {
                    users: 1,
                    has_changed: false,
                });
                (CACHED, OpenFlags::CACHE_ENTRIES)
            }
            Entry::Occupied(place) if place.get().has_changed => (0, OpenFlags::empty()),
            Entry::Occupied(mut place) => {
                place.get_mut().users += 1;
                (CACHED, OpenFlags::CACHE_ENTRIES | OpenFlags::KEEP_CACHE)
            }
        })
    }

    /// Closes a directory that was opened with this handle.
    pub(super) fn close(&self, node: u64, handle: u64) {
        if handle != CACHED {
            return;
        }
        self.at(node, |place| {
            if let Entry::Occupied(mut place) = place {
                let listed = place.get_mut();
                listed.users = listed.users.saturating_sub(1);
                if listed.users == 0 && listed.has_changed {
                    place.remove();
                }
            }
        });
    }

    /// Notes that names in a directory have changed.
    pub(super) fn note_change(&self, node: u64) {
        // Most changes are in directories that nobody has listed since the last one.
        let is_current = {
            let directories = self.shard(node).read();
            let listed = directories.get(&node);
            listed.is_some_and(|listed| !listed.has_changed)
        };
        if !is_current {
            return;
        }
        self.at(node, |place| {
            if let Entry::Occupied(mut place) = place {
                match place.get().users {
                    0 => drop(place.remove()),
                    _ => place.get_mut().has_changed = true,
                }
            }
        });
    }

    /// Drops what is known of a node if nobody holds it now: who opens it does.
    pub(super) fn forget_unless(&self, node: u64, is_held: impl FnOnce() -> bool) {
        let shard = self.shard(node);
        // Most nodes are files.
        if !shard.read().contains_key(&node) {
            return;
        }
        let mut directories = shard.write();
        if !is_held() {
            directories.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use pext4_fuse_kernel::OpenFlags;

    use super::{CACHED, Listings};

    const NODE: u64 = 12;
    const REFILL: (u64, OpenFlags) = (CACHED, OpenFlags::CACHE_ENTRIES);
    const KEEP: (u64, OpenFlags) = (
        CACHED,
        OpenFlags::CACHE_ENTRIES.union(OpenFlags::KEEP_CACHE),
    );
    const BYPASS: (u64, OpenFlags) = (0, OpenFlags::empty());

    #[test]
    fn entries_are_kept_while_no_name_changes() {
        let listings = Listings::new();
        assert_eq!(listings.open(NODE), REFILL, "there are none yet");
        assert_eq!(listings.open(NODE), KEEP);
        listings.close(NODE, CACHED);
        listings.close(NODE, CACHED);
        assert_eq!(listings.open(NODE), KEEP);
        listings.close(NODE, CACHED);
        listings.note_change(NODE + 1);
        assert_eq!(listings.open(NODE), KEEP, "that was another directory");
        listings.close(NODE, CACHED);
        listings.note_change(NODE);
        assert_eq!(listings.open(NODE), REFILL);
    }

    #[test]
    fn after_a_change_nobody_shares_with_those_who_came_before() {
        let listings = Listings::new();
        assert_eq!(listings.open(NODE), REFILL);
        assert_eq!(listings.open(NODE), KEEP);
        listings.note_change(NODE);
        assert_eq!(listings.open(NODE), BYPASS);
        listings.close(NODE, 0);
        listings.close(NODE, CACHED);
        assert_eq!(listings.open(NODE), BYPASS, "the first is still open");
        listings.close(NODE, CACHED);
        assert_eq!(listings.open(NODE), REFILL, "the open one does not share");
    }

    #[test]
    fn a_node_that_was_forgotten_begins_anew() {
        let listings = Listings::new();
        assert_eq!(listings.open(NODE), REFILL);
        listings.forget_unless(NODE, || false);
        listings.close(NODE, CACHED);
        assert_eq!(listings.open(NODE), REFILL);
    }

    #[test]
    fn a_node_that_is_opened_while_it_is_forgotten_stays() {
        let listings = Listings::new();
        assert_eq!(listings.open(NODE), REFILL);
        listings.forget_unless(NODE, || true);
        assert_eq!(listings.open(NODE), KEEP, "it is held again");
        listings.forget_unless(NODE, || {
            let is_locked = listings.shard(NODE).try_read().is_none();
            assert!(is_locked, "nobody can open it now");
            false
        });
        assert_eq!(listings.open(NODE), REFILL);
    }
}
