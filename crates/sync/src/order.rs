//! The order of all locks, first to last.
//!
//! A thread that holds a lock may only take locks of a class further down this page, or of the same
//! class with a larger key (the number of a directory, an inode or a group, as documented at the
//! class). With the feature `lock-order`, as in all tests, each thread keeps a stack of the locks
//! that it holds, and panics at the first step that violates the order, whether or not it would
//! have deadlocked. A try-lock may violate the order, since it cannot wait; a lock that is taken
//! after it may not. The order is that of one volume: of two, one in a file of the other, the locks
//! of the inner one come first.
//!
//! *Start of a handle* is on the page although it is not a lock: it can wait for a commit, and so
//! must precede everything that the committer takes.

use crate::held;

/// The classes of locks, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The zeroing of the ends of files that were truncated.
    Tails,
    /// One rename between directories at a time, so that the tree does not change while it is
    /// walked.
    Rename,
    /// The names of a directory. Several: an ancestor before its descendant, else the smaller
    /// inode number first; the caller chooses the keys accordingly.
    Directory,
    /// One inode's contents and attributes as its users see them. Several: by inode number.
    Inode,
    /// The tree of one quota file: taken to give an owner its first entry.
    QuotaFile,
    /// A handle of the journal is open. This is not a lock, but starting a handle may wait for a
    /// commit, and a commit waits for every open handle: locks listed above are never taken inside
    /// a handle.
    HandleStart,
    /// The chain of orphans that begins in the superblock; its links are in inodes.
    OrphanList,
    /// A shard of the table of inodes in memory; an inode is loaded under it.
    InodeTable,
    /// The shape of one inode's map, and the file's preallocation.
    InodeMap,
    /// The journalled fields of one inode in memory, from which the committer encodes its slot.
    InodeState,
    /// What is left of one preallocation: a file's, or a shard's for small files.
    Preallocation,
    /// One block group: its bitmaps, buddy and counts. Several: by group number.
    Group,
    /// The index of groups by free space, written under a group.
    GroupIndex,
    /// What one block of the orphan file owes; in one setting first the whole file, then a block.
    OrphanSlot,
    /// The decoded superblock.
    Superblock,
    /// A shard of the buffer cache, which maps block numbers to buffers.
    BufferShard,
    /// The bytes and state of one buffer.
    Buffer,
    /// The cache of shared attribute blocks, or a part of it. Its entry for a block is valid while
    /// the block's buffer is locked. Several, if its parts have locks of their own: in the order
    /// that the module documents.
    AttributeCache,
    /// The journal's own state: requests to the committer, gates, credits that move between shards.
    Journal,
    /// The versions that still have to be written home; the journal's superblock.
    Checkpoint,
    /// The queue or log of a device.
    DeviceQueue,
    /// Held for a few instructions, during which no lock is taken.
    Leaf,
}

impl Class {
    /// The number of classes.
    pub const COUNT: usize = Self::Leaf as usize + 1;

    /// All classes, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Tails,
        Self::Rename,
        Self::Directory,
        Self::Inode,
        Self::QuotaFile,
        Self::HandleStart,
        Self::OrphanList,
        Self::InodeTable,
        Self::InodeMap,
        Self::InodeState,
        Self::Preallocation,
        Self::Group,
        Self::GroupIndex,
        Self::OrphanSlot,
        Self::Superblock,
        Self::BufferShard,
        Self::Buffer,
        Self::AttributeCache,
        Self::Journal,
        Self::Checkpoint,
        Self::DeviceQueue,
        Self::Leaf,
    ];
}

/// Notes that this thread opens a handle of the journal.
///
/// Must be called before the start may wait. With the feature `lock-order` it panics if the thread
/// holds a lock that has to come later in the order.
#[inline]
pub fn handle_started() {
    held::start(Class::HandleStart);
}

/// Notes that this thread has stopped the handle of one [`handle_started`].
#[inline]
pub fn handle_stopped() {
    held::stop(Class::HandleStart);
}

/// With the feature `lock-order` it panics if this thread may not take a lock of `class` now: for
/// operations that wait without a lock (a commit, or a callback that will take locks of its own).
#[inline]
pub fn check(class: Class) {
    held::check(class);
}

#[cfg(all(test, not(any(loom, feature = "virtual")), feature = "lock-order"))]
mod tests {
    use super::{Class, check, handle_started, handle_stopped};
    use crate::{Condvar, Mutex, RwLock};

    #[test]
    fn the_list_of_classes_is_in_their_order() {
        for (number, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(class as usize, number);
        }
    }

    /// Other people's programs may have two volumes, one inside the other.
    #[test]
    fn only_tests_check_the_order() {
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for folder in std::fs::read_dir(crates).expect("the crates are here") {
            let folder = folder.expect("it is there").path();
            let Ok(manifest) = std::fs::read_to_string(folder.join("Cargo.toml")) else {
                continue;
            };
            let is_for_tests = folder.ends_with("testkit");
            let mut checks_in_tests = is_for_tests || !manifest.contains("\npext4-sync");
            for section in manifest.split("\n[") {
                let is_of_tests = section.starts_with("dev-dependencies]");
                let is_used = section.contains("\"lock-order\"");
                let is_allowed = !is_used || is_of_tests || is_for_tests;
                assert!(is_allowed, "{}: {section}", folder.display());
                checks_in_tests |= is_of_tests && (is_used || section.contains("pext4-testkit"));
            }
            assert!(checks_in_tests, "{}: its tests do not", folder.display());
        }
    }

    #[test]
    fn downwards_is_allowed_and_guards_may_drop_in_any_order() {
        let directory = Mutex::new(Class::Directory, ());
        let group = RwLock::new(Class::Group, ());
        let leaf = Mutex::new(Class::Leaf, ());
        let first = directory.lock();
        let second = group.write();
        let third = leaf.lock();
        drop(first);
        drop(second);
        drop(third);
        check(Class::Tails);
    }

    #[test]
    #[should_panic(expected = "Group is taken while Buffer is held")]
    fn upwards_panics() {
        let group = Mutex::new(Class::Group, ());
        let buffer = RwLock::new(Class::Buffer, ());
        let _buffer = buffer.read();
        let _group = group.lock();
    }

    #[test]
    #[should_panic(expected = "Buffer is taken while Buffer is held")]
    fn the_same_class_twice_panics() {
        let first = RwLock::new(Class::Buffer, ());
        let second = RwLock::new(Class::Buffer, ());
        let _first = first.read();
        let _second = second.read();
    }

    #[test]
    fn larger_keys_may_follow() {
        let locks = [3u64, 8, 9].map(|key| (key, Mutex::new(Class::Group, ())));
        let guards: Vec<_> = locks
            .iter()
            .map(|(key, lock)| lock.lock_keyed(*key))
            .collect();
        drop(guards);
        check(Class::Group);
    }

    #[test]
    #[should_panic(expected = "Inode 4 is taken while Inode 7 is held")]
    fn smaller_keys_may_not() {
        let first = RwLock::new(Class::Inode, ());
        let second = RwLock::new(Class::Inode, ());
        let _first = first.write_keyed(7);
        let _second = second.write_keyed(4);
    }

    #[test]
    #[should_panic(expected = "HandleStart is taken while Group is held")]
    fn a_handle_is_not_started_under_a_leaf_lock() {
        let group = Mutex::new(Class::Group, ());
        let _group = group.lock();
        handle_started();
    }

    #[test]
    #[should_panic(expected = "Directory is taken while HandleStart is held")]
    fn no_directory_inside_a_handle() {
        let directory = Mutex::new(Class::Directory, ());
        handle_started();
        let _directory = directory.lock();
    }

    #[test]
    fn a_stopped_handle_is_forgotten() {
        handle_started();
        handle_stopped();
        check(Class::Tails);
    }

    #[test]
    fn a_try_lock_may_go_upwards_but_counts_afterwards() {
        let groups = [Mutex::new(Class::Group, ()), Mutex::new(Class::Group, ())];
        let _high = groups[1].lock_keyed(1);
        let low = groups[0].try_lock_keyed(0).expect("nobody holds it");
        drop(low);
        let journal = Mutex::new(Class::Journal, ());
        let _journal = journal.try_lock().expect("nobody holds it");
        let refused = std::panic::catch_unwind(|| check(Class::Buffer));
        assert!(
            refused.is_err(),
            "a lock taken by trying is held like any other"
        );
    }

    #[test]
    fn waiting_keeps_the_lock_on_the_stack() {
        let lock = Mutex::new(Class::Journal, ());
        let condition = Condvar::new();
        let mut guard = lock.lock();
        assert!(condition.wait_for(&mut guard, std::time::Duration::from_millis(1)));
        assert!(std::panic::catch_unwind(|| check(Class::Journal)).is_err());
        drop(guard);
        check(Class::Journal);
    }
}
