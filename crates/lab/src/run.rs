//! Runs a workload: crews of tasks, the window in which they count, and the measured numbers.
//!
//! A *crew* is the tasks of one measurement: threads in this process, or processes on a mounted
//! path, all with the same loop. A measurement has a start for which all tasks wait, a warm-up that
//! is not counted, and a window, at both ends of which every task's count is read. A task reads its
//! CPU time itself, when it first sees that the window has begun and when it first sees that it is
//! over.
//!
//! Threads, channels and flags here are the standard library's, not `pext4-sync`'s: the driver must
//! not be measured, and it stays real when the engine runs on virtual cores.

mod crew;
mod disturbance;
mod driver;
mod interrupt;
mod measure;
mod processes;
mod threads;
mod worker;

pub use crew::{Crew, TaskFiles, Tasks};
pub use disturbance::{Disturbance, notes as disturbances};
pub use driver::{Own, Sample};
pub use interrupt::Interrupt;
pub use measure::{Counted, PartCount, Window, measure};
pub use worker::run as run_worker;
