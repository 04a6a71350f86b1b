//! A run with a log of every write, and with the model's state after each operation of each thread.

use std::fmt;
use std::sync::Arc;

use pext4_block::{Device, Event, RamDevice, RecordDevice};
use pext4_fs::InodeNumber;

use crate::Random;
use crate::campaign::{Stage, catching_panics, step};
use crate::errno::{EIO, ENOSPC, Failure};
use crate::model::Model;
use crate::op::generate::{Generator, Profile};
use crate::op::{NewAttributes, Op, Target};
use crate::outcome::{Answer, Subject};
use crate::tree::Tree;
use crate::volume::{VolumeSubject, walk};

/// The operations of one thread.
#[derive(Default)]
pub struct History {
    /// The directory that only this thread worked in; empty for the root.
    pub at: Vec<u8>,
    /// The operations; the first has index 0.
    pub ops: Vec<Op>,
    /// Log positions at which the operations started.
    pub started: Vec<usize>,
    /// Log positions at which they had returned.
    pub returned: Vec<usize>,
    /// States of the model: `models[n]` is the one after `n` operations.
    pub models: Vec<Model>,
}

impl fmt::Debug for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("History").finish_non_exhaustive()
    }
}

/// A recorded run.
pub struct Recording {
    /// The device before the first event.
    pub base: RamDevice,
    /// All events of the device.
    pub events: Vec<Event>,
    /// The operations of each thread.
    pub histories: Vec<History>,
    /// The image and how it was mounted.
    pub stage: Stage,
    /// The files that are in no thread's directory, which stay as they are.
    pub others: Option<Tree>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut recording = formatter.debug_struct("Recording");
        recording.field("stage", &self.stage);
        recording.field("events", &self.events.len());
        recording.field("histories", &self.histories.len());
        recording.finish_non_exhaustive()
    }
}

/// Returns the next operation, given its number and the state before it.
type Next<'a> = &'a mut dyn FnMut(usize, &Model) -> Option<Op>;

impl History {
    /// A history that begins with this state of a directory.
    #[must_use]
    pub fn from(at: &[u8], model: Model) -> Self {
        Self {
            at: at.to_vec(),
            models: vec![model],
            ..Self::default()
        }
    }

    fn record(
        &mut self,
        subject: &mut dyn Subject,
        device: &RecordDevice,
        next: Next<'_>,
    ) -> Result<(), String> {
        let mut model = self.models[0].clone();
        while let Some(op) = next(self.ops.len(), &model) {
            self.started.push(device.mark());
            step(subject, &mut model, &op)?;
            self.returned.push(device.mark());
            self.ops.push(op);
            self.models.push(model.clone());
        }
        Ok(())
    }
}

impl Recording {
    /// Runs operations from a seed; a remount at the end adds an unmount and a mount to the log.
    pub fn generate(
        stage: &Stage,
        profile: Profile,
        seed: u64,
        count: usize,
    ) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let generator = Generator::new(profile);
        Self::run(stage, &mut |number, model| match number {
            number if number < count => Some(generator.next(&mut random, model)),
            number if number == count => Some(Op::Remount),
            _ => None,
        })
    }

    /// Runs given operations.
    pub fn replay(stage: &Stage, ops: &[Op]) -> Result<Self, String> {
        Self::run(stage, &mut |number, _| ops.get(number).cloned())
    }

    fn run(stage: &Stage, next: Next<'_>) -> Result<Self, String> {
        let base = stage.device();
        let device = Arc::new(RecordDevice::new(Arc::new(base.fork())));
        let mut subject = open(stage, &device)?;
        let mut history = History::from(b"", stage.model());
        let result = catching_panics(|| history.record(&mut subject, &device, next));
        // The log ends here: later writes of the volume are not examined.
        let events = device.events();
        subject.abandon();
        let histories = vec![history];
        result.map(|()| Self {
            base: base.fork(),
            events,
            histories,
            stage: stage.clone(),
            others: None,
        })
    }

    /// Runs threads, each in a directory of its own. The log starts when these directories are
    /// durable.
    pub fn threads(
        stage: &Stage,
        profile: Profile,
        seed: u64,
        threads: usize,
        count: usize,
    ) -> Result<Self, String> {
        let names = (0..threads).map(|number| format!("thread{number}"));
        let names: Vec<String> = names.collect();
        let run = Self::in_directories(stage, &stage.device(), &names, (profile, seed, count))?;
        run.ok_or_else(|| "the fresh image is full".to_owned())
    }

    /// Runs operations in a new directory of an image that a power cut left, after its recovery.
    /// `None` if there is no room for a directory.
    pub fn after(
        stage: &Stage,
        left: &RamDevice,
        name: String,
        profile: Profile,
        seed: u64,
        count: usize,
    ) -> Result<Option<Self>, String> {
        let left = Arc::new(left.fork());
        Self::in_directories(stage, &left, &[name], (profile, seed, count))
    }

    fn in_directories(
        stage: &Stage,
        below: &Arc<RamDevice>,
        names: &[String],
        (profile, seed, count): (Profile, u64, usize),
    ) -> Result<Option<Self>, String> {
        let device = Arc::new(RecordDevice::new(Arc::<RamDevice>::clone(below)));
        let mut subject = open(stage, &device)?;
        let mut histories = Vec::new();
        for name in names {
            let root = match make_directory(&mut subject, name) {
                Err(failure) if failure.errno == ENOSPC => return Ok(None),
                made => made.map_err(|failure| format!("mkdir {name}: {failure}"))?,
            };
            let model = stage.model_below(root);
            histories.push(History::from(name.as_bytes(), model));
        }
        let others = settled(&mut subject).map_err(|failure| failure.to_string())?;
        let (base, start) = (below.fork(), device.mark());
        let mut random = Random::new(seed);
        let workers: Vec<_> = histories
            .into_iter()
            .map(|history| work(&subject, &device, history, (profile, random.word(), count)))
            .collect();
        let histories: Result<Vec<History>, String> = workers
            .into_iter()
            .map(|worker| worker.join().expect("panics were caught"))
            .collect();
        let events = device.events_since(start);
        subject.abandon();
        let mut histories = histories?;
        for position in histories
            .iter_mut()
            .flat_map(|history| history.started.iter_mut().chain(&mut history.returned))
        {
            *position -= start;
        }
        Ok(Some(Self {
            base,
            events,
            histories,
            stage: stage.clone(),
            others: Some(others),
        }))
    }

    /// All operations that had started at a position of the log, for a failure report.
    #[must_use]
    pub fn ops_until(&self, position: usize) -> Vec<Op> {
        let of = |history: &History| {
            let count = history.started.partition_point(|&start| start <= position);
            history.ops[..count.min(history.ops.len())].to_vec()
        };
        self.histories.iter().flat_map(of).collect()
    }
}

fn open(stage: &Stage, device: &Arc<RecordDevice>) -> Result<VolumeSubject, String> {
    let stacked: Arc<dyn Device> = Arc::<RecordDevice>::clone(device);
    let subject = VolumeSubject::open(stacked, stage.options.clone());
    subject.map_err(|error| format!("open: {error}"))
}

/// Makes a directory in the root that is as in a fresh image: it keeps nothing that it inherited.
fn make_directory(subject: &mut VolumeSubject, name: &str) -> Result<u32, Failure> {
    let of = Target::path(name);
    let Answer::File(made) = subject.run(&Op::MakeDirectory {
        at: of.clone(),
        new: NewAttributes::plain(0o755),
    })?
    else {
        return Err(Failure::new(EIO));
    };
    if let Answer::Names(names) = subject.run(&Op::ListXattrs(of.clone()))? {
        for name in names {
            let of = of.clone();
            subject.run(&Op::RemoveXattr { of, name })?;
        }
    }
    let owner = Op::SetOwner {
        of: of.clone(),
        uid: 0,
        gid: 0,
    };
    subject.run(&owner)?;
    let permissions = 0o755;
    subject.run(&Op::SetMode { of, permissions })?;
    Ok(made.inode)
}

/// The tree of the volume, when it is durable.
fn settled(subject: &mut VolumeSubject) -> Result<Tree, Failure> {
    subject.run(&Op::Sync)?;
    walk(subject.volume(), InodeNumber::ROOT)
}

fn work(
    subject: &VolumeSubject,
    device: &Arc<RecordDevice>,
    mut history: History,
    (profile, seed, count): (Profile, u64, usize),
) -> std::thread::JoinHandle<Result<History, String>> {
    let mut own = subject.beside(history.models[0].root());
    let device = Arc::clone(device);
    let generator = Generator::new(profile);
    let mut random = Random::new(seed);
    std::thread::spawn(move || {
        catching_panics(|| {
            history.record(&mut own, &device, &mut |number, model| {
                (number < count).then(|| generator.next(&mut random, model))
            })
        })?;
        Ok(history)
    })
}
