//! What the program with virtual cores and the one with real threads share: one measurement, with
//! the same options and the same results.

#![forbid(unsafe_code)]

pub mod barrier;
mod journal;
pub mod measure;
pub mod parts;
pub mod setup;

#[cfg(feature = "cores")]
pub mod hand_over;
#[cfg(feature = "cores")]
pub mod machines;
#[cfg(feature = "cores")]
pub mod run;
#[cfg(feature = "cores")]
pub mod theory;
#[cfg(feature = "cores")]
mod waiting;
