//! Sides: what a workload is run on, made ready and taken down.
//!
//! A side is opened once and stays open while measurements of all sides alternate, unless the
//! workload wants a file system of its own each time or two sides share one image. Dropping a side
//! takes everything down that it made: mounts, images, folders.

mod apart;
mod check;
mod control;
mod image;
mod library;
mod mounted;
mod path;
mod table;

use anyhow::Result;

use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};
use crate::workloads::Workload;

pub use apart::ApartSide;
pub use check::{Verdict, e2fsck, tool};
pub use control::ControlSide;
pub use image::{ImagePlan, Storage};
pub use library::LibrarySide;
pub use mounted::{Kind, MountedSide, Ours};
pub use path::PathSide;

/// Something that workloads run on.
pub trait Side {
    /// What it is called in tables.
    fn label(&self) -> String;

    /// What it runs instead of the workload of the run, if it does.
    fn workload(&self) -> Option<&'static dyn Workload> {
        None
    }

    /// Opens it where it is not, makes what the tasks share, and starts the tasks.
    ///
    /// # Errors
    /// It cannot be opened, has no room, or a task cannot start.
    fn crew(&mut self, tasks: &Tasks) -> Result<Crew>;

    /// Removes what the tasks shared and lets what is written become durable, so that the next
    /// measurement does not pay for this one.
    ///
    /// # Errors
    /// The file system's.
    fn settle(&mut self, tasks: &Tasks) -> Result<()>;

    /// Closes it with all that the tasks left, examines how their files lie, has it checked, and
    /// makes it anew for the next measurement.
    ///
    /// # Errors
    /// The file system's; the check's.
    fn examine(&mut self, tasks: &Tasks) -> Result<Option<Fragmentation>>;

    /// Closes it and has it checked.
    ///
    /// # Errors
    /// It did not close cleanly.
    fn close(&mut self) -> Result<Verdict>;
}
