//! A flush that fails beside another one: what either of them was to make durable may be lost.

use std::io;
use std::sync::Condvar;

use super::abort::{LOG, operate};
use super::*;

/// A device that, like an operating system, reports a lost write to only one of two flushes: the
/// first flush that begins once this is planned succeeds, after the second one has failed and
/// before that returns.
struct TellsOne {
    below: Arc<RamDevice>,
    stage: std::sync::Mutex<Stage>,
    moved: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Works,
    Planned,
    OneWaits,
    OneFailed,
}

impl TellsOne {
    fn new(below: &Arc<RamDevice>) -> Arc<Self> {
        Arc::new(Self {
            below: Arc::clone(below),
            stage: std::sync::Mutex::new(Stage::Works),
            moved: Condvar::new(),
        })
    }

    fn stage(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.stage.lock().expect("no thread panicked with it")
    }

    fn move_to(&self, stage: Stage) {
        *self.stage() = stage;
        self.moved.notify_all();
    }

    fn wait_for(&self, stage: Stage) {
        let waited = self.moved.wait_while(self.stage(), |now| *now != stage);
        drop(waited.expect("no thread panicked with it"));
    }

    /// Runs `work` until its first flush, and then a concurrent flush of data, which fails.
    fn beside<R: Send>(&self, toy: &Toy, work: impl FnOnce() -> R + Send) -> R {
        self.move_to(Stage::Planned);
        std::thread::scope(|scope| {
            let works = scope.spawn(work);
            self.wait_for(Stage::OneWaits);
            assert!(toy.journal.flush_data().is_err());
            works.join().expect("no panic")
        })
    }
}

impl Device for TellsOne {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        let stage = *self.stage();
        match stage {
            Stage::Works | Stage::OneFailed => Ok(()),
            Stage::Planned => {
                self.move_to(Stage::OneWaits);
                self.wait_for(Stage::OneFailed);
                Ok(())
            }
            Stage::OneWaits => {
                self.move_to(Stage::OneFailed);
                // Time for a thread that trusts the successful flush to act on it.
                std::thread::sleep(Duration::from_millis(100));
                Err(io::Error::other("a write was lost"))
            }
        }
    }
}

#[test]
fn a_flush_that_fails_beside_that_of_the_log_keeps_the_commit_block_away() {
    let ram = Arc::new(blank(LOG));
    let device = TellsOne::new(&ram);
    let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, Some(LOG));
    let first = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(first).expect("the device works");
    let second = operate(&toy, 2).expect("the journal runs");
    let committed = device.beside(&toy, || toy.journal.commit(second));
    assert!(committed.is_err(), "the body may not be on the device");
    assert!(!toy.journal.is_durable(second));
    assert!(toy.journal.shutdown().is_err());
    assert_eq!(toy.told(|told| told.committed.clone()), [first]);
    drop(toy);
    let recovered = recover(&*ram, LOG);
    assert_eq!((recovered.transactions, recovered.errno), (1, -5));
    assert_eq!(read_cell(&*ram, 1), 1);
}

#[test]
fn a_flush_that_fails_beside_that_of_the_checkpoint_leaves_the_log_as_it_is() {
    let ram = Arc::new(blank(LOG));
    let device = TellsOne::new(&ram);
    let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, Some(LOG));
    let tid = operate(&toy, 1).expect("the journal runs");
    toy.journal.commit(tid).expect("the device works");
    let brought = device.beside(&toy, || toy.journal.checkpoint());
    assert!(brought.is_err(), "what was written home may be lost");
    assert!(toy.journal.shutdown().is_err());
    drop(toy);
    assert_eq!(recover(&*ram, LOG).transactions, 1, "the log holds it");
}

#[test]
fn without_a_log_a_flush_that_fails_beside_that_of_the_data_keeps_the_rest_away() {
    let ram = Arc::new(blank(LOG));
    let device = TellsOne::new(&ram);
    let toy = Toy::open(Arc::clone(&device) as Arc<dyn Device>, None);
    let tid = operate(&toy, 1).expect("the journal runs");
    let committed = device.beside(&toy, || toy.journal.commit(tid));
    assert!(committed.is_err(), "data may be lost");
    assert!(toy.journal.shutdown().is_err());
    assert!(toy.told(|told| told.committed.is_empty()));
    drop(toy);
    assert_eq!(read_cell(&*ram, 1), 0);
}
