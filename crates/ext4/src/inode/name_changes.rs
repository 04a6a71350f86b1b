//! Times of a directory whose names change, kept outside its state.
//!
//! Adding or removing a name sets the directory's times. In one directory many cores do so at once,
//! so it must not make all of them take one lock at each tick of the clock. The time is kept here
//! until a thread that holds the state's lock *folds* it into the state: the next change of the
//! state, or the capture of its bytes. Readers of the times include the time that is kept here. A
//! thread that holds its clock sets the times in the state at once, whatever they were.
//!
//! There may be times of two transactions at once: of the running one, and of the one that is being
//! committed, whose bytes must not contain the later time. So there are two places, chosen by the
//! parity of the transaction's number. A place is empty when it is used again, since a
//! transaction's bytes are captured before the second transaction after it opens.
//!
//! Every transaction that changes names of the directory must touch the directory. One of the
//! threads that change names is elected for this by an atomic ([`NameChanges::claim`]). The others
//! do not wait: the transaction cannot close before the elected thread has touched the directory
//! and stopped its handle. Until then the claim tells a sync of the directory which transaction to
//! wait for.
//!
//! Invariants: a claim is never of an earlier transaction than the claim before it, since only
//! threads with a handle of the running transaction claim. The newest time is in the place of the
//! transaction claimed last, else in that of the transaction before, else in the state. The
//! attributes published of the state expire before a time is folded in, so a reader that combines
//! them with the times here never sees a time go back (see `Published::read_with`).

use pext4_ondisk::Tid;
use pext4_ondisk::time::Time;
use pext4_sync::atomic::{AtomicU64, Ordering};

/// No thread has claimed.
const NOBODY: u64 = 0;
/// No time is kept. No time has this encoding: it would have too many nanoseconds.
const NONE: u64 = u64::MAX;

/// The number of seconds that a thread is late at most with the time of its change.
const MOST_LATE: i64 = 10;

/// Times that changes of names have set and that are not in the state yet.
pub(super) struct NameChanges {
    /// One more than the number of the last transaction in which a thread was elected. [atomic]
    claimed: AtomicU64,
    /// Each encoded as the two words of an inode. [atomic; emptied under the lock of the state]
    times: [AtomicU64; 2],
}

impl NameChanges {
    pub(super) fn new() -> Self {
        Self {
            claimed: AtomicU64::new(NOBODY),
            times: [AtomicU64::new(NONE), AtomicU64::new(NONE)],
        }
    }

    /// Elects one thread per transaction to touch the directory: true for the elected caller, which
    /// has an open handle of `tid`.
    pub(super) fn claim(&self, tid: Tid) -> bool {
        let before = self.claimed.load(Ordering::Relaxed);
        let now = u64::from(tid.0) + 1;
        before != now
            && self
                .claimed
                .compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Records the time of a change under an open handle of `tid`; writes nothing if it is recorded
    /// already, or a slightly later one is: a thread may be late with the time that it has read,
    /// and who has seen the later one must see another after the next change.
    pub(super) fn note(&self, tid: Tid, time: Time) {
        let words = words_of(time);
        // A reader that acquires this time also sees that the time before it was folded in.
        let _ = self
            .place(tid)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |kept| {
                let is_late = time_of(kept).is_some_and(|kept| is_late(time, kept));
                (kept != words && !is_late).then_some(words)
            });
    }

    /// Whether a time of `tid` is recorded. The caller holds the lock of the state; other threads
    /// may record one at any moment.
    pub(super) fn has(&self, tid: Tid) -> bool {
        self.place(tid).load(Ordering::Relaxed) != NONE
    }

    /// Removes and returns the time of `tid`. The caller holds the lock of the state, has expired
    /// what is published of it, and folds the time in.
    pub(super) fn take(&self, tid: Tid) -> Option<Time> {
        time_of(self.place(tid).swap(NONE, Ordering::AcqRel))
    }

    /// The newest time, if it is not in the state.
    pub(super) fn newest(&self) -> Option<Time> {
        let last = self.claimed()?;
        let kept = |tid| time_of(self.place(tid).load(Ordering::Acquire));
        kept(last).or_else(|| kept(last.previous()))
    }

    /// The last transaction for which a thread was elected.
    pub(super) fn claimed(&self) -> Option<Tid> {
        let claimed = self.claimed.load(Ordering::Acquire).checked_sub(1)?;
        Some(Tid(u32::try_from(claimed).expect("it was one")))
    }

    fn place(&self, tid: Tid) -> &AtomicU64 {
        &self.times[(tid.0 & 1) as usize]
    }
}

/// Whether a change of names at `time` came late: `known`, the time of another change, is later,
/// but by so little that no clock was set back between them. Then the later time stays.
fn is_late(time: Time, known: Time) -> bool {
    let by = known.seconds.saturating_sub(time.seconds);
    known > time && by < MOST_LATE
}

/// A directory's times of modification and of change after a change of names at `time`. A late one
/// changes nothing, unless the modification was earlier: then only the clock was set back, or the
/// user has set that time.
pub(super) fn times_after(time: Time, (modified, changed): (Time, Time)) -> (Time, Time) {
    if !is_late(time, changed) {
        return (time, time);
    }
    match is_late(time, modified) {
        true => (modified, changed),
        false => (time, changed),
    }
}

fn words_of(time: Time) -> u64 {
    let (seconds, extra) = time.encode();
    u64::from(seconds) | u64::from(extra) << 32
}

fn time_of(words: u64) -> Option<Time> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "both parts were packed at these widths"
    )]
    let (seconds, extra) = (words as u32, (words >> 32) as u32);
    (words != NONE).then(|| Time::decode(seconds, Some(extra)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{NameChanges, Tid, Time, times_after};

    #[test]
    fn the_newest_time_is_told_until_a_state_says_it() {
        let (names, last, next) = (NameChanges::new(), Tid(u32::MAX), Tid(0));
        let time = Time::from_seconds;
        assert_eq!((names.claimed(), names.newest()), (None, None));
        assert!(names.claim(last));
        assert!(!names.claim(last), "one is elected");
        names.note(last, time(50));
        names.note(last, time(49));
        assert_eq!(names.newest(), Some(time(50)), "a thread may be late");
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
            assert_eq!(names.take(Tid(1)), Some(time.clamp_wide()));
        }
    }

    #[test]
    fn each_of_the_times_stays_if_it_is_slightly_later() {
        for (modified, changed, expected) in [
            (100, 100, (200, 200)),
            (203, 203, (203, 203)),
            // The clock was set back by three seconds.
            (100, 203, (200, 203)),
            // Set by the user, into the future.
            (203, 150, (200, 200)),
            // The clock was set back by more than any thread is late.
            (300, 300, (200, 200)),
        ] {
            let times = times_after(
                Time::from_seconds(200),
                (Time::from_seconds(modified), Time::from_seconds(changed)),
            );
            assert_eq!(
                times,
                (
                    Time::from_seconds(expected.0),
                    Time::from_seconds(expected.1)
                ),
                "{modified}, {changed}"
            );
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    //! A directory whose state is one time in seconds; it uses `NameChanges` as an inode does.

    use std::sync::Arc;

    use pext4_sync::order::Class;
    use pext4_sync::{Mutex, Published, thread};

    use super::{NameChanges, Tid, Time, is_late};

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
        /// Owes its bytes to the last transaction, and has time 0, which is published.
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
                let known = Time::from_seconds(state.time);
                if let Some(time) = self.names.take(tid).filter(|&time| !is_late(time, known)) {
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
                return newest(time.cast_signed(), names);
            }
            let state = self.state.lock();
            self.published.offer(|| [state.time.cast_unsigned()]);
            newest(state.time, self.names.newest())
        }
    }

    fn newest(seconds: i64, names: Option<Time>) -> i64 {
        names
            .filter(|&time| !is_late(time, Time::from_seconds(seconds)))
            .map_or(seconds, |names| names.seconds)
    }

    /// Whichever of two threads is elected, and is first, the later time stays, as it may have been
    /// told already.
    #[test]
    fn a_late_thread_takes_no_time_back() {
        pext4_sync::model(|| {
            let directory = Directory::new();
            let beside = Arc::clone(&directory);
            let other = thread::spawn("other", move || beside.change_names(NEXT, 1));
            directory.change_names(NEXT, 2);
            assert_eq!(directory.told(), 2);
            other.join().expect("it does not panic");
            assert_eq!(directory.told(), 2);
            assert_eq!(directory.capture(NEXT), 2);
        });
    }

    /// Whichever of two threads is elected, neither waits for the other, and each sees its own
    /// change.
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

    /// While another thread changes the state, a reader never sees a time go back.
    #[test]
    fn times_do_not_go_back_where_they_are_folded_in() {
        pext4_sync::model(|| {
            let directory = Directory::new();
            directory.names.claim(LAST);
            directory.names.note(LAST, Time::from_seconds(1));
            let beside = Arc::clone(&directory);
            // The reader must be the spawned thread: loom does not try an earlier position for a
            // store whose own thread has loaded before.
            let reader = thread::spawn("reader", move || {
                let (first, second) = (beside.told(), beside.told());
                assert!(first != 0 && second >= first, "{first} {second}");
            });
            directory.edit(LAST, |state| state.time = 9);
            reader.join().expect("no time goes back");
            assert_eq!(directory.told(), 9);
        });
    }

    /// The bytes of a transaction contain its own last time, whatever the next transaction records.
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
