//! Files that became immutable while the kernel had not written all of them. It writes the pages when it
//! is asked to, before the flag is set, and tells the times of these writes later, when they may no longer
//! change: that is no error.
//!
//! Who writes late looks at one number, which is zero nearly always; the files are under a lock of class
//! `Leaf`.

use std::collections::BTreeMap;

use pext4_fs::InodeNumber;
use pext4_sync::Mutex;
use pext4_sync::atomic::{AtomicUsize, Ordering};
use pext4_sync::order::Class;

/// Those files.
pub(super) struct LateTimes {
    /// How many are being written now. [atomic]
    watched: AtomicUsize,
    /// Each with whether something was written.
    files: Mutex<BTreeMap<InodeNumber, bool>>,
}

impl LateTimes {
    pub(super) fn new() -> Self {
        Self {
            watched: AtomicUsize::new(0),
            files: Mutex::new(Class::Leaf, BTreeMap::new()),
        }
    }

    /// Runs what has the kernel write a file.
    pub(super) fn watch(&self, file: InodeNumber, write: impl FnOnce()) {
        // What an earlier time left to be told still is.
        self.files.lock().entry(file).or_insert(false);
        self.watched.fetch_add(1, Ordering::AcqRel);
        write();
        self.watched.fetch_sub(1, Ordering::AcqRel);
        let mut files = self.files.lock();
        if files.get(&file) == Some(&false) {
            files.remove(&file);
        }
    }

    /// The kernel writes a file late.
    pub(super) fn note_write(&self, file: InodeNumber) {
        if self.watched.load(Ordering::Acquire) > 0
            && let Some(written) = self.files.lock().get_mut(&file)
        {
            *written = true;
        }
    }

    /// Whether times of a file that may not change are those of such writes, which are told once.
    pub(super) fn take(&self, file: InodeNumber) -> bool {
        self.files.lock().remove(&file) == Some(true)
    }

    /// Nothing more is expected of a file.
    pub(super) fn forget(&self, file: InodeNumber) {
        self.files.lock().remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::{InodeNumber, LateTimes};

    #[test]
    fn times_are_expected_once_and_only_of_what_was_written() {
        let late = LateTimes::new();
        let [written, other, forgotten] = [12, 13, 14].map(InodeNumber);
        late.note_write(written);
        assert!(!late.take(written), "nobody watched");
        for file in [written, forgotten] {
            late.watch(file, || late.note_write(file));
        }
        late.watch(other, || late.note_write(written));
        assert!(
            !late.files.lock().contains_key(&other),
            "nothing is expected"
        );
        late.watch(written, || {});
        late.forget(forgotten);
        assert_eq!(
            [written, other, forgotten].map(|file| late.take(file)),
            [true, false, false]
        );
        assert!(!late.take(written));
    }
}
