//! Times of files that were made immutable while the kernel had dirty pages of them.
//!
//! The server has the kernel write the pages before it sets the flag. The kernel sends the times of
//! these writes afterwards, when the times may no longer change. That is no error: the server
//! accepts the request once and ignores the times.
//!
//! A write from the page cache reads one counter, which is nearly always zero; the files are under
//! a lock of class `Leaf`.

use std::collections::BTreeMap;

use pext4_fs::InodeNumber;
use pext4_sync::Mutex;
use pext4_sync::atomic::{AtomicUsize, Ordering};
use pext4_sync::order::Class;

/// Files whose times the kernel may still send though they are immutable.
pub(super) struct WritebackTimes {
    /// How many calls of [`WritebackTimes::watch`] are running. [atomic]
    watched: AtomicUsize,
    /// Each file, with whether the kernel has written it.
    files: Mutex<BTreeMap<InodeNumber, bool>>,
}

impl WritebackTimes {
    pub(super) fn new() -> Self {
        Self {
            watched: AtomicUsize::new(0),
            files: Mutex::new(Class::Leaf, BTreeMap::new()),
        }
    }

    /// Runs `write`, which makes the kernel write the dirty pages of `file`, and notes whether it
    /// wrote any.
    pub(super) fn watch(&self, file: InodeNumber, write: impl FnOnce()) {
        // Times of an earlier call that the kernel has not sent yet are still expected.
        self.files.lock().entry(file).or_insert(false);
        self.watched.fetch_add(1, Ordering::AcqRel);
        write();
        self.watched.fetch_sub(1, Ordering::AcqRel);
        let mut files = self.files.lock();
        if files.get(&file) == Some(&false) {
            files.remove(&file);
        }
    }

    /// Notes that the kernel writes a file from its page cache.
    pub(super) fn note_write(&self, file: InodeNumber) {
        if self.watched.load(Ordering::Acquire) > 0
            && let Some(written) = self.files.lock().get_mut(&file)
        {
            *written = true;
        }
    }

    /// Whether times that the kernel sends for an immutable file are those of such writes. The
    /// kernel sends them once, so the next call returns false.
    pub(super) fn take(&self, file: InodeNumber) -> bool {
        self.files.lock().remove(&file) == Some(true)
    }

    /// Expects no times of a file any more.
    pub(super) fn forget(&self, file: InodeNumber) {
        self.files.lock().remove(&file);
    }
}

#[cfg(test)]
mod tests {
    use super::{InodeNumber, WritebackTimes};

    #[test]
    fn times_are_expected_once_and_only_of_what_was_written() {
        let times = WritebackTimes::new();
        let [written, other, forgotten] = [12, 13, 14].map(InodeNumber);
        times.note_write(written);
        assert!(!times.take(written), "nobody watched");
        for file in [written, forgotten] {
            times.watch(file, || times.note_write(file));
        }
        times.watch(other, || times.note_write(written));
        assert!(
            !times.files.lock().contains_key(&other),
            "nothing is expected"
        );
        times.watch(written, || {});
        times.forget(forgotten);
        assert_eq!(
            [written, other, forgotten].map(|file| times.take(file)),
            [true, false, false]
        );
        assert!(!times.take(written));
    }
}
