//! Flushes that succeed only while no flush of the device has failed.
//!
//! Linux reports a lost write once per open file: of several concurrent flushes one fails, and the
//! others succeed although the lost write is one that they should have made durable. So a flush
//! succeeds only if no flush has failed by the time when all concurrent ones have ended. After the
//! first failure every flush fails; the device is still called, since it may make some writes
//! durable.
//!
//! Flushes still run concurrently: a flush that is done waits for those that had begun by then, but
//! not for later ones.
//!
//! Locking: one mutex of class `Leaf`, not held during a call of the device.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use pext4_sync::{Class, Condvar, Mutex, PanicWatch};

use crate::device::Device;

/// The flushes of one device: those that run, and the first failure.
#[derive(Debug)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    /// Notified when a flush has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many have begun, which is the number of the next one.
    begun: u64,
    /// The numbers of those that have not ended.
    running: Vec<u64>,
    failure: Option<Failure>,
}

/// The error of the first flush that failed.
#[derive(Clone, Debug)]
struct Failure {
    kind: io::ErrorKind,
    text: String,
}

impl Failure {
    fn to_error(&self) -> io::Error {
        let text = format!("a flush failed before or meanwhile: {}", self.text);
        io::Error::new(self.kind, text)
    }
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(Class::Leaf, State::default()),
            ended: Condvar::new(),
        }
    }

    /// Flushes the device by `flush`; success means that everything written before is durable.
    pub(crate) fn run(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let running = self.begin();
        let result = flush();
        if let Err(error) = &result {
            running.note_failure(error);
        }
        drop(running);
        result?;
        self.wait_for_concurrent()
    }

    fn begin(&self) -> Running<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.running.push(number);
        Running {
            flushes: self,
            number,
            panic: PanicWatch::new(),
        }
    }

    fn wait_for_concurrent(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let begun = state.begun;
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.to_error());
            }
            if state.running.iter().all(|number| *number >= begun) {
                return Ok(());
            }
            self.ended.wait(&mut state);
        }
    }
}

/// A running flush. Dropping it ends the flush, also when it panics.
struct Running<'a> {
    flushes: &'a Flushes,
    number: u64,
    panic: PanicWatch,
}

impl Running<'_> {
    fn note_failure(&self, error: &io::Error) {
        let mut state = self.flushes.state.lock();
        state.failure.get_or_insert_with(|| Failure {
            kind: error.kind(),
            text: error.to_string(),
        });
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.panic.has_panicked() {
            self.note_failure(&io::Error::other("it panicked"));
        }
        let mut state = self.flushes.state.lock();
        state.running.retain(|number| *number != self.number);
        drop(state);
        self.flushes.ended.notify_all();
    }
}

/// A device whose flushes all fail after one has failed.
pub struct FailStopDevice {
    below: Arc<dyn Device>,
    flushes: Flushes,
}

impl fmt::Debug for FailStopDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FailStopDevice")
            .finish_non_exhaustive()
    }
}

impl FailStopDevice {
    /// A device on top of `below`. Flushes that do not go through this device are not taken into
    /// account.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self {
            below,
            flushes: Flushes::new(),
        }
    }
}

impl Device for FailStopDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.below.write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        self.below.write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.run(|| self.below.flush())
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.below)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;
    use std::sync::Barrier;

    use pext4_sync::thread;

    use super::{Arc, Device, FailStopDevice, Flushes};
    use crate::fault::{FaultDevice, Operation};
    use crate::ram::RamDevice;

    #[test]
    fn after_a_failed_flush_all_fail() {
        let faulty = Arc::new(FaultDevice::new(Arc::new(RamDevice::new(4096))));
        let device = FailStopDevice::new(Arc::clone(&faulty) as Arc<dyn Device>);
        device.flush().expect("nothing is planned");
        faulty.fail_nth(Operation::Flush, 0);
        let first = device.flush().expect_err("it is planned").to_string();
        assert_eq!(first, "flush number 1 (0 bytes at 0) fails as planned");
        let later = device
            .flush()
            .expect_err("the device may say what it likes");
        let text = format!("a flush failed before or meanwhile: {first}");
        assert_eq!(later.to_string(), text);
        assert_eq!(
            faulty.calls(Operation::Flush),
            3,
            "it is asked all the same"
        );
    }

    #[test]
    fn a_flush_fails_if_a_concurrent_one_fails_later() {
        let flushes = Flushes::new();
        let (both_run, one_is_done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let succeeds = scope.spawn(|| {
                flushes.run(|| {
                    both_run.wait();
                    Ok(())
                })
            });
            let fails = scope.spawn(|| {
                flushes.run(|| {
                    both_run.wait();
                    one_is_done.wait();
                    Err(io::Error::other("the cable is out"))
                })
            });
            let is_one_done = || {
                let state = flushes.state.lock();
                state.begun == 2 && state.running.len() == 1
            };
            while !is_one_done() {
                thread::yield_now();
            }
            assert!(!succeeds.is_finished());
            one_is_done.wait();
            let told = succeeds.join().expect("no panic").expect_err("one failed");
            assert!(told.to_string().contains("the cable is out"), "{told}");
            assert!(fails.join().expect("no panic").is_err());
        });
    }

    #[test]
    fn a_flush_that_panics_fails_and_blocks_no_other() {
        let flushes = Flushes::new();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            flushes.run(|| panic!("a bug of the device"))
        }));
        assert!(panicked.is_err());
        assert!(flushes.run(|| Ok(())).is_err());
    }
}
