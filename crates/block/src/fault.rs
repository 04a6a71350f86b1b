//! A device whose calls fail as planned, for tests.
//!
//! Calls are counted by kind since the device was made. A plan selects those that fail: one, all
//! from one on, or all that overlap a range. A torn write writes only its first bytes.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use pext4_sync::{Class, Mutex};

use crate::device::Device;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `read_at`.
    Read,
    /// `write_at`; a vectored write counts as one for each piece.
    Write,
    /// `flush`.
    Flush,
    /// `discard`.
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// Which calls fail.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// The call with this number; a write writes so many of its bytes first.
    One(Operation, u64, usize),
    /// The call with this number and all after it.
    From(Operation, u64),
    /// All calls that overlap these bytes.
    Touching(Operation, Range<u64>),
    /// All calls.
    Everything,
}

#[derive(Default)]
struct Plan {
    faults: Vec<Fault>,
    calls: [u64; 4],
    failures: u64,
}

/// A device whose calls fail as planned.
pub struct FaultDevice {
    below: Arc<dyn Device>,
    plan: Mutex<Plan>,
}

impl fmt::Debug for FaultDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FaultDevice")
            .finish_non_exhaustive()
    }
}

impl FaultDevice {
    /// A device on top of `below`, with an empty plan.
    #[must_use]
    pub fn new(below: Arc<dyn Device>) -> Self {
        Self {
            below,
            plan: Mutex::new(Class::Leaf, Plan::default()),
        }
    }

    /// Makes the `nth` call of this kind from now on fail; 0 is the next one.
    pub fn fail_nth(&self, operation: Operation, nth: u64) {
        self.plan
            .lock()
            .add(operation, nth, |number| Fault::One(operation, number, 0));
    }

    /// Makes the `nth` write from now on fail after its first `bytes` bytes were written.
    pub fn tear_nth_write(&self, nth: u64, bytes: usize) {
        let fault = |number| Fault::One(Operation::Write, number, bytes);
        self.plan.lock().add(Operation::Write, nth, fault);
    }

    /// Makes the `nth` call of this kind from now on fail, and all after it.
    pub fn fail_from(&self, operation: Operation, nth: u64) {
        self.plan
            .lock()
            .add(operation, nth, |number| Fault::From(operation, number));
    }

    /// Makes every call of this kind fail that overlaps these bytes.
    pub fn fail_touching(&self, operation: Operation, bytes: Range<u64>) {
        self.plan
            .lock()
            .faults
            .push(Fault::Touching(operation, bytes));
    }

    /// Makes every call fail from now on, as if the device were unplugged.
    pub fn fail_everything(&self) {
        self.plan.lock().faults.push(Fault::Everything);
    }

    /// Clears the plan: calls succeed again.
    pub fn heal(&self) {
        self.plan.lock().faults.clear();
    }

    /// Number of calls of this kind so far, including failed ones.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u64 {
        self.plan.lock().calls[operation as usize]
    }

    /// Number of calls that failed so far as planned.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.plan.lock().failures
    }

    /// Counts a call. If it must fail, returns the error and the number of bytes that a write
    /// writes first.
    fn call(&self, operation: Operation, bytes: Range<u64>) -> Result<(), (usize, io::Error)> {
        let mut plan = self.plan.lock();
        let number = plan.calls[operation as usize];
        plan.calls[operation as usize] += 1;
        let left = plan
            .faults
            .iter()
            .find_map(|fault| fault.hits(operation, number, &bytes));
        let Some(left) = left else { return Ok(()) };
        plan.failures += 1;
        let text = format!(
            "{operation} number {number} ({} bytes at {}) fails as planned",
            bytes.end - bytes.start,
            bytes.start
        );
        Err((left, io::Error::other(text)))
    }
}

impl Plan {
    fn add(&mut self, operation: Operation, nth: u64, fault: impl FnOnce(u64) -> Fault) {
        let number = self.calls[operation as usize].saturating_add(nth);
        self.faults.push(fault(number));
    }
}

impl Fault {
    /// If a call fails by this fault, the number of bytes that a write writes first.
    fn hits(&self, operation: Operation, number: u64, bytes: &Range<u64>) -> Option<usize> {
        let (hit, left) = match self {
            Self::One(kind, one, left) => (*kind == operation && *one == number, *left),
            Self::From(kind, first) => (*kind == operation && number >= *first, 0),
            Self::Touching(kind, range) => {
                let touches = bytes.start < range.end && range.start < bytes.end;
                (*kind == operation && touches, 0)
            }
            Self::Everything => (true, 0),
        };
        hit.then_some(left)
    }
}

/// The bytes of one call.
fn range(offset: u64, length: u64) -> Range<u64> {
    offset..offset.saturating_add(length)
}

impl Device for FaultDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = range(offset, into.len() as u64);
        self.call(Operation::Read, bytes)
            .map_err(|(_, error)| error)?;
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        match self.call(Operation::Write, range(offset, from.len() as u64)) {
            Ok(()) => self.below.write_at(offset, from),
            Err((left, error)) => {
                self.below.write_at(offset, &from[..left.min(from.len())])?;
                Err(error)
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Operation::Flush, 0..0)
            .map_err(|(_, error)| error)?;
        self.below.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.call(Operation::Discard, range(offset, length))
            .map_err(|(_, error)| error)?;
        self.below.discard(offset, length)
    }

    fn below(&self) -> Option<&dyn Device> {
        Some(&*self.below)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::{FaultDevice, Operation};
    use crate::device::Device;
    use crate::ram::RamDevice;

    fn device() -> FaultDevice {
        FaultDevice::new(Arc::new(RamDevice::new(4096)))
    }

    #[test]
    fn one_call_fails() {
        let device = device();
        device.write_at(0, &[1]).expect("nothing is planned");
        device.fail_nth(Operation::Write, 1);
        device.write_at(1, &[2]).expect("it is the one before");
        let error = device.write_at(2, &[3]).expect_err("it is planned");
        assert_eq!(
            error.to_string(),
            "write number 2 (1 bytes at 2) fails as planned"
        );
        device.write_at(3, &[4]).expect("it is the one after");
        let mut bytes = [0; 4];
        device
            .read_at(0, &mut bytes)
            .expect("reads are not planned to fail");
        assert_eq!(bytes, [1, 2, 0, 4]);
        assert_eq!((device.calls(Operation::Write), device.failures()), (4, 1));
    }

    #[test]
    fn all_calls_fail_from_one_on() {
        let device = device();
        device.fail_from(Operation::Flush, 1);
        assert!(device.flush().is_ok());
        assert!(device.flush().is_err());
        assert!(device.flush().is_err());
        assert!(device.write_at(0, &[1]).is_ok());
        device.heal();
        assert!(device.flush().is_ok());
        device.fail_everything();
        assert!(device.write_at(0, &[1]).is_err());
        assert!(device.discard(0, 1).is_err());
    }

    #[test]
    fn calls_that_touch_a_range_fail() {
        let device = device();
        device.fail_touching(Operation::Read, 100..200);
        let reads = |offset, length| device.read_at(offset, &mut vec![0; length]).is_ok();
        assert!(reads(0, 100) && reads(200, 10));
        assert!(!reads(0, 101) && !reads(199, 1) && !reads(50, 300));
    }

    #[test]
    fn a_torn_write_leaves_its_beginning() {
        let device = device();
        device.tear_nth_write(0, 3);
        assert!(device.write_at(10, &[7; 8]).is_err());
        let mut bytes = [0; 5];
        device
            .read_at(9, &mut bytes)
            .expect("reads are not planned to fail");
        assert_eq!(bytes, [0, 7, 7, 7, 0]);
    }
}
