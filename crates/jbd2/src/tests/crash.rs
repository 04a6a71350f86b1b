//! Power cuts at every write: recovery yields the toy file system after some number of operations,
//! including all that were acknowledged.

use fastrand::Rng;
use std::io::{self, IoSlice};

use pext4_block::{Event, RecordDevice};
use pext4_ondisk::journal::{BlockType, Header};
use pext4_sync::thread;

use super::*;
use crate::Forgotten;

const LOG: u32 = 44;

/// The use of a block in the toy file system.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    Free,
    Freed(Tid),
    Metadata(u64),
    Data(u64),
}

/// The state of the toy after some operation.
#[derive(Clone)]
struct Model {
    cells: Vec<u64>,
    blocks: Vec<Use>,
}

impl Model {
    fn new() -> Self {
        Self {
            cells: vec![0; CELLS],
            blocks: vec![Use::Free; BLOCKS.count()],
        }
    }

    /// Asserts that the device has this state.
    fn check(&self, device: &dyn Device) {
        for (index, value) in self.cells.iter().enumerate() {
            assert_eq!(read_cell(device, index), *value, "cell {index}");
        }
        for (block, state) in BLOCKS.zip(&self.blocks) {
            match *state {
                Use::Free | Use::Freed(_) => {}
                Use::Metadata(number) => assert_metadata(device, block, number),
                Use::Data(number) => assert_data(device, block, number),
            }
        }
    }
}

/// A device that delays writes of the journal's superblock, so that threads that do not wait for
/// such a write overtake it.
struct SlowStart(Arc<RecordDevice>);

impl Device for SlowStart {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        if offset == LOG_START * BLOCK as u64 {
            thread::sleep(Duration::from_millis(3));
        }
        self.0.write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        self.0.write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// One life of a toy between two crashes.
struct Life {
    toy: Toy,
    recorder: Arc<RecordDevice>,
    /// After each operation; the first is the state at the start.
    models: Vec<Model>,
    /// Positions in the record from which on an operation must be found.
    acknowledged: Vec<(usize, u64)>,
    first: u64,
}

impl Life {
    fn begin(device: RamDevice, model: Model) -> Self {
        let recorder = Arc::new(RecordDevice::new(Arc::new(device)));
        let toy = Toy::open(Arc::new(SlowStart(Arc::clone(&recorder))), Some(LOG));
        let first = model.cells[0];
        Self {
            toy,
            recorder,
            models: vec![model],
            acknowledged: vec![(0, first)],
            first,
        }
    }

    fn now(&self) -> u64 {
        self.first + self.models.len() as u64 - 1
    }

    /// One random operation.
    fn operate(&mut self, random: &mut Rng) {
        let number = self.now() + 1;
        let mut model = self.models.last().expect("there is one").clone();
        let mut handle = self.toy.journal.start(18).expect("the journal runs");
        self.toy.set_cell(&mut handle, 0, number);
        model.cells[0] = number;
        for _ in 0..random.usize(..4) {
            let cell = 1 + random.usize(..CELLS - 1);
            self.toy.set_cell(&mut handle, cell, number);
            model.cells[cell] = number;
        }
        for _ in 0..random.usize(..6) {
            let index = random.usize(..model.blocks.len());
            let uses = [1, 1, 2, 4][random.usize(..4)];
            for _ in 0..uses {
                self.use_block(&mut handle, random, number, index, &mut model.blocks[index]);
            }
        }
        drop(handle);
        self.models.push(model);
    }

    fn use_block(
        &self,
        handle: &mut Handle<'_>,
        random: &mut Rng,
        number: u64,
        index: usize,
        state: &mut Use,
    ) {
        let block = BLOCKS.start + index as u64;
        let reusable = match *state {
            Use::Free => true,
            Use::Freed(tid) => self.toy.journal.is_durable(tid),
            Use::Metadata(_) | Use::Data(_) => false,
        };
        *state = match *state {
            Use::Free | Use::Freed(_) if !reusable => return,
            Use::Free | Use::Freed(_) if random.usize(..2) == 0 => {
                self.toy.write_data(block, number);
                Use::Data(number)
            }
            Use::Free | Use::Freed(_) => {
                self.toy.create(handle, block, number);
                Use::Metadata(number)
            }
            Use::Metadata(_) if random.usize(..2) == 0 => match handle.forget(BlockNumber(block)) {
                Forgotten::Revoked => Use::Freed(handle.tid()),
                Forgotten::WithoutTrace => Use::Free,
            },
            Use::Metadata(_) => {
                self.toy.edit(handle, block, number);
                Use::Metadata(number)
            }
            Use::Data(_) if random.usize(..2) == 0 => {
                self.toy.create_from_data(handle, block, number);
                Use::Metadata(number)
            }
            Use::Data(_) => Use::Freed(handle.tid()),
        };
    }

    fn commit(&mut self) {
        let number = self.now();
        self.toy.journal.commit_running().expect("the journal runs");
        self.acknowledged.push((self.recorder.mark(), number));
    }

    /// The last operation that must be found after a crash at this position.
    fn promised(&self, position: usize) -> u64 {
        let met = self
            .acknowledged
            .iter()
            .filter(|(mark, _)| *mark <= position);
        met.map(|(_, number)| *number)
            .max()
            .expect("the start is promised")
    }

    /// Recovers a crashed device and checks it; returns the model that it matches.
    fn judge(&self, crashed: &RamDevice, position: usize) -> Model {
        recover(crashed, LOG);
        let found = read_cell(crashed, 0);
        assert!(
            (self.promised(position)..=self.now()).contains(&found),
            "found operation {found} of {}, {} was acknowledged",
            self.now(),
            self.promised(position)
        );
        let model = &self.models[(found - self.first) as usize];
        model.check(crashed);
        model.clone()
    }
}

/// Applies a write, or the first `bytes` of it.
fn apply(device: &RamDevice, event: &Event, bytes: usize) {
    match event {
        Event::Write { offset, bytes: all } => device
            .write_at(*offset, &all[..bytes.min(all.len())])
            .expect("a ram device works"),
        other => other.apply(device).expect("a ram device works"),
    }
}

/// All crashes that this test makes of the events since the last flush: the position, and the
/// device.
fn crashes(
    durable: &RamDevice,
    window: &[Event],
    random: &mut Rng,
    judge: &mut impl FnMut(RamDevice, usize),
) {
    let some = |keep: &mut dyn FnMut(usize) -> bool| {
        let device = durable.fork();
        for (number, event) in window.iter().enumerate() {
            if keep(number) {
                apply(&device, event, usize::MAX);
            }
        }
        device
    };
    // Any subset of the writes before a flush that has not returned may survive.
    let before_flush = window.len() - usize::from(window.last() == Some(&Event::Flush));
    for cut in 0..=window.len() {
        judge(some(&mut |number| number < cut), cut);
        // The last write is torn at a sector's edge.
        if let Some(event) = window.get(cut) {
            let device = some(&mut |number| number < cut);
            apply(&device, event, 512 * (1 + random.usize(..4)));
            judge(device, cut);
            // Of a write of several blocks, one is lost.
            if let Event::Write { offset, bytes } = event
                && bytes.len() > BLOCK
            {
                let device = some(&mut |number| number < cut);
                let lost = random.usize(..bytes.len() / BLOCK);
                for (number, block) in bytes.chunks(BLOCK).enumerate() {
                    if number != lost {
                        let at = offset + (number * BLOCK) as u64;
                        device.write_at(at, block).expect("a ram device works");
                    }
                }
                judge(device, cut);
            }
        }
        judge(some(&mut |number| number + 1 != cut), before_flush);
        judge(some(&mut |number| number + 1 == cut), before_flush);
    }
    for _ in 0..3 {
        judge(some(&mut |_| random.usize(..2) == 0), before_flush);
    }
}

fn live(life: &mut Life, random: &mut Rng, operations: usize) {
    for _ in 0..operations {
        life.operate(random);
        match random.usize(..5) {
            0 | 1 => life.commit(),
            2 => life.toy.journal.request_commit(),
            _ => {}
        }
    }
}

#[test]
fn a_cut_at_any_write_leaves_a_prefix_with_all_that_was_acknowledged() {
    let mut random = Rng::with_seed(seed());
    let device = blank(LOG);
    let start = device.fork();
    let mut life = Life::begin(device, Model::new());
    live(&mut life, &mut random, 150);
    let statistics = life.toy.journal.statistics();
    println!("{statistics:?}");
    assert!(
        statistics.checkpoints > 2 && statistics.revokes > 5,
        "{statistics:?}"
    );
    let events = life.recorder.events();
    let durable = start;
    let mut position = 0;
    for window in events.split_inclusive(|event| *event == Event::Flush) {
        crashes(&durable, window, &mut random, &mut |crashed, cut| {
            life.judge(&crashed, position + cut);
        });
        window
            .iter()
            .for_each(|event| apply(&durable, event, usize::MAX));
        position += window.len();
    }
}

#[test]
fn life_goes_on_after_every_crash() {
    let mut random = Rng::with_seed(seed());
    let mut device = blank(LOG);
    let mut model = Model::new();
    for _ in 0..25 {
        let start = device.fork();
        let mut life = Life::begin(device, model);
        live(&mut life, &mut random, 40);
        let events = life.recorder.events();
        let cut = random.usize(..events.len() + 1);
        events[..cut]
            .iter()
            .for_each(|event| apply(&start, event, usize::MAX));
        model = life.judge(&start, cut);
        // No caller waits for transactions from before the crash.
        for state in &mut model.blocks {
            if matches!(state, Use::Freed(_)) {
                *state = Use::Free;
            }
        }
        device = start;
    }
    assert!(model.cells[0] > 50, "it got on");
}

/// If a commit block is torn, readers that check all of it must find zeroes behind its first
/// sector.
#[test]
fn a_commit_block_replaces_zeroes() {
    const COMMITS: u64 = 40;
    let device = blank(LOG);
    for at in 1..LOG {
        let stale = [0xEE; BLOCK];
        area(LOG)
            .write(&device, at, &[&stale])
            .expect("it is in the log");
    }
    let recorder = Arc::new(RecordDevice::new(Arc::new(device.fork())));
    let toy = Toy::open(Arc::<RecordDevice>::clone(&recorder), Some(LOG));
    for number in 1..=COMMITS {
        let mut handle = toy.journal.start(2).expect("the journal runs");
        toy.set_cell(&mut handle, 5, number);
        drop(handle);
        toy.journal.commit_running().expect("the journal runs");
    }
    drop(toy);
    let mut commits = 0;
    for event in recorder.events() {
        if let Event::Write { offset, bytes } = &event
            && Header::decode(bytes).is_some_and(|header| header.block_type == BlockType::Commit)
        {
            let mut before = [1; BLOCK];
            device.read_at(*offset, &mut before).expect("inside");
            assert!(before == [0; BLOCK], "before commit {commits}");
            commits += 1;
        }
        event.apply(&device).expect("inside");
    }
    assert_eq!(commits, COMMITS, "the log is smaller than all of them");
}
