//! Times of a directory whose names change, beside its state.
//!
//! Whoever enters or removes a name sets the directory's times. In one directory that happens on many
//! cores at once, so it must not be a lock for all of them at each tick of the clock. The time is kept
//! here, beside the state, until somebody who has the state's lock *folds* it in: the next change of
//! the state, or the capture of its bytes. Who reads the times takes what is here for them.
//!
//! Times of two transactions may be here at once: of the running one and of the one that is being
//! committed, whose bytes must not have the later time. So there is a place for each by the number's
//! parity. One that is used again is empty, since a transaction's bytes are captured before the next
//! but one opens.
//!
//! The directory must be touched in each transaction that changes its names. One of those who do is
//! elected for it by an atomic ([`NameChanges::claim`]); the others do not wait, as the transaction
//! cannot be closed before the handle is stopped under which the elected one touches it. Until then
//! the claim tells what a sync of the directory has to wait for.
//!
//! Invariants: a claim is never of an earlier transaction than the one before it, since only those
//! claim who have a handle of the running one. The newest time is in the place of the transaction
//! claimed last, else in that of the one before, else in the state. What is published of the state
//! expires before a time is folded in, so that who reads it with the times here sees no time go back
//! (see `Published::read_with`).

use pext4_ondisk::Tid;
use pext4_ondisk::time::Time;
use pext4_sync::atomic::{AtomicU64, Ordering};

/// No transaction has claimed.
const NOBODY: u64 = 0;
/// No time is kept; the words of none look so, as it would have too many nanoseconds.
const NONE: u64 = u64::MAX;

/// Times that changes of names have set and no state says yet.
pub(super) struct NameChanges {
    /// One more than the number of the last transaction in which somebody was elected. [atomic]
    claimed: AtomicU64,
    /// As the two words of an inode. [atomic; emptied under the lock of the state]
    times: [AtomicU64; 2],
}

impl NameChanges {
    pub(super) fn new() -> Self {
        Self {
            claimed: AtomicU64::new(NOBODY),
            times: [AtomicU64::new(NONE), AtomicU64::new(NONE)],
        }
    }

    /// Whether the caller, with an open handle of `tid`, is the one elected to touch the directory in it.
    pub(super) fn claim(&self, tid: Tid) -> bool {
        let before = self.claimed.load(Ordering::Relaxed);
        let now = u64::from(tid.0) + 1;
        before != now
            && self
                .claimed
                .compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Keeps the time of a change under an open handle of `tid`; writes nothing where it is kept already.
    pub(super) fn note(&self, tid: Tid, time: Time) {
        let words = words_of(time);
        let kept = self.place(tid);
        if kept.load(Ordering::Relaxed) != words {
            // Who acquires it knows also that what was here before has been folded in.
            kept.swap(words, Ordering::AcqRel);
        }
    }

    /// Whether a time of `tid` is kept; under the lock of the state, which others may leave with one.
    pub(super) fn has(&self, tid: Tid) -> bool {
        self.place(tid).load(Ordering::Relaxed) != NONE
    }

    /// Takes the time of `tid`, for the state, whose lock the caller has and of which nothing is published.
    pub(super) fn take(&self, tid: Tid) -> Option<Time> {
        time_of(self.place(tid).swap(NONE, Ordering::AcqRel))
    }

    /// The newest time, if it is not in the state.
    pub(super) fn newest(&self) -> Option<Time> {
        let last = self.claimed()?;
        let kept = |tid| time_of(self.place(tid).load(Ordering::Acquire));
        kept(last).or_else(|| kept(last.previous()))
    }

    /// The last transaction for which somebody was elected.
    pub(super) fn claimed(&self) -> Option<Tid> {
        let claimed = self.claimed.load(Ordering::Acquire).checked_sub(1)?;
        Some(Tid(u32::try_from(claimed).expect("it was one")))
    }

    fn place(&self, tid: Tid) -> &AtomicU64 {
        &self.times[(tid.0 & 1) as usize]
    }
}

fn words_of(time: Time) -> u64 {
    let (seconds, extra) = time.encode();
    u64::from(seconds) | u64::from(extra) << 32
}

fn time_of(words: u64) -> Option<Time> {
    #[expect(clippy::cast_possible_truncation, reason = "they were put together so")]
    let (seconds, extra) = (words as u32, (words >> 32) as u32);
    (words != NONE).then(|| Time::decode(seconds, Some(extra)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{NameChanges, Tid, Time};

    #[test]
    fn the_newest_time_is_told_until_a_state_says_it() {
        let (names, last, next) = (NameChanges::new(), Tid(u32::MAX), Tid(0));
        let time = Time::from_seconds;
        assert_eq!((names.claimed(), names.newest()), (None, None));
        assert!(names.claim(last));
        assert!(!names.claim(last), "one is elected");
        names.note(last, time(5));
        names.note(last, time(4));
        assert_eq!(names.newest(), Some(time(4)), "clocks may be set back");
        assert!(names.claim(next));
        assert_eq!(names.claimed(), Some(next));
        assert_eq!(names.newest(), Some(time(4)));
        names.note(next, time(6));
        assert_eq!(names.newest(), Some(time(6)));
        assert_eq!(names.take(last), Some(time(4)), "each has its own");
        assert_eq!(names.newest(), Some(time(6)));
        assert!(names.has(next) && !names.has(last));
        assert_eq!(names.take(next), Some(time(6)));
        assert_eq!((names.take(next), names.newest()), (None, None));
    }

    #[test]
    fn a_time_comes_back_as_an_inode_would_hold_it() {
        let names = NameChanges::new();
        names.claim(Tid(1));
        for (seconds, nanoseconds) in [
            (0, 0),
            (-1, 999_999_999),
            (i64::from(i32::MIN), 0),
            (1 << 33, 7),
        ] {
            let time = Time {
                seconds,
                nanoseconds,
            };
            names.note(Tid(1), time);
            assert_eq!(names.newest(), Some(time.clamp_wide()));
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A directory whose state is one time, in seconds, as an inode uses what is above.

    use std::sync::Arc;

    use pext4_sync::order::Class;
    use pext4_sync::{Mutex, Published, thread};

    use super::{NameChanges, Tid, Time};

    const LAST: Tid = Tid(6);
    const NEXT: Tid = Tid(7);

    #[derive(Default)]
    struct State {
        time: i64,
        owed_to: Option<Tid>,
        captured: Option<i64>,
    }

    struct Directory {
        names: NameChanges,
        published: Published<1>,
        state: Mutex<State>,
    }

    impl Directory {
        /// Owes the last transaction its bytes, and says time 0, which is published.
        fn new() -> Arc<Self> {
            let state = State {
                owed_to: Some(LAST),
                ..State::default()
            };
            let directory = Self {
                names: NameChanges::new(),
                published: Published::new(),
                state: Mutex::new(Class::InodeState, state),
            };
            directory.told();
            directory.told();
            Arc::new(directory)
        }

        fn change_names(&self, tid: Tid, seconds: i64) {
            let is_elected = self.names.claim(tid);
            self.names.note(tid, Time::from_seconds(seconds));
            if is_elected {
                self.edit(tid, |_| ());
            }
        }

        fn edit(&self, tid: Tid, change: impl FnOnce(&mut State)) {
            let mut state = self.state.lock();
            self.fold(&mut state);
            if state.owed_to == Some(tid.previous()) {
                state.captured = Some(state.time);
            }
            state.owed_to = Some(tid);
            self.fold(&mut state);
            change(&mut state);
            self.published.expire();
        }

        fn fold(&self, state: &mut State) {
            if let Some(tid) = state.owed_to.filter(|&tid| self.names.has(tid)) {
                self.published.expire();
                if let Some(time) = self.names.take(tid) {
                    state.time = time.seconds;
                }
            }
        }

        /// The bytes of a transaction that is closed: its time.
        fn capture(&self, tid: Tid) -> i64 {
            let mut state = self.state.lock();
            self.fold(&mut state);
            if state.owed_to == Some(tid) {
                state.owed_to = None;
                state.captured = Some(state.time);
            }
            state.captured.expect("it owed them")
        }

        fn told(&self) -> i64 {
            let published = self.published.read_with(|| self.names.newest());
            if let Some(([time], names)) = published {
                return names.map_or(time.cast_signed(), |names| names.seconds);
            }
            let state = self.state.lock();
            self.published.offer(|| [state.time.cast_unsigned()]);
            self.names
                .newest()
                .map_or(state.time, |names| names.seconds)
        }
    }

    /// Whoever of two is elected, none waits for the other and each finds its own change told.
    #[test]
    fn what_was_noted_is_told() {
        pext4_sync::model(|| {
            let directory = Directory::new();
            let beside = Arc::clone(&directory);
            let other = thread::spawn("other", move || {
                beside.change_names(NEXT, 1);
                assert_ne!(beside.told(), 0);
            });
            directory.change_names(NEXT, 2);
            assert_eq!(directory.names.claimed(), Some(NEXT));
            assert_ne!(directory.told(), 0);
            other.join().expect("it does not panic");
            assert_eq!(directory.capture(NEXT), directory.told());
        });
    }

    /// Against a change of the state by somebody else, a reader never sees a time go back.
    #[test]
    fn times_do_not_go_back_where_they_are_folded_in() {
        pext4_sync::model(|| {
            let directory = Directory::new();
            directory.names.claim(LAST);
            directory.names.note(LAST, Time::from_seconds(1));
            let beside = Arc::clone(&directory);
            // The reader is the other: loom tries no earlier place for a store whose own thread loaded before.
            let reader = thread::spawn("reader", move || {
                let (first, second) = (beside.told(), beside.told());
                assert!(first != 0 && second >= first, "{first} {second}");
            });
            directory.edit(LAST, |state| state.time = 9);
            reader.join().expect("no time goes back");
            assert_eq!(directory.told(), 9);
        });
    }

    /// The bytes of a transaction have its own last time, whatever the next one notes meanwhile.
    #[test]
    fn a_captured_time_is_of_its_transaction() {
        pext4_sync::model(|| {
            let directory = Directory::new();
            directory.names.claim(LAST);
            directory.names.note(LAST, Time::from_seconds(1));
            let beside = Arc::clone(&directory);
            let committer = thread::spawn("committer", move || assert_eq!(beside.capture(LAST), 1));
            directory.change_names(NEXT, 2);
            committer.join().expect("it is the last one's");
            assert_eq!(directory.told(), 2);
            assert_eq!(directory.capture(NEXT), 2);
        });
    }
}
