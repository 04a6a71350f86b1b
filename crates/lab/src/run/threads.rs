//! A crew of threads in this process.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use crossbeam_utils::CachePadded;
use pext4_sync::meter::{self, Tallies};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::Sample;
use super::crew::{Moments, TaskFiles, Tasks, WindowCounts};
use super::disturbance::Reading;
use super::driver::{Driver, Length, Phase};
use super::interrupt::Interrupt;
use crate::clock;
use crate::instructions::Instructions;
use crate::target::Target;

/// Interval at which a wait checks for an interruption.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An order for a thread.
#[derive(Clone, Copy)]
enum Order {
    Timed { start: u64 },
    Part { start: u64, length: Length },
    Finish { files: TaskFiles },
}

/// The answer of a thread: one after its start, and one for every order.
type Reply = (u32, Result<Option<Sample>>);

/// The counts of all tasks at one moment.
struct Look {
    moment: u64,
    cpu: u64,
    locks: Tallies,
    counts: Vec<u64>,
}

/// The threads of a crew.
pub struct Threads {
    orders: Vec<Sender<Order>>,
    replies: Receiver<Reply>,
    handles: Vec<JoinHandle<()>>,
    phase: Arc<Phase>,
    /// One counter for each task, each on a cache line of its own.
    counters: Arc<[CachePadded<AtomicU64>]>,
    interrupt: Interrupt,
    first: u32,
}

impl fmt::Debug for Threads {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Threads")
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

impl Threads {
    /// Starts the tasks of these numbers and waits until all are ready. The tasks use the targets,
    /// at least one, in turn.
    pub fn start(targets: &[Arc<dyn Target>], tasks: &Tasks, numbers: Range<u32>) -> Result<Self> {
        let (sender, replies) = channel();
        let crew_first = numbers.start;
        let mut crew = Self {
            orders: Vec::new(),
            replies,
            handles: Vec::new(),
            phase: Arc::new(Phase::default()),
            counters: numbers.clone().map(|_| CachePadded::default()).collect(),
            interrupt: tasks.interrupt.clone(),
            first: numbers.start,
        };
        for (number, target) in numbers.zip(targets.iter().cycle()) {
            let (orders, inbox) = channel();
            let outbox = sender.clone();
            let (target, tasks) = (Arc::clone(target), tasks.clone());
            let (phase, counters) = (Arc::clone(&crew.phase), Arc::clone(&crew.counters));
            let body = move || {
                let counter = &counters[(number - crew_first) as usize];
                let life = Life {
                    number,
                    target: &*target,
                    tasks: &tasks,
                    phase: &phase,
                    counter,
                };
                life.live(&inbox, &outbox);
            };
            let thread = Builder::new().name(format!("task{number}")).spawn(body);
            crew.handles.push(thread.context("cannot start a task")?);
            crew.orders.push(orders);
        }
        crew.collect().context("preparing")?;
        Ok(crew)
    }

    pub fn timed(&mut self, moments: Moments) -> Result<WindowCounts> {
        for counter in &*self.counters {
            counter.store(0, Ordering::Relaxed);
        }
        self.phase.warm_up();
        self.tell(Order::Timed {
            start: moments.start,
        });
        let mut early = Vec::new();
        self.wait(moments.count, &mut early);
        let opening = Reading::now(Some(clock::process_cpu()));
        let before = self.look();
        self.phase.count();
        self.wait(moments.end, &mut early);
        let after = self.look();
        self.phase.end();
        let closing = Reading::now(Some(after.cpu));
        let mut samples = self.gather(early)?;
        let nanoseconds = after.moment.saturating_sub(before.moment).max(1);
        for (index, sample) in samples.iter_mut().enumerate() {
            sample.operations = after.counts[index] - before.counts[index];
            sample.nanoseconds = nanoseconds;
        }
        Ok(WindowCounts {
            samples,
            whole_cpu: Some(after.cpu.saturating_sub(before.cpu)),
            locks: after.locks.since(&before.locks),
            disturbance: opening.until(&closing),
        })
    }

    /// Reads every task's count and the clock.
    fn look(&self) -> Look {
        let counts = self.counters.iter();
        Look {
            moment: clock::now(),
            cpu: clock::process_cpu(),
            locks: meter::snapshot(),
            counts: counts
                .map(|counter| counter.load(Ordering::Relaxed))
                .collect(),
        }
    }

    pub fn part(&mut self, start: u64, length: Length) -> Result<Vec<Sample>> {
        self.phase.count();
        self.tell(Order::Part { start, length });
        self.collect()
    }

    pub fn finish(mut self, files: TaskFiles) -> Result<()> {
        self.tell(Order::Finish { files });
        // The files are removed even after an interruption.
        self.interrupt = Interrupt::default();
        self.collect().context("cleaning up").map(drop)
    }

    fn tell(&self, order: Order) {
        for orders in &self.orders {
            // A thread that has ended has already sent its error.
            let _ = orders.send(order);
        }
    }

    /// Waits until a moment; ends earlier if a thread replies (it can only be a failure) or the run
    /// is interrupted.
    fn wait(&self, moment: u64, early: &mut Vec<Reply>) {
        while early.is_empty() && self.interrupt.check().is_ok() {
            let left = Duration::from_nanos(moment.saturating_sub(clock::now()));
            if left.is_zero() {
                return;
            }
            if let Ok(reply) = self.replies.recv_timeout(left.min(POLL_INTERVAL)) {
                early.push(reply);
            }
        }
    }

    fn collect(&mut self) -> Result<Vec<Sample>> {
        self.gather(Vec::new())
    }

    /// Waits for one reply of every thread. After a failure or an interruption it orders the other
    /// threads to end, and still waits for them.
    fn gather(&mut self, mut replies: Vec<Reply>) -> Result<Vec<Sample>> {
        while replies.len() < self.orders.len() {
            let has_failed = replies.iter().any(|(_, reply)| reply.is_err());
            if has_failed || self.interrupt.check().is_err() {
                self.phase.end();
            }
            match self.replies.recv_timeout(POLL_INTERVAL) {
                Ok(reply) => replies.push(reply),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("a task died")),
            }
            self.add_panicked(&mut replies);
        }
        self.interrupt.check()?;
        // The first failure is the cause: threads that fail later may only have been ordered to
        // end.
        let samples: Result<Vec<(u32, Option<Sample>)>> = replies
            .into_iter()
            .map(|(number, reply)| Ok((number, reply?)))
            .collect();
        let mut samples = samples?;
        samples.sort_by_key(|(number, _)| *number);
        Ok(samples
            .into_iter()
            .filter_map(|(_, sample)| sample)
            .collect())
    }

    /// Adds a failure for every thread that panicked, since it never replies.
    fn add_panicked(&self, replies: &mut Vec<Reply>) {
        for (number, handle) in (self.first..).zip(&self.handles) {
            let has_replied = replies.iter().any(|(other, _)| *other == number);
            if handle.is_finished() && !has_replied {
                if let Ok(reply) = self.replies.try_recv() {
                    replies.push(reply);
                } else {
                    replies.push((number, Err(anyhow!("task {number} panicked"))));
                }
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.phase.end();
        self.orders.clear();
        for handle in self.handles.drain(..) {
            // The message of a thread that panicked is on the terminal.
            let _ = handle.join();
        }
    }
}

/// The data of one thread.
struct Life<'a> {
    number: u32,
    target: &'a dyn Target,
    tasks: &'a Tasks,
    phase: &'a Phase,
    counter: &'a AtomicU64,
}

impl Life<'_> {
    fn live(&self, inbox: &Receiver<Order>, outbox: &Sender<Reply>) {
        let (number, target) = (self.number, self.target);
        if self.tasks.pinned {
            pin(number);
        }
        let tell = |reply: Result<Option<Sample>>| {
            let reply = reply.with_context(|| format!("task {number}"));
            // Nobody receives the reply if the run was given up.
            let _ = outbox.send((number, reply));
        };
        let mut task = match self.tasks.workload.task(target, &self.tasks.plan, number) {
            Ok(task) => task,
            Err(error) => return tell(Err(error)),
        };
        tell(Ok(None));
        let mut instructions = Instructions::of_this_thread();
        while let Ok(order) = inbox.recv() {
            match order {
                Order::Finish { files } => {
                    let done = match files {
                        TaskFiles::Remove => task.finish(target),
                        TaskFiles::Keep => Ok(()),
                    };
                    return tell(done.map(|()| None));
                }
                Order::Timed { .. } | Order::Part { .. } => {
                    let mut driver = Driver {
                        task: &mut *task,
                        target,
                        phase: self.phase,
                        counter: self.counter,
                        instructions: &mut instructions,
                    };
                    tell(obey(&mut driver, order));
                }
            }
        }
        // The run has failed and reports why; removing the task's files is best effort.
        let _ = task.finish(target);
    }
}

fn obey(driver: &mut Driver<'_>, order: Order) -> Result<Option<Sample>> {
    match order {
        Order::Timed { start } => {
            clock::wait_until(start);
            let own = driver.timed()?;
            Ok(Some(Sample {
                own,
                ..Sample::default()
            }))
        }
        Order::Part { start, length } => {
            clock::wait_until(start);
            driver.part(start, length).map(Some)
        }
        Order::Finish { .. } => Ok(None),
    }
}

/// Pins this thread to one of the processors that the process may use.
fn pin(number: u32) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else {
        return;
    };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .collect();
    let Some(&mine) = processors.get(number as usize % processors.len().max(1)) else {
        return;
    };
    let mut set = CpuSet::new();
    set.set(mine);
    // If that is not permitted, the scheduler chooses.
    let _ = sched_setaffinity(None, &set);
}
