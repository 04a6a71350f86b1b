//! Runs the same work on several threads, on as many as the system permits.

use pext4_sync::thread;

/// Runs `work` on the calling thread and on up to `threads - 1` others, and returns when all have
/// finished. If the system starts fewer threads (`ulimit -u`, a container's limit), the others do
/// all of it: `work` must take items until none is left.
pub(super) fn run_on_threads(threads: usize, work: &(impl Fn() + Sync)) {
    thread::scope(|scope| {
        for _ in 1..threads {
            if thread::try_spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use pext4_sync::atomic::{AtomicUsize, Ordering};

    use super::run_on_threads;

    #[test]
    fn all_work_is_done_with_any_number_of_threads() {
        for threads in [0, 1, 2, 7] {
            let (left, done) = (AtomicUsize::new(100), AtomicUsize::new(0));
            run_on_threads(threads, &|| {
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
                {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert_eq!(done.into_inner(), 100, "{threads} threads");
        }
    }
}
