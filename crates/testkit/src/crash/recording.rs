//! A run whose every write is on record, with the model's state after each operation.

use std::sync::Arc;

use pext4_block::{Device, Event, RamDevice, RecordDevice};

use crate::Random;
use crate::campaign::{Stage, guarded, step};
use crate::model::Model;
use crate::op::Op;
use crate::op::generate::{Generator, Taste};
use crate::outcome::Subject;
use crate::volume::VolumeSubject;

/// A recorded run.
pub struct Recording {
    /// The device before the volume was opened.
    pub base: RamDevice,
    /// Everything that was done to it.
    pub events: Vec<Event>,
    /// The operations; the first stands at 0.
    pub ops: Vec<Op>,
    /// Log positions at which the operations started.
    pub started: Vec<usize>,
    /// Log positions at which they had returned.
    pub returned: Vec<usize>,
    /// States of the model: `models[n]` is the one after `n` operations.
    pub models: Vec<Model>,
}

impl Recording {
    /// Runs operations from a seed; a remount at the end puts an unmount and a mount on record.
    pub fn generate(stage: &Stage, taste: Taste, seed: u64, count: usize) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let generator = Generator::new(taste);
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

    fn run(
        stage: &Stage,
        next: &mut dyn FnMut(usize, &Model) -> Option<Op>,
    ) -> Result<Self, String> {
        let base = stage.device();
        let device = Arc::new(RecordDevice::new(Arc::new(base.fork())));
        let stacked: Arc<dyn Device> = Arc::<RecordDevice>::clone(&device);
        let subject = VolumeSubject::open(stacked, stage.options.clone());
        let mut subject = subject.map_err(|error| format!("open: {error}"))?;
        let mut this = Self {
            base: base.fork(),
            events: Vec::new(),
            ops: Vec::new(),
            started: Vec::new(),
            returned: Vec::new(),
            models: vec![stage.model()],
        };
        let result = guarded(|| this.record(&mut subject, &device, next));
        // The log ends here: what the volume does from now on nobody sees.
        this.events = device.events();
        subject.abandon();
        result.map(|()| this)
    }

    fn record(
        &mut self,
        subject: &mut dyn Subject,
        device: &RecordDevice,
        next: &mut dyn FnMut(usize, &Model) -> Option<Op>,
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
