//! What the program with virtual cores and the one with real threads have in common: one
//! measurement, told in the same words.

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
