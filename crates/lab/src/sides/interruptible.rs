//! A device whose calls fail once the run is interrupted, for work that asks nobody else.

use std::fmt;
use std::io::{self, IoSlice};
use std::sync::Arc;

use pext4_block::Device;

use crate::run::Interrupt;

/// A device that ends with the run.
pub struct Interruptible {
    below: Arc<dyn Device>,
    interrupt: Interrupt,
}

impl fmt::Debug for Interruptible {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Interruptible")
            .field("interrupt", &self.interrupt)
            .finish_non_exhaustive()
    }
}

impl Interruptible {
    /// `below`, until the interruption.
    pub fn new(below: Arc<dyn Device>, interrupt: Interrupt) -> Self {
        Self { below, interrupt }
    }

    /// Not `ErrorKind::Interrupted`: such a call would be tried again.
    fn check(&self) -> io::Result<()> {
        self.interrupt.check().map_err(io::Error::other)
    }
}

impl Device for Interruptible {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.check()?;
        self.below.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check()?;
        self.below.write_at(offset, from)
    }

    fn write_vectored_at(&self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        self.check()?;
        self.below.write_vectored_at(offset, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()?;
        self.below.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.check()?;
        self.below.discard(offset, length)
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }
}
