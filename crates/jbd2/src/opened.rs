//! Changing a journalled object without its lock.
//!
//! An object whose changes are single atomic operations need not be locked for each of them. The
//! first handle of a transaction touches it under its lock, which captures the version that it owes
//! to an older transaction and puts it on the list, and then *opens* it: from then on every handle
//! of this transaction may change it without the lock
//! ([`Handle::may_change`](crate::Handle::may_change)). A handle that finds the object not opened
//! for its own transaction takes the lock and touches it.
//!
//! This is sound because handles of two transactions never overlap. While a handle of T runs, no
//! thread captures T's version: the committer does so after the last handle of T has stopped, and a
//! handle of T+1 when it opens the object. And every handle that changes the object under T found
//! it opened for T, so the version of T-1 had been captured before.

use pext4_ondisk::Tid;
use pext4_sync::atomic::Ordering;

use crate::atomic_tid::AtomicTid;

/// The transaction whose handles may change an object without its lock. \[atomic\]
#[derive(Debug)]
pub struct Opened(AtomicTid);

impl Opened {
    /// Opened for no transaction.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicTid::new())
    }

    /// Whether it is opened for `tid`. If so, captures of older versions happen before the caller's
    /// changes.
    #[must_use]
    pub fn is_for(&self, tid: Tid) -> bool {
        self.0.load(Ordering::Acquire) == Some(tid)
    }

    /// Opens it for `tid`, under the object's lock and after it was touched.
    pub fn open(&self, tid: Tid) {
        self.0.store(tid, Ordering::Release);
    }
}

impl Default for Opened {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use pext4_sync::atomic::{AtomicU64, Ordering};
    use pext4_sync::{Class, Mutex, thread};

    use super::{Opened, Tid};

    /// A word of bits that is captured under a lock.
    struct Object {
        opened: Opened,
        word: AtomicU64,
        state: Mutex<State>,
    }

    struct State {
        owed: Option<Tid>,
        captured: Vec<(Tid, u64)>,
    }

    impl Object {
        fn capture(&self, tid: Tid) {
            let mut state = self.state.lock();
            if state.owed == Some(tid) {
                state.owed = None;
                state
                    .captured
                    .push((tid, self.word.load(Ordering::Acquire)));
            }
        }

        fn set(&self, tid: Tid, bit: u64) {
            if !self.opened.is_for(tid) {
                let mut state = self.state.lock();
                if let Some(older) = state.owed.filter(|owed| *owed != tid) {
                    state
                        .captured
                        .push((older, self.word.load(Ordering::Acquire)));
                }
                state.owed = Some(tid);
                self.opened.open(tid);
            }
            self.word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    #[test]
    fn a_change_of_the_next_transaction_stays_out_of_the_version_of_the_last() {
        pext4_sync::model(|| {
            let object = Arc::new(Object {
                opened: Opened::new(),
                word: AtomicU64::new(0),
                state: Mutex::new(
                    Class::Group,
                    State {
                        owed: None,
                        captured: Vec::new(),
                    },
                ),
            });
            // The handles of 7 have all stopped; those of 8 run beside the committer of 7.
            object.set(Tid(7), 1);
            let changers = [2, 4].map(|bit| {
                let object = Arc::clone(&object);
                thread::spawn("changer", move || object.set(Tid(8), bit))
            });
            object.capture(Tid(7));
            for changer in changers {
                changer.join().expect("no panic");
            }
            object.capture(Tid(8));
            let state = object.state.lock();
            assert_eq!(state.captured, [(Tid(7), 1), (Tid(8), 7)]);
        });
    }
}
