//! Runs work on numbered items on many threads, each with its own state.

use std::panic::resume_unwind;

use pext4_sync::atomic::{AtomicU32, Ordering};
use pext4_sync::thread;

use super::{Pass, Step};
use crate::MAX_THREADS;

/// How a pass runs: the number of threads, cancellation and progress.
pub(super) struct Workers<'a> {
    pub(super) options: &'a super::Options,
    pub(super) threads: usize,
}

impl Workers<'_> {
    /// Whether the caller has cancelled the check.
    pub(super) fn is_cancelled(&self) -> bool {
        self.options.cancel.load(Ordering::Relaxed)
    }

    fn report_progress(&self, pass: Pass, done: u32, total: u32) {
        if let Some(progress) = &self.options.progress {
            progress(Step { pass, done, total });
        }
    }

    /// Calls `work` for every number below `count`, low ones first, and returns the states of the
    /// threads. Stops early if the check is cancelled.
    pub(super) fn each<S: Send>(
        &self,
        pass: Pass,
        count: u32,
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u32) + Sync,
    ) -> Vec<S> {
        let next = AtomicU32::new(0);
        let run = |reports: bool| {
            let mut state = state();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count || self.is_cancelled() {
                    return state;
                }
                if reports {
                    self.report_progress(pass, number, count);
                }
                work(&mut state, number);
            }
        };
        let most = self.threads.min(MAX_THREADS).min(count as usize);
        let helpers = most.saturating_sub(1);
        let states = thread::scope(|scope| {
            // If the system refuses some threads, the others do their work.
            let start = |_| thread::try_spawn_scoped(scope, || run(false)).ok();
            let helpers: Vec<_> = (0..helpers).map_while(start).collect();
            let mut states = vec![run(true)];
            for helper in helpers {
                states.push(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            states
        });
        if count > 0 && !self.is_cancelled() {
            self.report_progress(pass, count, count);
        }
        states
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Options, Pass, Step};
    use super::Workers;
    use pext4_sync::Mutex;
    use pext4_sync::atomic::Ordering;
    use pext4_sync::order::Class;

    #[test]
    fn the_progress_ends_with_all_of_it() {
        let steps = Arc::new(Mutex::new(Class::Leaf, Vec::new()));
        let kept = Arc::clone(&steps);
        let progress = move |step: Step| kept.lock().push((step.done, step.total));
        let options = Options {
            progress: Some(Box::new(progress)),
            ..Options::default()
        };
        for threads in [1, 4] {
            let workers = Workers {
                options: &options,
                threads,
            };
            let _ = workers.each(Pass::Inodes, 20, || (), |(), _| {});
            let steps = std::mem::take(&mut *steps.lock());
            assert_eq!(steps.last(), Some(&(20, 20)));
            assert!(steps.is_sorted());
        }
    }

    #[test]
    fn every_number_is_worked_on_once_and_a_cancel_stops() {
        let options = Options::default();
        for threads in [1, 4] {
            let workers = Workers {
                options: &options,
                threads,
            };
            let states = workers.each(Pass::Inodes, 100, Vec::new, |seen, number| {
                seen.push(number);
            });
            let mut all = states.concat();
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
        }
        options.cancel.store(true, Ordering::Relaxed);
        let workers = Workers {
            options: &options,
            threads: 2,
        };
        let states = workers.each(Pass::Inodes, 100, || 0, |seen, _| *seen += 1);
        assert_eq!(states.iter().sum::<i32>(), 0);
    }
}
