//! One measurement: a fresh image in memory, several tasks, a window in which their operations
//! count.
//!
//! The same code runs on virtual cores and, in both programs, on real threads. The window lasts
//! until its time is over, three transactions have been committed, as many blocks have been logged
//! as the log holds, and a checkpoint has been made. If this does not happen before the longest
//! time, the result says so.
//!
//! Counters and flags here are those of the standard library: the driver is not part of the engine
//! and costs no virtual time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use crossbeam_utils::CachePadded;
use pext4_block::{Device, RamDevice};
use pext4_fs::{MountOptions, Volume};
use pext4_image::mkfs;
use pext4_lab::fill::make_ready;
use pext4_lab::target::Library;
use pext4_lab::workloads::{Pace, Task};
use pext4_sync::thread::{self, JoinHandle};
use pext4_sync::time;
use pext4_sync::topology::{self, PinGuard};
use rustix::thread::{Pid, gettid};

use crate::barrier::Barrier;
use crate::journal::{Mark, fill_log, make_due};
use crate::parts::{Done, Sum, queued, thread_cpu};
use crate::setup::{Counted, Hands, Observer, Setup};

/// Bytes of a group of the image.
const GROUP: u64 = 128 << 20;

/// A task and its number.
type Numbered = (usize, Box<dyn Task>);

/// The state that the tasks share.
struct Crew {
    library: Library,
    setup: Setup,
    barrier: Barrier,
    over: AtomicBool,
    counters: Vec<CachePadded<AtomicU64>>,
    /// [atomic] Nanoseconds of CPU time of all tasks.
    cpu: AtomicU64,
    done: Vec<Mutex<Done>>,
    /// Thread ids of the tasks; `None` for virtual cores.
    threads: Vec<Mutex<Option<Pid>>>,
    failure: Mutex<Option<anyhow::Error>>,
}

/// What a measurement leaves.
pub struct Measured<O> {
    /// The counts of the tasks.
    pub counted: Counted,
    /// The observer, which has seen both ends of the window.
    pub observer: O,
    /// The image, closed.
    pub device: Arc<RamDevice>,
}

/// Runs the measurement that `setup` describes; `observer` is called at the ends of the window.
///
/// # Errors
///
/// Errors of the image, the volume or a task.
pub fn measure<O: Observer>(setup: &Setup, mut observer: O) -> Result<Measured<O>> {
    let tasks = setup.plan.tasks as usize;
    let ranges = setup.threads();
    let device = Arc::new(RamDevice::new(u64::from(setup.groups) * GROUP));
    let library = Library::new(open(&device, setup)?)?;
    make_ready(&library, setup.workload, &setup.plan)?;
    make_due(&library, setup.journal_blocks)?;
    let crew = Arc::new(Crew {
        library,
        setup: setup.clone(),
        barrier: Barrier::new(ranges.len() + 1),
        over: AtomicBool::new(false),
        counters: (0..tasks).map(|_| CachePadded::default()).collect(),
        cpu: AtomicU64::new(0),
        done: (0..tasks).map(|_| Mutex::default()).collect(),
        threads: (0..tasks).map(|_| Mutex::default()).collect(),
        failure: Mutex::new(None),
    });
    let threads: Vec<JoinHandle<()>> = ranges
        .into_iter()
        .map(|numbers| {
            let crew = Arc::clone(&crew);
            thread::spawn("task", move || {
                O::task(numbers.start);
                crew.work::<O>(numbers);
            })
        })
        .collect();
    crew.barrier.wait();
    let mut counted = match setup.workload.pace() {
        Pace::Rounds => crew.rounds(&mut observer),
        Pace::Timed | Pace::Once => crew.timed(&mut observer),
    };
    for thread in threads {
        thread.join().map_err(|_| anyhow!("a task panicked"))?;
    }
    let crew = Arc::into_inner(crew).context("a task still holds the crew")?;
    if let Some(error) = crew
        .failure
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
    {
        return Err(error);
    }
    counted.all_operations = crew
        .counters
        .iter()
        .map(|counter| counter.load(Ordering::Relaxed))
        .sum();
    counted.cpu = Duration::from_nanos(crew.cpu.load(Ordering::Relaxed));
    setup.workload.clean(&crew.library)?;
    crew.library.close()?;
    Ok(Measured {
        counted,
        observer,
        device,
    })
}

/// Makes the image that the workload needs, and mounts it.
fn open(device: &Arc<RamDevice>, setup: &Setup) -> Result<Volume> {
    let needs = setup.workload.needs(&setup.plan);
    let options = mkfs::Options {
        inode_size: if needs.small_inodes { 128 } else { 256 },
        journal_blocks: Some(setup.journal_blocks),
        reserved_percent: 0.0,
        uuid: Some([7; 16]),
        hash_seed: Some([1, 2, 3, 4]),
        time: Some(1_700_000_000),
        ..mkfs::Options::default()
    };
    mkfs::mkfs(&**device, &options)?;
    let options = MountOptions {
        commit_interval: setup.commit_interval,
        cache_size: u64::from(setup.cache_mib) << 20,
        scaling: setup.scaling,
        ..MountOptions::default()
    };
    Ok(Volume::open(
        Arc::clone(device) as Arc<dyn Device>,
        options,
    )?)
}

impl Crew {
    fn mark(&self) -> Mark {
        Mark::now(self.library.volume())
    }

    /// Commits until the log is about to wrap, so that a window need not log a whole lap.
    fn bring_log_to_its_end(&self) -> Result<()> {
        // A sync may take several commits if each truncated file waits for its own, and commits
        // differ in length: the wrap must not happen before the window begins.
        fill_log(&self.library, self.setup.journal_blocks, |left, last| {
            left < 2 * last
        })
    }

    fn failed(&self) -> bool {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.is_some()
    }

    /// The counts of each task since its start.
    fn so_far(&self) -> Vec<Done> {
        let tasks = self.counters.iter().zip(&self.threads);
        tasks
            .map(|(counter, thread)| Done {
                operations: counter.load(Ordering::Relaxed),
                queued: queued(*thread.lock().unwrap_or_else(PoisonError::into_inner)),
                ..Done::default()
            })
            .collect()
    }

    /// Runs the tasks' steps until the window is over.
    fn timed(&self, observer: &mut impl Observer) -> Counted {
        thread::sleep(self.setup.warm_up);
        if let Err(error) = self.bring_log_to_its_end() {
            self.fail(error);
        }
        let (begin, before) = (self.mark(), self.so_far());
        observer.open();
        let mut now = begin;
        while !begin.is_enough(now, &self.setup) && !self.failed() {
            thread::sleep(self.setup.window / 8);
            now = self.mark();
        }
        observer.close();
        let after = self.so_far();
        self.over.store(true, Ordering::Relaxed);
        let done = after.iter().zip(&before).map(|(after, before)| Done {
            operations: after.operations - before.operations,
            start: begin.time,
            end: now.time,
            queued: after.queued.saturating_sub(before.queued),
            cpu: Duration::ZERO,
        });
        let mut sum = Sum::default();
        sum.add(&done.collect::<Vec<Done>>());
        let part = sum.rate(self.setup.workload.parts()[0]);
        begin.counted(now, &self.setup, vec![part], sum.operations())
    }

    /// Runs rounds of parts until the window is over.
    fn rounds(&self, observer: &mut impl Observer) -> Counted {
        let parts = self.setup.workload.parts();
        let start = time::now();
        self.round(parts.len());
        while time::now() - start < self.setup.warm_up && !self.failed() {
            self.round(parts.len());
        }
        if let Err(error) = self.bring_log_to_its_end() {
            self.fail(error);
        }
        let begin = self.mark();
        observer.open();
        let mut sums: Vec<Sum> = parts.iter().map(|_| Sum::default()).collect();
        let mut now = begin;
        while !begin.is_enough(now, &self.setup) && !self.failed() {
            for (sum, round) in sums.iter_mut().zip(self.round(parts.len())) {
                sum.add(&round);
            }
            now = self.mark();
        }
        observer.close();
        self.over.store(true, Ordering::Relaxed);
        self.barrier.wait();
        let operations = sums.iter().map(Sum::operations).sum();
        let rates = parts.iter().zip(&sums).map(|(name, sum)| sum.rate(name));
        begin.counted(now, &self.setup, rates.collect(), operations)
    }

    /// Runs one round; returns the counts of each task in each part.
    fn round(&self, parts: usize) -> Vec<Vec<Done>> {
        let part = |_| {
            self.barrier.wait();
            self.barrier.wait();
            let done = self.done.iter();
            done.map(|done| *done.lock().unwrap_or_else(PoisonError::into_inner))
                .collect()
        };
        (0..parts).map(part).collect()
    }

    /// The main function of a thread that runs the tasks of `numbers`.
    fn work<O: Observer>(&self, numbers: Range<u32>) {
        let mut tasks = Vec::new();
        for number in numbers {
            let _pin = self.pin(number as usize);
            let plan = &self.setup.plan;
            match self.setup.workload.task(&self.library, plan, number) {
                Ok(task) => tasks.push((number as usize, task)),
                Err(error) => self.fail(error),
            }
        }
        let thread = self.thread();
        for (number, _) in &tasks {
            *self.threads[*number]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = thread;
        }
        self.barrier.wait();
        let start = thread_cpu();
        let outcome = match self.setup.workload.pace() {
            Pace::Rounds => self.work_in_rounds::<O>(&mut tasks),
            Pace::Timed | Pace::Once => self.work_on(&mut tasks),
        };
        let cpu = thread_cpu().saturating_sub(start).as_nanos();
        let cpu = u64::try_from(cpu).unwrap_or(u64::MAX);
        self.cpu.fetch_add(cpu, Ordering::Relaxed);
        if let Err(error) = outcome {
            self.fail(error);
        }
        for (_, task) in tasks {
            if let Err(error) = task.finish(&self.library) {
                self.fail(error);
            }
        }
    }

    /// The id of the calling thread, unless it is a virtual core, which never waits for a
    /// processor.
    fn thread(&self) -> Option<Pid> {
        (self.setup.hands != Hands::VirtualCores).then(gettid)
    }

    /// Puts the calling thread on the processor of task `number`.
    fn pin(&self, number: usize) -> Option<PinGuard> {
        (self.setup.hands == Hands::OneThreadInTurn).then(|| topology::pin(number))
    }

    fn fail(&self, error: anyhow::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    }

    fn work_on(&self, tasks: &mut [Numbered]) -> Result<()> {
        while !tasks.is_empty() && !self.over.load(Ordering::Relaxed) {
            for (number, task) in &mut *tasks {
                let _pin = self.pin(*number);
                let operations = u64::from(task.step(&self.library)?.operations);
                // Only this thread writes the counter.
                let counter = &self.counters[*number];
                counter.store(
                    counter.load(Ordering::Relaxed) + operations,
                    Ordering::Relaxed,
                );
            }
        }
        Ok(())
    }

    /// Runs tasks in rounds. A task that has failed continues to wait at the barriers, since the
    /// others do not know of the failure yet.
    fn work_in_rounds<O: Observer>(&self, tasks: &mut [Numbered]) -> Result<()> {
        let mut outcome = Ok(());
        for at in (0..self.setup.workload.parts().len()).cycle() {
            if self.setup.hands == Hands::VirtualCores {
                // Before the cores leave the barrier at one moment: a step after it takes each
                // another time.
                O::part(at);
                self.barrier.wait_and_begin_together();
            } else {
                self.barrier.wait();
            }
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            for (number, task) in &mut *tasks {
                let _pin = self.pin(*number);
                let done = self.work_on_part::<O>(at, task.as_mut(), &mut outcome);
                self.counters[*number].fetch_add(done.operations, Ordering::Relaxed);
                *self.done[*number]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = done;
            }
            self.barrier.wait();
        }
        outcome
    }

    /// Runs one task to the end of a part. What is done here besides the task's own work, above all
    /// reading how long it had no processor, belongs to the time between the parts: it takes as
    /// long as fifty operations.
    fn work_on_part<O: Observer>(
        &self,
        at: usize,
        task: &mut dyn Task,
        outcome: &mut Result<()>,
    ) -> Done {
        let thread = self.thread();
        let (before, cpu) = (queued(thread), thread_cpu());
        if self.setup.hands != Hands::VirtualCores {
            O::part(at);
        }
        let mut done = Done {
            start: time::now(),
            ..Done::default()
        };
        if outcome.is_ok() {
            *outcome = part(task, &self.library, &mut done.operations);
            if outcome.is_err() {
                self.fail(anyhow!("a task failed"));
            }
        }
        O::part(self.setup.workload.parts().len());
        done.end = time::now();
        done.cpu = thread_cpu().saturating_sub(cpu);
        done.queued = queued(thread).saturating_sub(before);
        done
    }
}

fn part(task: &mut dyn Task, library: &Library, operations: &mut u64) -> Result<()> {
    loop {
        let step = task.step(library)?;
        *operations += u64::from(step.operations);
        if step.ends_part {
            return Ok(());
        }
    }
}
