//! Retries of operations that found no space while deleted files are about to be freed.
//!
//! The kernel releases a deleted file with `FORGET`, a message that has no reply, so a request that
//! was sent after it may be served first and find the volume full. This state lasts for moments. A
//! deleted file that a process keeps open looks the same but may stay indefinitely. So when all
//! retries of an operation have failed, [`SpaceRetry`] remembers the set of deleted files. While
//! the set is unchanged, other operations retry only once, after a short pause, in case one of
//! these files has just been closed.
//!
//! `FORGET` is read by the transport's threads, so these must not wait here: if all of them did,
//! nobody would read it. [`without_waiting`] cancels a request that would wait, and the caller
//! repeats it on another thread.

use std::cell::Cell;
use std::time::Duration;

use pext4_fs::{Error, Refusal};
use pext4_sync::atomic::{AtomicU64, Ordering};

/// Retries on a full volume, and the pause before each.
const RETRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);
/// The pause before the only retry if all retries have failed for the same deleted files.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// What the calling thread does if an operation has to wait for space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitMode {
    /// It waits.
    Wait,
    /// It must not wait: the operation fails.
    NoWait,
    /// As `NoWait`, and an operation has failed for that reason.
    Cancelled,
}

thread_local! {
    static WAIT_MODE: Cell<WaitMode> = const { Cell::new(WaitMode::Wait) };
}

/// Runs `request` on a thread that must not wait. `None` if it was cancelled: it found no space,
/// and deleted files may be freed at any moment.
pub(super) fn without_waiting<T>(request: impl FnOnce() -> T) -> Option<T> {
    WAIT_MODE.set(WaitMode::NoWait);
    let answer = request();
    (WAIT_MODE.replace(WaitMode::Wait) == WaitMode::NoWait).then_some(answer)
}

/// Whether this thread may wait; if not, marks its request as cancelled.
fn may_wait() -> bool {
    let may_wait = WAIT_MODE.get() == WaitMode::Wait;
    if !may_wait {
        WAIT_MODE.set(WaitMode::Cancelled);
    }
    may_wait
}

/// The deleted files for which all retries of an operation have failed.
pub(super) struct SpaceRetry {
    /// The fingerprint of these files; 0 for none. [atomic; written only when all retries have
    /// failed]
    failed_for: AtomicU64,
}

impl SpaceRetry {
    pub(super) fn new() -> Self {
        Self {
            failed_for: AtomicU64::new(0),
        }
    }

    /// Runs `operation`, and repeats it while it finds no space and deleted files are not freed
    /// yet. `unnamed` returns a fingerprint of these files, or `None` if there are none.
    pub(super) fn run<T>(
        &self,
        operation: impl Fn() -> Result<T, Error>,
        unnamed: impl Fn() -> Option<u64>,
        pause: impl Fn(Duration),
    ) -> Result<T, Error> {
        let mut first = None;
        for _ in 0..RETRIES {
            let error = match operation() {
                Err(error) if is_full(&error) => error,
                result => return result,
            };
            let Some(files) = unnamed() else {
                // The last of them may have been freed after the operation had looked for space.
                return operation();
            };
            if !may_wait() {
                return Err(error);
            }
            if files == self.failed_for.load(Ordering::Relaxed) {
                pause(SHORT_PAUSE);
                return operation();
            }
            first.get_or_insert(files);
            pause(PAUSE);
        }
        let last = operation();
        if last.as_ref().is_err_and(is_full)
            && let Some(files) = unnamed()
            && first == Some(files)
        {
            self.failed_for.store(files, Ordering::Relaxed);
        }
        last
    }
}

/// Whether an operation failed because no block or no inode is free.
fn is_full(error: &Error) -> bool {
    error.is(Refusal::NoSpace) || error.is(Refusal::NoInodes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use pext4_fs::{Error, Refusal};

    use super::{PAUSE, RETRIES, SHORT_PAUSE, SpaceRetry, without_waiting};

    /// The sum of the pauses of an operation that finds no space, with this fingerprint of the
    /// deleted files.
    fn paused(retry: &SpaceRetry, unnamed: Option<u64>) -> Duration {
        let paused = Cell::new(Duration::ZERO);
        let full = || Err::<(), _>(Error::Refused(Refusal::NoSpace));
        let pause = |time| paused.set(paused.get() + time);
        let refused = retry.run(full, || unnamed, pause);
        assert!(refused.expect_err("full").is(Refusal::NoSpace));
        paused.get()
    }

    #[test]
    fn only_the_first_operation_waits_long_for_a_file_that_stays_open() {
        let retry = SpaceRetry::new();
        assert_eq!(paused(&retry, None), Duration::ZERO);
        assert_eq!(paused(&retry, Some(7)), PAUSE * RETRIES);
        for _ in 0..3 {
            assert_eq!(paused(&retry, Some(7)), SHORT_PAUSE);
        }
        assert_eq!(paused(&retry, Some(8)), PAUSE * RETRIES, "another file");
        assert_eq!(paused(&retry, None), Duration::ZERO);
    }

    #[test]
    fn an_operation_succeeds_when_files_are_freed_while_it_waits() {
        let retry = SpaceRetry::new();
        let pauses = Cell::new(0);
        let operation = || match pauses.get() {
            0..3 => Err(Error::Refused(Refusal::NoInodes)),
            pauses => Ok(pauses),
        };
        let pause = |_| pauses.set(pauses.get() + 1);
        assert_eq!(retry.run(operation, || Some(7), pause).ok(), Some(3));
        assert_eq!(
            paused(&retry, Some(7)),
            PAUSE * RETRIES,
            "no failure to remember"
        );
    }

    #[test]
    fn an_operation_succeeds_when_the_last_file_is_freed_while_it_fails() {
        let retry = SpaceRetry::new();
        let tried = Cell::new(0);
        let operation = || {
            tried.set(tried.get() + 1);
            match tried.get() {
                1 => Err(Error::Refused(Refusal::NoSpace)),
                _ => Ok(()),
            }
        };
        let result = retry.run(operation, || None, |_| panic!("it waits"));
        assert!(result.is_ok());
    }

    #[test]
    fn a_failure_is_not_remembered_if_the_deleted_files_changed_meanwhile() {
        let retry = SpaceRetry::new();
        let files = Cell::new(7);
        let full = || Err::<(), _>(Error::Refused(Refusal::NoSpace));
        let pause = |_| files.set(files.get() + 1);
        let refused = retry.run(full, || Some(files.get()), pause);
        assert!(refused.is_err());
        assert_eq!(paused(&retry, Some(files.get())), PAUSE * RETRIES);
    }

    #[test]
    fn a_thread_that_must_not_wait_cancels_only_requests_that_would_wait() {
        let retry = SpaceRetry::new();
        let tried = Cell::new(0);
        let request = |error: Refusal, unnamed| {
            tried.set(0);
            let operation = || {
                tried.set(tried.get() + 1);
                Err::<(), _>(Error::Refused(error))
            };
            without_waiting(|| retry.run(operation, || unnamed, |_| panic!("it waits")))
        };
        assert!(request(Refusal::NoSpace, Some(7)).is_none());
        assert_eq!(tried.get(), 1);
        assert!(request(Refusal::NoSpace, None).is_some(), "it is full");
        assert!(request(Refusal::Exists, Some(7)).is_some());
        assert_eq!(
            paused(&retry, Some(7)),
            PAUSE * RETRIES,
            "elsewhere one waits"
        );
    }

    #[test]
    fn other_errors_are_returned_at_once() {
        let retry = SpaceRetry::new();
        let refuse = || Err::<(), _>(Error::Refused(Refusal::Exists));
        let refused = retry.run(refuse, || Some(7), |_| panic!("it waits"));
        assert!(refused.is_err());
    }
}
