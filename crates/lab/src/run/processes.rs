//! A crew of processes, each with one task on a mounted path.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use pext4_sync::meter::Tallies;
use serde::Serialize;

use super::Sample;
use super::crew::{Moments, TaskFiles, Tasks, WindowCounts};
use super::disturbance::Reading;
use super::driver::Length;
use super::interrupt::Interrupt;
use super::worker::{Hello, Order, Reply};
use crate::clock;
use crate::leftovers;

/// Interval at which a wait checks for an interruption.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long to wait, in total, for the end of killed processes, and the interval of that wait.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const LAST_GLANCE: Duration = Duration::from_millis(1);

/// The processes. Dropping them kills them.
pub struct Processes {
    workers: Vec<Worker>,
    replies: Receiver<(usize, Result<Reply>)>,
    interrupt: Interrupt,
    is_finishing: bool,
}

impl fmt::Debug for Processes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Processes")
            .field("is_finishing", &self.is_finishing)
            .finish_non_exhaustive()
    }
}

struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Processes {
    /// Starts one process for each task and waits until all are ready.
    pub fn start(program: &Path, home: &Path, tasks: &Tasks) -> Result<Self> {
        let (sender, replies) = channel();
        let mut crew = Self {
            workers: Vec::new(),
            replies,
            interrupt: tasks.interrupt.clone(),
            is_finishing: false,
        };
        for number in 0..tasks.plan.tasks {
            let hello = Hello {
                workload: tasks.workload.name().to_owned(),
                plan: tasks.plan.clone(),
                number,
                home: home.to_owned(),
                pinned: tasks.pinned,
            };
            let mut worker = start_one(program, crew.workers.len(), &sender)?;
            tell(&mut worker, &hello)?;
            crew.workers.push(worker);
        }
        crew.collect().context("preparing")?;
        Ok(crew)
    }

    pub fn timed(&mut self, moments: Moments) -> Result<WindowCounts> {
        self.tell_all(Order::Timed(moments))?;
        let mut early = Vec::new();
        self.sleep(moments.count, &mut early)?;
        let (opening, before) = (Reading::now(None), clock::machine_cpu());
        self.sleep(moments.end, &mut early)?;
        let (closing, after) = (Reading::now(None), clock::machine_cpu());
        Ok(WindowCounts {
            samples: self.gather(early)?,
            whole_cpu: before
                .zip(after)
                .map(|(before, after)| after.saturating_sub(before)),
            locks: Tallies::default(),
            disturbance: opening.until(&closing),
        })
    }

    /// Sleeps until a moment, or until a process replies before it: such a reply can only be a
    /// failure.
    fn sleep(&self, moment: u64, early: &mut Vec<(usize, Result<Reply>)>) -> Result<()> {
        loop {
            self.interrupt.check()?;
            let left = Duration::from_nanos(moment.saturating_sub(clock::now()));
            if left.is_zero() || !early.is_empty() {
                return Ok(());
            }
            if let Ok(reply) = self.replies.recv_timeout(left.min(POLL_INTERVAL)) {
                early.push(reply);
            }
        }
    }

    pub fn part(&mut self, start: u64, length: Length) -> Result<Vec<Sample>> {
        self.order(Order::Part { start, length })
    }

    pub fn finish(mut self, files: TaskFiles) -> Result<()> {
        self.is_finishing = true;
        let done = self.order(Order::Finish { files });
        done.context("cleaning up").map(drop)
    }

    fn order(&mut self, order: Order) -> Result<Vec<Sample>> {
        self.tell_all(order)?;
        self.collect()
    }

    fn tell_all(&mut self, order: Order) -> Result<()> {
        self.workers
            .iter_mut()
            .try_for_each(|worker| tell(worker, &order))
    }

    fn collect(&mut self) -> Result<Vec<Sample>> {
        self.gather(Vec::new())
    }

    /// Waits for one reply of every process; only the first failure counts.
    fn gather(&mut self, early: Vec<(usize, Result<Reply>)>) -> Result<Vec<Sample>> {
        let mut samples: Vec<Option<Vec<Sample>>> = vec![None; self.workers.len()];
        let mut early = early.into_iter();
        while samples.iter().any(Option::is_none) {
            self.interrupt.check()?;
            let reply = match early.next() {
                Some(reply) => Ok(reply),
                None => self.replies.recv_timeout(POLL_INTERVAL),
            };
            match reply {
                // A process that is finished ends, and its output ends too: that is no failure.
                Ok((number, Err(_))) if self.is_finishing && samples[number].is_some() => {}
                Ok((number, reply)) => {
                    let reply = reply.with_context(|| format!("task {number}"))?;
                    match reply {
                        Reply::Done(done) => samples[number] = Some(done),
                        Reply::Failed(why) => return Err(anyhow!(why)),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the tasks are gone"),
            }
        }
        Ok(samples.into_iter().flatten().flatten().collect())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.orders = None;
            // This fails for a process that has already ended.
            let _ = worker.child.kill();
        }
        // A process that waits for a server's answer ends only with that server, whose mount is
        // dropped later.
        let end = Instant::now() + KILL_TIMEOUT;
        for worker in &mut self.workers {
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(LAST_GLANCE);
            }
            if let Ok(None) = worker.child.try_wait() {
                let process = format!("process {}", worker.child.id());
                leftovers::note_why(process, "it was killed and has not ended");
            }
        }
    }
}

/// Starts a process whose replies go to `sender` under its number. It gets a process group of its
/// own: the terminal's Ctrl-C is for the lab, which ends the process in order.
fn start_one(
    program: &Path,
    number: usize,
    sender: &Sender<(usize, Result<Reply>)>,
) -> Result<Worker> {
    let mut child = Command::new(program)
        .args(["lab", "worker"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("cannot start a task")?;
    let orders = child.stdin.take();
    let replies = child.stdout.take().expect("its output is a pipe");
    let sender = sender.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(replies).lines() {
            let reply = line
                .map_err(anyhow::Error::from)
                .and_then(|line| Ok(serde_json::from_str(&line)?));
            if sender.send((number, reply)).is_err() {
                return;
            }
        }
        // Anybody who still waits for a reply gets this failure.
        let _ = sender.send((number, Err(anyhow!("its process ended"))));
    });
    Ok(Worker { child, orders })
}

fn tell(worker: &mut Worker, order: &impl Serialize) -> Result<()> {
    let orders = worker.orders.as_mut().context("a task has ended")?;
    let mut line = serde_json::to_string(order)?;
    line.push('\n');
    orders
        .write_all(line.as_bytes())
        .context("a task has ended")
}
