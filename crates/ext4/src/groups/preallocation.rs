//! Blocks set aside for a file that grows, or for the small files of one shard.
//!
//! Life cycle: the surplus of an allocation is *set aside* under the same hold of the group that
//! took it from the buddy, and put on the group's list, so that its blocks are at all times either
//! free or on the list. Its owner *uses* it from the front; any thread that needs space may
//! *discard* it. Either can empty `state`, and the owner drops an empty preallocation. On disk the
//! blocks are free until they are used.
//!
//! In the setting where frees do not wait, uses do not wait either: the owner moves the *front* and
//! puts the group on the transaction's list. The next thread that changes the group, or the
//! committer, *folds* the blocks before the front into the bitmap, but not into the version of a
//! transaction earlier than the one that used them. A use that skips blocks is made under the
//! group's lock, and folded at once.
//!
//! So a preallocation on the list is empty if and only if its front has reached its end. It leaves
//! the list when that is folded; until then, a search for one to discard skips it.
//!
//! Locking: `state` [Preallocation] is taken before the group.

use std::sync::Arc;

use pext4_ondisk::{GroupNumber, Tid};
use pext4_sync::order::Class;
use pext4_sync::{Mutex, MutexGuard};

use super::buddy::Span;
use super::front::{PreallocationFront, Used};

/// A run of blocks of one group, allocatable only through this value.
pub struct Preallocation {
    group: GroupNumber,
    /// The block after the end of the run: it never changes, unlike the start, so it identifies the
    /// run in its group.
    end: u32,
    /// How far it is used, for threads that hold the group.
    pub(crate) front: PreallocationFront,
    state: Mutex<Option<Aside>>,
}

/// What is left of a preallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aside {
    /// The block of the file that the run's first block is for; undefined for small files' runs.
    pub logical: u32,
    /// The blocks, relative to the group.
    pub span: Span,
}

impl Preallocation {
    /// A preallocation of these blocks.
    pub(crate) fn new(group: GroupNumber, aside: Aside) -> Self {
        Self {
            group,
            end: aside.span.end(),
            front: PreallocationFront::new(aside.span.start),
            state: Mutex::new(Class::Preallocation, Some(aside)),
        }
    }

    /// The group of the blocks.
    pub(crate) fn group(&self) -> GroupNumber {
        self.group
    }

    /// The block after the end of the run, which identifies it in its group.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Locks what is left. The group's lock may be taken while this one is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Aside>> {
        self.state.lock()
    }

    /// As [`Self::lock`], or `None` if it is locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Aside>>> {
        self.state.try_lock()
    }
}

/// A preallocation on its group's list. [group]
pub struct Listed {
    pub preallocation: Arc<Preallocation>,
    folded: u32,
}

/// Uses, not folded yet, of a preallocation that is no longer on the list. [group]
pub struct Leftover {
    used: Used,
    folded: u32,
}

impl Listed {
    pub fn new(preallocation: &Arc<Preallocation>) -> Self {
        Self {
            preallocation: Arc::clone(preallocation),
            folded: preallocation.front.used().now(),
        }
    }

    /// Whether transactions before the running one, `tid`, used blocks that are not folded.
    pub fn has_uses_before(&self, tid: Tid) -> bool {
        self.preallocation.front.used().before(tid) > self.folded
    }

    /// The blocks that `tid` and earlier transactions used since the last call, and whether later
    /// ones used more.
    pub fn take_used(&mut self, tid: Tid) -> (Span, bool) {
        let used = self.preallocation.front.begin_fold();
        let span = take_used(&mut self.folded, used, tid);
        let is_more = used.now() > self.folded;
        if is_more {
            self.preallocation.front.keep_request();
        }
        (span, is_more)
    }

    /// Notes that the blocks up to `end` have been folded, or skipped.
    pub fn fold_up_to(&mut self, end: u32) {
        self.folded = end;
    }

    /// Whether its owner has used all of it.
    pub fn is_used_up(&self) -> bool {
        self.preallocation.front.used().now() == self.preallocation.end
    }

    /// The number of blocks that are not folded, including those that are not used.
    pub fn unfolded(&self) -> u32 {
        self.preallocation.end - self.folded
    }

    /// The uses that remain to be folded after it has left the list, if any.
    pub fn leftover(&self) -> Option<Leftover> {
        let used = self.preallocation.front.used();
        (used.now() > self.folded).then_some(Leftover {
            used,
            folded: self.folded,
        })
    }
}

impl Leftover {
    /// As [`Listed::has_uses_before`].
    pub fn has_uses_before(&self, tid: Tid) -> bool {
        self.used.before(tid) > self.folded
    }

    /// The blocks that `tid` and earlier transactions used since the last call.
    pub fn take_used(&mut self, tid: Tid) -> Span {
        take_used(&mut self.folded, self.used, tid)
    }

    /// Whether all uses are folded.
    pub fn is_folded(&self) -> bool {
        self.folded >= self.used.now()
    }
}

fn take_used(folded: &mut u32, used: Used, tid: Tid) -> Span {
    let end = used.through(tid).max(*folded);
    let start = std::mem::replace(folded, end);
    Span {
        start,
        length: end - start,
    }
}

#[cfg(all(test, loom))]
mod models {
    //! One run of blocks from 100 on: one thread uses some of them, and another folds these uses.

    use std::sync::Arc;

    use pext4_ondisk::{GroupNumber, Tid};
    use pext4_sync::{Stack, thread};

    use super::{Aside, Listed, Preallocation, Span};

    const FIRST: Tid = Tid(6);

    struct Run {
        preallocation: Arc<Preallocation>,
        requests: Stack<u32>,
    }

    impl Run {
        fn new() -> (Arc<Self>, Listed) {
            let span = Span {
                start: 100,
                length: 200,
            };
            let aside = Aside { logical: 0, span };
            let preallocation = Arc::new(Preallocation::new(GroupNumber(0), aside));
            let listed = Listed::new(&preallocation);
            let requests = Stack::new();
            (
                Arc::new(Self {
                    preallocation,
                    requests,
                }),
                listed,
            )
        }

        fn use_up_to(&self, tid: Tid, end: u32) {
            self.preallocation.front.advance(tid, end);
            if self.preallocation.front.request_fold() {
                self.requests.push(end);
            }
        }
    }

    #[test]
    fn what_is_not_folded_is_asked_for() {
        pext4_sync::model(|| {
            let (run, mut listed) = Run::new();
            let beside = Arc::clone(&run);
            let other = thread::spawn("other", move || {
                beside.use_up_to(FIRST, 110);
                beside.use_up_to(FIRST, 120);
            });
            let mut is_more = false;
            if run.requests.take_all().count() > 0 {
                is_more = listed.take_used(FIRST).1;
            }
            other.join().expect("it does not panic");
            assert!(!is_more, "there is no later transaction");
            let is_folded = listed.leftover().is_none();
            assert!(is_folded || !run.requests.is_empty());
        });
    }

    #[test]
    fn a_version_has_what_its_transaction_used_and_no_more() {
        pext4_sync::model(|| {
            let (run, mut listed) = Run::new();
            run.use_up_to(FIRST, 110);
            let beside = Arc::clone(&run);
            let second = FIRST.next();
            let other = thread::spawn("other", move || beside.use_up_to(second, 120));
            let (span, is_more) = listed.take_used(FIRST);
            assert_eq!((span.start, span.end()), (100, 110));
            other.join().expect("it does not panic");
            assert!(is_more || run.requests.take_all().count() > 1);
            let (span, is_more) = listed.take_used(second);
            assert_eq!((span.start, span.end(), is_more), (110, 120, false));
        });
    }
}
