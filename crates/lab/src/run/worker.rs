//! One task as a process of its own: orders arrive as lines on standard input, replies go as lines
//! to standard output. The process ends at the end of its input, so none outlives its run.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Sample;
use super::crew::{Moments, TaskFiles, Tasks};
use super::driver::Length;
use super::interrupt::Interrupt;
use super::threads::Threads;
use crate::target::{MountedPath, Target};
use crate::workloads::{self, Plan};

/// The first line of the input.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    pub workload: String,
    pub plan: Plan,
    pub number: u32,
    pub home: PathBuf,
    pub pinned: bool,
}

/// Every further line of the input.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) enum Order {
    Timed(Moments),
    Part { start: u64, length: Length },
    Finish { files: TaskFiles },
}

/// The line that answers an order.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    Done(Vec<Sample>),
    Failed(String),
}

/// Exit status if the run that gave the orders has ended.
const EXIT_ORPHANED: i32 = 3;

/// The answer to anybody but a run.
const NO_RUN: &str = "a run starts its workers itself";

/// The main function of a worker process.
///
/// # Errors
///
/// If it was not started by a run.
pub fn run() -> Result<()> {
    // Before the reader below is there: it ends the process where the input ends.
    let mut hello = String::new();
    stdin().lock().read_line(&mut hello)?;
    ensure!(!hello.is_empty(), NO_RUN);
    let hello: Hello = serde_json::from_str(&hello).context(NO_RUN)?;
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(EXIT_ORPHANED);
    });
    let mut crew = match start(&hello) {
        Ok(crew) => crew,
        Err(error) => return tell(&Reply::Failed(format!("{error:#}"))),
    };
    tell(&Reply::Done(Vec::new()))?;
    while let Ok(line) = lines.recv() {
        let done = match serde_json::from_str(&line)? {
            Order::Timed(moments) => crew.timed(moments).map(|window| window.samples),
            Order::Part { start, length } => crew.part(start, length),
            Order::Finish { files } => {
                let done = crew.finish(files).map(|()| Vec::new());
                return tell(&reply(done));
            }
        };
        tell(&reply(done))?;
    }
    Ok(())
}

fn reply(done: Result<Vec<Sample>>) -> Reply {
    match done {
        Ok(samples) => Reply::Done(samples),
        Err(error) => Reply::Failed(format!("{error:#}")),
    }
}

fn start(hello: &Hello) -> Result<Threads> {
    let target: Arc<dyn Target> = Arc::new(MountedPath::open(&hello.home)?);
    let tasks = Tasks {
        workload: workloads::find(&hello.workload)?,
        plan: hello.plan.clone(),
        pinned: hello.pinned,
        interrupt: Interrupt::default(),
    };
    Threads::start(&[target], &tasks, hello.number..hello.number + 1)
}

fn tell(reply: &Reply) -> Result<()> {
    let mut output = stdout().lock();
    writeln!(output, "{}", serde_json::to_string(reply)?)?;
    Ok(output.flush()?)
}
