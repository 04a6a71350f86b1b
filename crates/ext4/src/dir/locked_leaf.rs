//! A leaf while one name in it is changed, beside other threads that change names.
//!
//! The lock of a leaf is that of its buffer. A thread that changes a name holds the directory's
//! lock shared, looks at the leaf ([`SeenLeaf`]), does all that it can do without the leaf's lock,
//! and then locks the leaf for the change alone ([`LockedLeaf`]).
//!
//! The buffer counts the changes, so that a thread can validate what it read. The count changes
//! under the lock, *after* the bytes and before the link count of the name's inode:
//!
//! - If a thread locks the leaf and finds the count as it was when it read the leaf, it does not
//!   have to read it again.
//! - A lookup that finds a name and then holds its inode must be sure that the name still existed
//!   when it had the hold, since otherwise the inode may have been freed meanwhile. It is sure if
//!   no removal was counted since it read the leaf. (A count that changes before the bytes would
//!   not do: the lookup could start between the two.)
//!
//! Changes under the directory's exclusive lock are not counted: nobody has read a leaf then whose
//! content still matters. Whoever has read a leaf keeps its buffer in memory by a reference, and
//! with it the count.

use std::sync::Arc;

use pext4_block::{Buffer, BufferState, Stamp};
use pext4_jbd2::Handle;
use pext4_ondisk::directory::{Entry, Format};
use pext4_ondisk::{Corrupt, InodeNumber, LogicalBlock};
use pext4_sync::{BiasedWriteGuard, ShardRef};

use super::FoundEntry;
use super::blocks::corrupt_at;
use super::leaf::{self, Sought, Vacancy};
use super::leaf_view::{LeafEdit, LeafView};
use crate::error::Result;

/// What an added name adds to the count.
const ADDITION: u64 = 1;
/// What a removed name adds. Additions that overflow the lower half look like a removal, which only
/// costs some reader a second look.
const REMOVAL: u64 = 1 << 32;

/// A leaf that was read, and its count of changes at that time. Valid while the directory's lock is
/// held.
pub struct SeenLeaf {
    block: LogicalBlock,
    buffer: ShardRef<Buffer>,
    changes: u64,
}

impl SeenLeaf {
    /// A leaf, and its count of changes while it was locked and read.
    pub(super) fn new(block: LogicalBlock, buffer: ShardRef<Buffer>, changes: u64) -> Self {
        Self {
            block,
            buffer,
            changes,
        }
    }

    /// Whether another thread has changed a name in it since.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.buffer.changes() != self.changes
    }

    /// Whether another thread has removed a name from it since.
    #[must_use]
    pub fn has_lost_names(&self) -> bool {
        self.buffer.changes() / REMOVAL != self.changes / REMOVAL
    }

    pub(super) fn block(&self) -> LogicalBlock {
        self.block
    }

    pub(super) fn into_buffer(self) -> ShardRef<Buffer> {
        self.buffer
    }

    /// Locks the leaf for a change within `handle`.
    pub(super) fn lock<'a, 'h>(
        &'a self,
        directory: InodeNumber,
        format: Format,
        stamp: Stamp,
        handle: &'a mut Handle<'h>,
    ) -> LockedLeaf<'a, 'h> {
        self.buffer.fetch_for_writing();
        let state = self.buffer.write();
        LockedLeaf {
            block: self.block,
            buffer: &self.buffer,
            has_changed: self.has_changed(),
            state,
            directory,
            format,
            stamp,
            handle,
        }
    }
}

/// A leaf that was read before and is locked now.
pub struct LockedLeaf<'a, 'h> {
    directory: InodeNumber,
    format: Format,
    block: LogicalBlock,
    buffer: &'a Arc<Buffer>,
    state: BiasedWriteGuard<'a, BufferState>,
    stamp: Stamp,
    handle: &'a mut Handle<'h>,
    /// Since it was read.
    has_changed: bool,
}

impl LockedLeaf<'_, '_> {
    /// Adds a name to the room that was seen for it. False, and nothing changed, if other threads
    /// have added the name or used up the room.
    ///
    /// # Errors
    ///
    /// `Corrupt`.
    pub fn add(mut self, seen: Option<Vacancy>, new: &Entry<'_>) -> Result<bool> {
        let vacancy = if self.has_changed {
            let leaf = view_to_change(&self.state, self.format);
            match leaf::seek_in(leaf, self.format, self.block, new.name) {
                Ok(Sought::Vacancy(vacancy)) => Some(vacancy),
                Ok(Sought::Entry(_) | Sought::Full) => None,
                Err(corrupt) => return self.located(Err(corrupt)),
            }
        } else {
            seen
        };
        let Some(vacancy) = vacancy else {
            return Ok(false);
        };
        let format = self.format;
        let added = vacancy.fill_in(&mut self.edit(), format, new);
        self.buffer.count_change(&self.state, ADDITION);
        self.located(added.map(|()| true))
    }

    /// Removes a name whose entry was found before. False, and nothing changed, if another thread
    /// has removed the name or given it to another inode.
    ///
    /// # Errors
    ///
    /// `Corrupt`.
    pub fn remove(mut self, found: Option<FoundEntry>, name: &[u8]) -> Result<bool> {
        if self.has_changed {
            let leaf = view_to_change(&self.state, self.format);
            match leaf::find_in(leaf, self.format, self.block, name) {
                Ok(now) if now == found => {}
                Ok(_) => return Ok(false),
                Err(corrupt) => return self.located(Err(corrupt)),
            }
        }
        let format = self.format;
        let removed = self.edit().remove(format, name);
        // Sequentially consistent with the count of holds: either a lookup sees this removal, or
        // the thread that frees the inode sees the hold of the lookup.
        self.buffer.count_change(&self.state, REMOVAL);
        self.located(removed.map(|_| true))
    }

    fn edit(&mut self) -> LeafEdit<'_> {
        let form = (self.stamp, self.format);
        edit(self.handle, self.buffer, &mut self.state, form)
    }

    fn located<R>(&self, decoded: std::result::Result<R, Corrupt>) -> Result<R> {
        decoded.map_err(|corrupt| corrupt_at(self.directory, self.block, corrupt))
    }
}

/// The leaf that is in a buffer, in a directory of this format.
pub(super) fn view(state: &BufferState, format: Format) -> LeafView<'_> {
    state.tell_read();
    let kept = state.fingerprints().filter(|kept| kept.fit(format));
    LeafView::new(state.page(), kept)
}

/// The leaf that is in a buffer, for a caller that will change what it looks for: what it will
/// write is requested.
pub(super) fn view_to_change(state: &BufferState, format: Format) -> LeafView<'_> {
    state.page().fetch_for_writing();
    view(state, format).to_change()
}

/// The leaf that is in a buffer, to be changed within `handle`. Fingerprints that do not fit the
/// format are dropped.
pub(super) fn edit<'a>(
    handle: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
    state: &'a mut BufferState,
    (stamp, format): (Stamp, Format),
) -> LeafEdit<'a> {
    state.tell_change();
    if state.fingerprints().is_some_and(|kept| !kept.fit(format)) {
        state.drop_fingerprints();
    }
    handle.touch_locked(buffer, state, stamp);
    let (page, fingerprints) = state.leaf_mut();
    LeafEdit {
        bytes: page.make_mut(),
        fingerprints,
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A leaf whose content is its first byte; zero means no name.

    use std::sync::Arc;

    use pext4_block::{Buffer, Cache, RamDevice};
    use pext4_ondisk::{BlockNumber, LogicalBlock};
    use pext4_sync::atomic::{AtomicU64, Ordering};
    use pext4_sync::{ShardRef, thread};

    use super::{ADDITION, REMOVAL, SeenLeaf};

    const BLOCK: u32 = 8;

    fn leaf(content: u8) -> Arc<Buffer> {
        let device = Arc::new(RamDevice::new(1024));
        let cache = Cache::new(device, BLOCK, u64::from(BLOCK));
        let buffer = cache.get_zeroed(BlockNumber(1));
        buffer.write().page_mut().make_mut()[0] = content;
        buffer
    }

    /// Reads the leaf as a lookup or as a thread that will change it does.
    fn look(buffer: &Arc<Buffer>, for_update: bool) -> (u8, SeenLeaf) {
        let (content, changes) = if for_update {
            let state = buffer.write();
            (state.page()[0], buffer.changes())
        } else {
            let state = buffer.read();
            (state.page()[0], buffer.changes())
        };
        let buffer = ShardRef::Own(Arc::clone(buffer));
        (content, SeenLeaf::new(LogicalBlock(1), buffer, changes))
    }

    /// Looks, locks, looks again if the count changed, and changes `from` to `to`.
    fn change(buffer: &Arc<Buffer>, from: u8, to: u8) -> bool {
        let (seen, leaf) = look(buffer, true);
        let mut state = buffer.write();
        let now = state.page()[0];
        if !leaf.has_changed() {
            assert_eq!(now, seen, "what was seen is still so");
        }
        if now != from {
            return false;
        }
        state.page_mut().make_mut()[0] = to;
        let step = if to == 0 { REMOVAL } else { ADDITION };
        buffer.count_change(&state, step);
        true
    }

    #[test]
    fn an_unchanged_count_means_an_unchanged_leaf() {
        pext4_sync::model(|| {
            let buffer = leaf(0);
            let beside = Arc::clone(&buffer);
            let other = thread::spawn("other", move || change(&beside, 0, 2));
            let mine = change(&buffer, 0, 1);
            let others = other.join().expect("it does not panic");
            assert!(mine != others, "one of them enters the name");
        });
    }

    #[test]
    fn a_lookup_that_sees_no_removal_held_a_name_that_was_there() {
        pext4_sync::model(|| {
            let buffer = leaf(1);
            let ended = Arc::new(AtomicU64::new(0));
            let (beside, end) = (Arc::clone(&buffer), Arc::clone(&ended));
            let other = thread::spawn("other", move || {
                assert!(change(&beside, 1, 0));
                end.store(1, Ordering::SeqCst);
            });
            let (content, leaf) = look(&buffer, false);
            let had_ended = ended.load(Ordering::SeqCst) == 1;
            if content == 1 && !leaf.has_lost_names() {
                assert!(!had_ended, "the inode was there when it was held");
            }
            other.join().expect("it does not panic");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use pext4_ondisk::casefold::Naming;

    use super::super::{DirectoryFile, find};
    use crate::groups::testing::image;
    use crate::{CreateAttributes, InodeNumber, MountOptions, Volume};

    /// Between the search of a leaf and its change, a directory that has the same leaf and compares
    /// names in another way searches it.
    #[test]
    fn a_leaf_is_changed_by_fingerprints_of_its_own_directory() {
        let Some(device) = image(&[], "16M") else {
            return;
        };
        let volume = Volume::open(device, MountOptions::default()).expect("a mount");
        let new = CreateAttributes::default();
        let made = volume.make_directory(InodeNumber::ROOT, b"directory", &new);
        let number = made.expect("room").inode;
        for name in 0..20 {
            let name = format!("Name-{name}");
            let _ = volume.create(number, name.as_bytes(), &new).expect("room");
        }
        let inodes = &volume.inodes;
        let inode = inodes.get(number).expect("it is held");
        let plain = volume.directories.plain();
        let mut folded = *plain;
        folded.format.naming = Naming::Folded;

        let searched = DirectoryFile::reading(inodes, plain, &inode).for_update();
        let found = find(&searched, b"Name-3").expect("sound");
        let seen = searched.into_last_leaf().expect("it was read");
        let other = DirectoryFile::reading(inodes, &folded, &inode).for_update();
        assert!(find(&other, b"nAME-7").expect("sound").is_some());

        let mut handle = inodes.store.start(8).expect("a journal that runs");
        let mut changed = DirectoryFile::changing(inodes, plain, &inode, &mut handle);
        let removed = changed.lock_leaf(&seen).remove(found, b"Name-3");
        assert!(removed.expect("sound"));
        let read = DirectoryFile::reading(inodes, plain, &inode);
        assert_eq!(find(&read, b"Name-3").expect("sound"), None);
    }
}
