//! Worker threads for requests that wait for the device or the kernel.
//!
//! The transport has few threads. A request that waits for a commit would occupy one of them, and
//! one group commit could serve at most as many callers as there are threads. Requests that wait
//! for the kernel, which sends requests itself meanwhile, could occupy all threads. Such requests
//! run in an [`Offload`]; any thread can send their reply. Requests that wait for the kernel have a
//! pool of their own, since the kernel's requests may need a worker of the other pool.
//!
//! If a job finds no idle worker, the pool starts one, up to [`MAX_WORKERS`]. A worker outlives a
//! job that panics: a pool whose workers were gone would run nothing any more. Dropping the pool
//! runs the jobs that are left and ends the workers. Workers may run on all cores, even if the
//! thread that starts them is kept on its caller's core ([`placement`]).

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pext4_sync::order::Class;
use pext4_sync::thread::{JoinHandle, try_spawn};
use pext4_sync::{Condvar, Mutex};

use crate::placement;

/// Most workers at a time; further jobs wait for one of them.
const MAX_WORKERS: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// A pool of workers.
pub(crate) struct Offload {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    workers: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Offload {
    /// Creates a pool without workers.
    pub(crate) fn new() -> Self {
        let state = State {
            jobs: VecDeque::new(),
            idle: 0,
            workers: Vec::new(),
            closed: false,
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(Class::Leaf, state),
                changed: Condvar::new(),
            }),
        }
    }

    /// Creates a pool with a worker, so that no job ever runs on the calling thread.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    pub(crate) fn with_worker() -> io::Result<Self> {
        let pool = Self::new();
        let worker = pool.start_worker()?;
        pool.shared.state.lock().workers.push(worker);
        Ok(pool)
    }

    fn start_worker(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        let inherited = placement::inherited();
        try_spawn("pext4-waiting", move || {
            inherited.reset();
            shared.work();
        })
    }

    /// Runs `job` on a worker, or on the calling thread if there is no worker and none can be
    /// started.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.workers.len() < MAX_WORKERS {
            match self.start_worker() {
                Ok(worker) => state.workers.push(worker),
                Err(_) if state.workers.is_empty() => {
                    let job = state.jobs.pop_back().expect("it was just pushed");
                    drop(state);
                    return job();
                }
                Err(_) => {}
            }
        }
        drop(state);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // The panic is reported where it occurs, and the job's reply is an error then.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.changed.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        let workers = {
            let mut state = self.shared.state.lock();
            state.closed = true;
            std::mem::take(&mut state.workers)
        };
        self.shared.changed.notify_all();
        for worker in workers {
            // It does not panic, as no job's panic leaves it.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_WORKERS, Offload};
    use crate::placement;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::panic::resume_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Barrier, mpsc};
    use std::thread;

    #[test]
    fn jobs_that_wait_for_each_other_all_run() {
        let pool = Offload::new();
        let barrier = Arc::new(Barrier::new(8));
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..8 {
            let (barrier, done) = (Arc::clone(&barrier), Arc::clone(&done));
            pool.run(move || {
                barrier.wait();
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn a_pool_may_have_a_worker_from_the_start() {
        assert_eq!(Offload::new().shared.state.lock().workers.len(), 0);
        let pool = Offload::with_worker().expect("the system starts one");
        assert_eq!(pool.shared.state.lock().workers.len(), 1);
        let (sender, receiver) = mpsc::channel();
        pool.run(move || {
            sender
                .send(thread::current().id())
                .expect("it is waited for")
        });
        assert_ne!(
            receiver.recv().expect("the job ran"),
            thread::current().id()
        );
    }

    #[test]
    fn a_worker_runs_anywhere_wherever_it_was_started() {
        let pool = Offload::new();
        let (sender, receiver) = mpsc::channel();
        let everywhere = sched_getaffinity(None).expect("Linux has it");
        thread::scope(|scope| {
            scope.spawn(|| {
                placement::tests::follow_to_one_core();
                assert_eq!(sched_getaffinity(None).expect("as before").count(), 1);
                pool.run(move || {
                    let cores = sched_getaffinity(None).expect("as before");
                    sender.send(cores).expect("it is waited for");
                });
            });
        });
        assert_eq!(receiver.recv().expect("the job ran"), everywhere);
    }

    #[test]
    fn nor_is_a_worker_kept_where_the_transport_keeps_its_starter() {
        let servers = placement::Servers::new();
        let pool = Offload::new();
        let (sender, receiver) = mpsc::channel();
        let everywhere = sched_getaffinity(None).expect("Linux has it");
        thread::scope(|scope| {
            scope.spawn(|| {
                let first = (0..CpuSet::MAX_CPU).find(|&core| everywhere.is_set(core));
                let mut one = CpuSet::new();
                one.set(first.expect("this thread runs"));
                sched_setaffinity(None, &one).expect("one of them");
                servers.note_kept();
                pool.run(move || {
                    let cores = sched_getaffinity(None).expect("as before");
                    sender.send(cores).expect("it is waited for");
                });
            });
        });
        assert_eq!(receiver.recv().expect("the job ran"), everywhere);
    }

    #[test]
    fn workers_outlive_jobs_that_panic() {
        let pool = Offload::new();
        for _ in 0..2 * MAX_WORKERS {
            pool.run(|| resume_unwind(Box::new("a bug")));
        }
        let done = Arc::new(AtomicUsize::new(0));
        let own = Arc::clone(&done);
        pool.run(move || {
            own.fetch_add(1, Ordering::Relaxed);
        });
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn more_jobs_than_workers_all_run_before_the_pool_is_gone() {
        let pool = Offload::new();
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..MAX_WORKERS * 4 {
            let done = Arc::clone(&done);
            pool.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), MAX_WORKERS * 4);
    }
}
