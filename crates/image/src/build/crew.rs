//! Threads that share work which any of them can do alone: as many as the system has room for.

use pext4_sync::thread;

/// Does `work` on the calling thread and, at the same time, on up to `threads - 1` others; back when all of
/// them are. Where the system starts fewer (`ulimit -u`, a container's limit), those that run do all of it:
/// `work` takes what is left to do until nothing is.
pub(super) fn work_together(threads: usize, work: &(impl Fn() + Sync)) {
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

    use super::work_together;

    #[test]
    fn all_is_done_by_any_number() {
        for threads in [0, 1, 2, 7] {
            let (left, done) = (AtomicUsize::new(100), AtomicUsize::new(0));
            work_together(threads, &|| {
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
