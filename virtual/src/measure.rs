//! One measurement: a fresh image in memory, a crew of tasks, a window in which they count.
//!
//! The same code runs on virtual cores and, in either program, on real threads. A window that
//! counts lasts until the time is over and three transactions have been committed, as much has been
//! logged as the log holds, and a checkpoint has been made; it is told if that did not happen
//! before the longest time.
//!
//! Counters and flags here are the standard library's: what drives the engine is not part of it and
//! costs no virtual time.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use crossbeam_utils::CachePadded;
use pext4_block::RamDevice;
use pext4_fs::options::Scaling;
use pext4_fs::{MountOptions, SetAttributes, Volume};
use pext4_image::mkfs;
use pext4_lab::fill::make_ready;
use pext4_lab::target::{Library, Node, Target};
use pext4_lab::workloads::{Pace, Plan, Task, Workload};
use pext4_sync::thread::{self, JoinHandle};
use pext4_sync::time;
use pext4_sync::topology::{self, PinGuard};
use rustix::thread::{Pid, gettid};
use serde::{Deserialize, Serialize};

use crate::barrier::Barrier;
use crate::parts::{Done, PartRate, Sum, queued, thread_cpu};

/// Bytes of a group.
const GROUP: u64 = 128 << 20;

/// The part of the log that is filled with the tasks at work; nobody else is there before.
const LEFT_TO_TASKS: u64 = 8;

/// What is measured, and how.
#[derive(Clone)]
pub struct Setup {
    /// What the tasks do.
    pub workload: &'static dyn Workload,
    /// How many and how much.
    pub plan: Plan,
    /// The setting of the mechanisms.
    pub scaling: Scaling,
    /// Groups of the image.
    pub groups: u32,
    /// Blocks of the journal.
    pub journal_blocks: u32,
    /// Longest time between commits.
    pub commit_interval: Duration,
    /// What comes before the window.
    pub warm_up: Duration,
    /// Shortest window.
    pub window: Duration,
    /// Longest window.
    pub longest: Duration,
    /// One thread is all tasks in turn, each on a core of its own: what cores do to each other can be seen
    /// without any that is in another's way.
    pub in_turn: bool,
    /// Tasks are virtual cores: they begin a part at one moment, where real threads begin it as they come
    /// (a sleep would part them further), and none is ever without a processor.
    pub imitated: bool,
}

impl Setup {
    /// The threads, each with the numbers of its tasks.
    fn hands(&self) -> Vec<Range<u32>> {
        if self.in_turn {
            return std::iter::once(0..self.plan.tasks).collect();
        }
        (0..self.plan.tasks)
            .map(|number| number..number + 1)
            .collect()
    }
}

/// What a measurement came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counted {
    /// In the order of the workload's parts.
    pub parts: Vec<PartRate>,
    /// Operations in the window.
    pub operations: u64,
    /// Length of the window.
    pub elapsed: Duration,
    /// Transactions committed in it.
    pub commits: u64,
    /// Blocks of the log taken in it.
    pub logged: u64,
    /// Checkpoints made in it.
    pub checkpoints: u64,
    /// Handles that waited in it for the next transaction, as this one had no credits left.
    pub credit_waits: u64,
    /// Commits that waited in it for room in the log.
    pub log_waits: u64,
    /// Whether the log came to its end and began again.
    pub wrapped: bool,
    /// Operations of the tasks from their start to their end.
    pub all_operations: u64,
    /// Time on a processor that those took.
    pub cpu: Duration,
}

impl Counted {
    /// Nanoseconds on a processor of an operation of a part.
    #[must_use]
    pub fn processor_time(&self, part: usize) -> f64 {
        if let [_] = self.parts[..] {
            self.cpu.as_nanos() as f64 / self.all_operations.max(1) as f64
        } else {
            self.parts[part].processor_time
        }
    }

    /// Whether the window held what a window has to.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.commits >= 3 && self.checkpoints >= 1 && self.wrapped
    }
}

/// Looks on at the ends of the window.
pub trait Observer: Send {
    /// The window begins.
    fn open(&mut self) {}
    /// The window is over.
    fn close(&mut self) {}
    /// A task has begun, on the thread that calls.
    fn task(_number: u32)
    where
        Self: Sized,
    {
    }
    /// The thread that calls begins a part of the workload.
    fn part(_number: usize)
    where
        Self: Sized,
    {
    }
}

/// Sees nothing.
pub struct Nobody;

impl Observer for Nobody {}

/// A task, and which one it is.
type Numbered = (usize, Box<dyn Task>);

/// What the tasks share.
struct Crew {
    library: Library,
    setup: Setup,
    barrier: Barrier,
    over: AtomicBool,
    counters: Vec<CachePadded<AtomicU64>>,
    /// Nanoseconds.
    cpu: AtomicU64,
    done: Vec<Mutex<Done>>,
    /// The threads of the tasks, where these are real.
    threads: Vec<Mutex<Option<Pid>>>,
    failure: Mutex<Option<anyhow::Error>>,
}

/// Measures.
///
/// # Errors
/// The image's, the volume's, a task's.
pub fn measure<O: Observer>(setup: &Setup, mut observer: O) -> Result<(Counted, O)> {
    let tasks = setup.plan.tasks as usize;
    let hands = setup.hands();
    let library = Library::new(open(setup)?)?;
    make_ready(&library, setup.workload, &setup.plan)?;
    fill_log(&library, setup.journal_blocks, |left, _| {
        left <= u64::from(setup.journal_blocks) / LEFT_TO_TASKS
    })?;
    let crew = Arc::new(Crew {
        library,
        setup: setup.clone(),
        barrier: Barrier::new(hands.len() + 1),
        over: AtomicBool::new(false),
        counters: (0..tasks).map(|_| CachePadded::default()).collect(),
        cpu: AtomicU64::new(0),
        done: (0..tasks).map(|_| Mutex::default()).collect(),
        threads: (0..tasks).map(|_| Mutex::default()).collect(),
        failure: Mutex::new(None),
    });
    let threads: Vec<JoinHandle<()>> = hands
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
    Ok((counted, observer))
}

/// Blocks of a journal that the log goes around in: all but the journal's superblock.
fn lap_length(journal_blocks: u32) -> u64 {
    u64::from(journal_blocks).saturating_sub(1).max(1)
}

/// Commits until so much of the log is left before it begins again as is said to be enough, given
/// what is left and what the last commit took, in blocks.
fn fill_log(
    library: &Library,
    journal_blocks: u32,
    mut is_enough: impl FnMut(u64, u64) -> bool,
) -> Result<()> {
    let volume = library.volume();
    let Node::Held(home) = *library.root() else {
        return Ok(());
    };
    let logged = || {
        let report = volume.report();
        report.get("journal", "blocks of the log").unwrap_or(0)
    };
    let length = lap_length(journal_blocks);
    let mut before = logged();
    for permissions in [0o700, 0o750]
        .into_iter()
        .cycle()
        .take(journal_blocks as usize)
    {
        let change = SetAttributes {
            permissions: Some(permissions),
            ..SetAttributes::default()
        };
        volume.set_attributes(home, &change)?;
        volume.sync()?;
        let now = logged();
        if is_enough(length - now % length, now - before) {
            break;
        }
        before = now;
    }
    Ok(())
}

fn open(setup: &Setup) -> Result<Volume> {
    let device = Arc::new(RamDevice::new(u64::from(setup.groups) * GROUP));
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
    mkfs::mkfs(&*device, &options)?;
    let options = MountOptions {
        commit_interval: setup.commit_interval,
        scaling: setup.scaling,
        ..MountOptions::default()
    };
    Ok(Volume::open(device, options)?)
}

/// The journal's numbers at one moment.
#[derive(Clone, Copy)]
struct Mark {
    time: Duration,
    commits: u64,
    logged: u64,
    checkpoints: u64,
    credit_waits: u64,
    log_waits: u64,
}

impl Crew {
    fn mark(&self) -> Mark {
        let report = self.library.volume().report();
        let value = |name: &str| report.get("journal", name).unwrap_or(0);
        Mark {
            time: time::now(),
            commits: value("commits"),
            logged: value("blocks of the log"),
            checkpoints: value("checkpoints"),
            credit_waits: value("waits for credits"),
            log_waits: value("waits for the log"),
        }
    }

    fn is_enough(&self, begin: Mark, now: Mark) -> bool {
        let elapsed = now.time - begin.time;
        let whole = now.commits >= begin.commits + 3
            && now.checkpoints > begin.checkpoints
            && self.lap(now) > self.lap(begin);
        elapsed >= self.setup.longest || (elapsed >= self.setup.window && whole)
    }

    fn lap(&self, mark: Mark) -> u64 {
        mark.logged / lap_length(self.setup.journal_blocks)
    }

    /// Commits until the log is about to begin again, so that a window need not last a lap of it.
    fn bring_log_to_its_end(&self) -> Result<()> {
        // A sync may take several commits, where each cut file waits for its own.
        fill_log(&self.library, self.setup.journal_blocks, |left, last| {
            left < last
        })
    }

    fn failed(&self) -> bool {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.is_some()
    }

    /// What each task has done since it began.
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

    /// Lets the tasks step until the window is over.
    fn timed(&self, observer: &mut impl Observer) -> Counted {
        thread::sleep(self.setup.warm_up);
        if let Err(error) = self.bring_log_to_its_end() {
            self.fail(error);
        }
        let (begin, before) = (self.mark(), self.so_far());
        observer.open();
        let mut now = begin;
        while !self.is_enough(begin, now) && !self.failed() {
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
        self.counted(vec![part], sum.operations(), begin, now)
    }

    /// Lets the tasks go through rounds of parts until the window is over.
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
        while !self.is_enough(begin, now) && !self.failed() {
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
        self.counted(rates.collect(), operations, begin, now)
    }

    /// One round: what each task did in each part.
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

    fn counted(&self, parts: Vec<PartRate>, operations: u64, begin: Mark, end: Mark) -> Counted {
        Counted {
            parts,
            operations,
            elapsed: end.time - begin.time,
            commits: end.commits - begin.commits,
            logged: end.logged - begin.logged,
            checkpoints: end.checkpoints - begin.checkpoints,
            credit_waits: end.credit_waits - begin.credit_waits,
            log_waits: end.log_waits - begin.log_waits,
            wrapped: self.lap(end) > self.lap(begin),
            all_operations: 0,
            cpu: Duration::ZERO,
        }
    }

    /// The life of a thread's tasks.
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

    /// The calling thread, if it is one that may have to wait for a processor.
    fn thread(&self) -> Option<Pid> {
        (!self.setup.imitated).then(gettid)
    }

    /// Where a task's turn is done.
    fn pin(&self, number: usize) -> Option<PinGuard> {
        self.setup.in_turn.then(|| topology::pin(number))
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
                // Nobody else writes it.
                let counter = &self.counters[*number];
                counter.store(
                    counter.load(Ordering::Relaxed) + operations,
                    Ordering::Relaxed,
                );
            }
        }
        Ok(())
    }

    /// A task that has failed goes on meeting the others, who do not know yet.
    fn work_in_rounds<O: Observer>(&self, tasks: &mut [Numbered]) -> Result<()> {
        let (mut outcome, thread) = (Ok(()), self.thread());
        for at in (0..self.setup.workload.parts().len()).cycle() {
            if self.setup.imitated {
                self.barrier.wait_and_begin_together();
            } else {
                self.barrier.wait();
            }
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            O::part(at);
            for (number, task) in &mut *tasks {
                let _pin = self.pin(*number);
                let (before, cpu) = (queued(thread), thread_cpu());
                let mut done = Done {
                    start: time::now(),
                    ..Done::default()
                };
                if outcome.is_ok() {
                    outcome = part(task.as_mut(), &self.library, &mut done.operations);
                    if outcome.is_err() {
                        self.fail(anyhow!("a task failed"));
                    }
                }
                done.end = time::now();
                done.cpu = thread_cpu().saturating_sub(cpu);
                done.queued = queued(thread).saturating_sub(before);
                self.counters[*number].fetch_add(done.operations, Ordering::Relaxed);
                *self.done[*number]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = done;
            }
            self.barrier.wait();
        }
        outcome
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
