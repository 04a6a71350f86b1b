//! Sides: the file systems on which a workload runs, with their setup and teardown.
//!
//! A side is opened once and stays open while the measurements of all sides alternate, unless the
//! workload needs a new file system each time or two sides share one image. Dropping a side removes
//! everything that it created: mounts, images, folders.

mod apart;
pub mod check;
mod control;
mod image;
mod library;
mod mounted;
mod path;
mod table;

use anyhow::Result;
use pext4_fs::statistics::Report;

use crate::results::Fragmentation;
use crate::run::{Crew, Tasks};
use crate::workloads::Workload;

pub use apart::ApartSide;
pub use check::{Verdict, e2fsck, tool};
pub use control::ControlSide;
pub use image::{ImagePlan, Storage};
pub use library::{LibrarySide, SLOW};
pub use mounted::{Kind, MountedSide, Pext4Options};
pub use path::PathSide;

/// A file system on which workloads run.
pub trait Side {
    /// Its name in tables.
    fn label(&self) -> String;

    /// The workload that it runs in place of the run's, if any.
    fn workload(&self) -> Option<&'static dyn Workload> {
        None
    }

    /// Opens the side unless it is open, creates what the tasks share, and starts the tasks.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, has too little room, or a task cannot start.
    fn crew(&mut self, tasks: &Tasks) -> Result<Crew>;

    /// Removes what the tasks shared and makes all writes durable, so that the next measurement
    /// does not pay for this one.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    fn clean_up(&mut self, tasks: &Tasks) -> Result<()>;

    /// Closes the side with all files of the tasks, examines their layout, checks the image, and
    /// creates a new one for the next measurement.
    ///
    /// # Errors
    ///
    /// Errors of the file system or the check.
    fn examine(&mut self, tasks: &Tasks) -> Result<Option<Fragmentation>>;

    /// The counters of its volume in this process, or of the last one; none if it has several.
    fn report(&self) -> Option<Report> {
        None
    }

    /// Closes the side and checks it.
    ///
    /// # Errors
    ///
    /// If it did not close cleanly.
    fn close(&mut self) -> Result<Verdict>;
}
