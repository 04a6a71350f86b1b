//! What finds no space is tried again while deleted files are about to be given back.
//!
//! The kernel gives them back with a message that nobody waits for, so what comes right behind may be served first.
//! That lasts for moments. A deleted file that somebody holds open looks the same and lasts as long as it likes. So
//! when a whole round of tries was in vain, it is remembered for which files: while they are the same, every other one
//! pauses once and briefly, in case one has just been closed.
//!
//! The message comes to the threads that serve, so none of those waits here: if all did, nobody would read it. A
//! request that would have to wait is given up ([`without_waiting`]) and carried out again on another thread.

use std::cell::Cell;
use std::time::Duration;

use pext4_fs::{Error, Refusal};
use pext4_sync::atomic::{AtomicU64, Ordering};

/// How often a full volume is looked at again, and what lies between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);
/// The pause where a whole round was in vain.
const BRIEF_PAUSE: Duration = Duration::from_millis(1);

/// What this thread does where it would have to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It waits.
    Waits,
    /// It gives up.
    GivesUp,
    /// It has given up.
    GaveUp,
}

thread_local! {
    static MANNER: Cell<Manner> = const { Cell::new(Manner::Waits) };
}

/// Runs a request on a thread that may not wait; none if it found no space and some may come at any moment.
pub(super) fn without_waiting<T>(request: impl FnOnce() -> T) -> Option<T> {
    MANNER.set(Manner::GivesUp);
    let answer = request();
    (MANNER.replace(Manner::Waits) == Manner::GivesUp).then_some(answer)
}

/// Whether this thread may wait; it is noted that it wanted to.
fn may_wait() -> bool {
    let waits = MANNER.get() == Manner::Waits;
    if !waits {
        MANNER.set(Manner::GaveUp);
    }
    waits
}

/// For which deleted files a round was in vain.
pub(super) struct Room {
    /// What stands for them; zero: none. [atomic; written when a round was in vain only]
    in_vain: AtomicU64,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            in_vain: AtomicU64::new(0),
        }
    }

    /// Runs an operation, and again while it finds no space and there are deleted files, for which `nameless` answers
    /// what stands for them.
    pub(super) fn wait_for<T>(
        &self,
        operation: impl Fn() -> Result<T, Error>,
        nameless: impl Fn() -> Option<u64>,
        pause: impl Fn(Duration),
    ) -> Result<T, Error> {
        let mut first = None;
        for _ in 0..TRIES {
            let error = match operation() {
                Err(error) if is_full(&error) => error,
                result => return result,
            };
            let Some(files) = nameless().filter(|_| may_wait()) else {
                return Err(error);
            };
            if files == self.in_vain.load(Ordering::Relaxed) {
                pause(BRIEF_PAUSE);
                return operation();
            }
            first.get_or_insert(files);
            pause(PAUSE);
        }
        let last = operation();
        if last.as_ref().is_err_and(is_full)
            && let Some(files) = nameless()
            && first == Some(files)
        {
            self.in_vain.store(files, Ordering::Relaxed);
        }
        last
    }
}

/// Whether blocks or inodes are wanting.
fn is_full(error: &Error) -> bool {
    error.is(Refusal::NoSpace) || error.is(Refusal::NoInodes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use pext4_fs::{Error, Refusal};

    use super::{BRIEF_PAUSE, PAUSE, Room, TRIES, without_waiting};

    /// All pauses of a call that finds no space while these files are nameless.
    fn paused(room: &Room, nameless: Option<u64>) -> Duration {
        let paused = Cell::new(Duration::ZERO);
        let full = || Err::<(), _>(Error::Refused(Refusal::NoSpace));
        let pause = |time| paused.set(paused.get() + time);
        let refused = room.wait_for(full, || nameless, pause);
        assert!(refused.expect_err("full").is(Refusal::NoSpace));
        paused.get()
    }

    #[test]
    fn a_file_that_stays_open_is_waited_for_once() {
        let room = Room::new();
        assert_eq!(paused(&room, None), Duration::ZERO);
        assert_eq!(paused(&room, Some(7)), PAUSE * TRIES);
        for _ in 0..3 {
            assert_eq!(paused(&room, Some(7)), BRIEF_PAUSE);
        }
        assert_eq!(paused(&room, Some(8)), PAUSE * TRIES, "another file");
        assert_eq!(paused(&room, None), Duration::ZERO);
    }

    #[test]
    fn what_is_given_back_while_one_waits_is_taken() {
        let room = Room::new();
        let pauses = Cell::new(0);
        let operation = || match pauses.get() {
            0..3 => Err(Error::Refused(Refusal::NoInodes)),
            pauses => Ok(pauses),
        };
        let pause = |_| pauses.set(pauses.get() + 1);
        assert_eq!(room.wait_for(operation, || Some(7), pause).ok(), Some(3));
        assert_eq!(paused(&room, Some(7)), PAUSE * TRIES, "it was not in vain");
    }

    #[test]
    fn a_round_in_which_files_came_or_went_proves_nothing() {
        let room = Room::new();
        let files = Cell::new(7);
        let full = || Err::<(), _>(Error::Refused(Refusal::NoSpace));
        let pause = |_| files.set(files.get() + 1);
        let refused = room.wait_for(full, || Some(files.get()), pause);
        assert!(refused.is_err());
        assert_eq!(paused(&room, Some(files.get())), PAUSE * TRIES);
    }

    #[test]
    fn a_thread_that_may_not_wait_gives_up_what_it_would_wait_for_and_nothing_else() {
        let room = Room::new();
        let tried = Cell::new(0);
        let request = |error: Refusal, nameless| {
            tried.set(0);
            let operation = || {
                tried.set(tried.get() + 1);
                Err::<(), _>(Error::Refused(error))
            };
            without_waiting(|| room.wait_for(operation, || nameless, |_| panic!("it waits")))
        };
        assert!(request(Refusal::NoSpace, Some(7)).is_none());
        assert_eq!(tried.get(), 1);
        assert!(request(Refusal::NoSpace, None).is_some(), "it is full");
        assert!(request(Refusal::Exists, Some(7)).is_some());
        assert_eq!(paused(&room, Some(7)), PAUSE * TRIES, "elsewhere one waits");
    }

    #[test]
    fn other_errors_are_not_waited_for() {
        let room = Room::new();
        let refuse = || Err::<(), _>(Error::Refused(Refusal::Exists));
        let refused = room.wait_for(refuse, || Some(7), |_| panic!("it waits"));
        assert!(refused.is_err());
    }
}
